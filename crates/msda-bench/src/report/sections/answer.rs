//! The top of the report: what msda is, and how fast it is compared with other implementations.

use std::cmp::Reverse;

use super::ratios;
use crate::record::{Device, Record};
use crate::report::by_key;
use crate::report::compare::{Panel, headline, is_model};
use crate::report::names::{implementation, order, place, processor};
use crate::report::number::{count, short};
use crate::report::page::{Part, escape};

const MSDA: &str = "msda computes multi-scale deformable attention, the sampling operator of Deformable DETR and the \
    models after it, on CPUs and NVIDIA GPUs.";

const METHOD: &str = "Each range is over the workloads of the charts below. Each ratio compares times of the same \
    dtype within one run. The fastest implementation is not the same on every workload.";

const NO_MODEL: &str = "None of these workloads is taken from a model. Without --quick, msda bench measures some that \
    are.";

pub(super) fn parts(records: &[Record]) -> Vec<Part> {
    let panels = headline(records);
    let mut parts = vec![Part::Text(format!("{MSDA}\n"))];
    if !panels.is_empty() {
        let line = |[place, result, rest]: [String; 3]| format!("{place} **{result}**{rest}");
        let escaped = |panel| line(sentence(panel).map(|text| escape(&text)));
        parts.push(Part::list(panels.iter().map(escaped)));
        let model = panels.iter().flat_map(|p| &p.rows).any(|c| is_model(&c.ours.workload));
        parts.push(Part::note(&if model { METHOD.into() } else { format!("{METHOD} {NO_MODEL}") }));
    }
    parts.extend(busy(records));
    if panels.is_empty() {
        let what = "a model's workload beside another implementation in one run";
        parts.push(Part::missing(&[(what.into(), "msda bench --workload detr-encoder".into())]));
        return parts;
    }
    let mut charts = by_key(&panels, |p| (Reverse(p.setting.device), p.pass));
    charts.sort_by_key(|(key, _)| *key);
    for (i, ((Reverse(device), pass), own)) in charts.iter().enumerate() {
        parts.push(Part::heading(3, &format!("On the {}, {pass}", place(*device))));
        let mut plots = ratios::plots(own);
        // The first chart explains the others too.
        if i > 0 {
            plots.note.clear();
        }
        parts.push(Part::Plots(plots));
    }
    parts
}

/// The headlines as lines of text, of one dtype per device and pass.
pub(in crate::report) fn headlines(records: &[Record]) -> Vec<String> {
    let mut panels = headline(records);
    // The main dtype comes first.
    panels.dedup_by(|b, a| (&a.processor, a.setting, a.pass) == (&b.processor, b.setting, b.pass));
    let line = |[place, result, rest]: [String; 3]| format!("{place} {result}{rest}");
    panels.iter().map(sentence).map(line).collect()
}

/// A main result: where it holds, the result, and the rest of the sentence.
fn sentence(panel: &Panel<'_>) -> [String; 3] {
    let fastest: Vec<f64> = panel.rows.iter().filter_map(|c| Some(c.fastest()?.ratio)).collect();
    let torch: Vec<f64> = panel.rows.iter().filter_map(|c| Some(c.torch()?.ratio)).collect();
    let engines = panel.rows.iter().flat_map(|c| c.counted()).map(|o| o.measured.engine.as_str());
    let mut others = by_key(engines, |engine| implementation(engine));
    others.sort_by_cached_key(|(name, engines)| (order(engines[0]), name.clone()));
    let names: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
    let (result, rest) = match names.as_slice() {
        [one] => (format!("{} {one}", speed(&fastest)), String::new()),
        _ => (format!("{} the fastest", speed(&fastest)), format!(" of {}", names.join(", "))),
    };
    let torch = match torch.is_empty() || names.len() < 2 {
        true => String::new(),
        false => format!(", {} torch", speed(&torch)),
    };
    let Panel { processor, pass, dtype, .. } = panel;
    [format!("{processor}, {pass}, {dtype}:"), result, format!("{rest}{torch}.")]
}

/// `1.5 to 2.8 times faster than`, from the smallest to the largest ratio.
fn speed(ratios: &[f64]) -> String {
    let lo = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let hi = ratios.iter().copied().fold(0.0, f64::max);
    let range = |a: f64, b: f64| {
        let (a, b) = (short(a), short(b));
        if a == b { a } else { format!("{a} to {b}") }
    };
    if lo >= 1.0 {
        format!("{} times faster than", range(lo, hi))
    } else if hi <= 1.0 {
        format!("{} times slower than", range(1.0 / hi, 1.0 / lo))
    } else {
        format!("from {} times slower to {} times faster than", short(1.0 / lo), short(hi))
    }
}

/// A warning if runs of this report were made on a busy machine.
fn busy(records: &[Record]) -> Option<Part> {
    let busy = |r: &&Record| r.machine.load.is_some_and(|load| load.busy) && !r.measurements.is_empty();
    let runs: Vec<String> = records
        .iter()
        .filter(busy)
        .map(|r| format!("{} on {}", r.created, processor(r, Device::Cpu)))
        .collect();
    (!runs.is_empty()).then(|| {
        let n = count(runs.len(), "run");
        let runs = escape(&runs.join("; "));
        Part::Text(format!("**Warning:** {n} made on a busy machine, so times may be too long: {runs}.\n"))
    })
}

#[cfg(test)]
mod tests {
    use super::speed;

    #[test]
    fn ratios_are_said_in_words() {
        assert_eq!(speed(&[2.75, 1.54, 1.9]), "1.5 to 2.8 times faster than");
        assert_eq!(speed(&[3.0]), "3.0 times faster than");
        assert_eq!(speed(&[0.5, 0.8]), "1.2 to 2.0 times slower than");
        assert_eq!(speed(&[0.5, 4.0]), "from 2.0 times slower to 4.0 times faster than");
    }
}
