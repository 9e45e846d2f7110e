//! The top of the report: what msda is, and how fast it is compared with other implementations.

use crate::record::{Measurement, Record};
use crate::report::chart::{Bar, Chart};
use crate::report::compare::{Comparison, Panel, Verdict, headline, is_model};
use crate::report::group::unit;
use crate::report::names::{engine, implementation, order};
use crate::report::number::{figure, short, times};
use crate::report::page::{Part, fold};
use crate::report::{by_key, words};

const MSDA: &str = "msda computes multi-scale deformable attention, the sampling operator of Deformable DETR and the \
    models after it, on CPUs and NVIDIA GPUs.";

const METHOD: &str = "Each range is over the workloads of the charts below. Each ratio compares times of the same \
    dtype within one run. The fastest implementation is not the same on every workload. FlashDeformAttn computes the \
    softmax of the weights too; the others get weights.";

const NO_MODEL: &str = "None of these workloads is taken from a model. Without --quick, msda bench measures some that \
    are.";

pub(super) fn parts(records: &[Record]) -> Vec<Part> {
    let panels = headline(records);
    let mut parts = vec![Part::note(MSDA)];
    parts.extend(words::busy(records).map(|why| Part::List(vec![("Warning".into(), why)])));
    if panels.is_empty() {
        let what = "a model's workload beside another implementation in one run";
        parts.push(Part::missing(&[(what.into(), "msda bench --workload detr-encoder".into())]));
        return parts;
    }
    parts.push(Part::List(panels.iter().map(sentence).collect()));
    parts.push(Part::note(METHOD));
    if !panels.iter().flat_map(|p| &p.rows).any(|c| is_model(&c.ours.workload)) {
        parts.push(Part::note(NO_MODEL));
    }
    for (i, (title, charts)) in charts_of(&panels).into_iter().enumerate() {
        parts.extend(fold(
            &title,
            "time in one run, and divided by ours",
            i == 0,
            vec![Part::Charts(charts)],
        ));
    }
    parts
}

/// The headlines as lines of text, of one dtype per device and pass.
pub(in crate::report) fn headlines(records: &[Record]) -> Vec<String> {
    let mut panels = headline(records);
    // The main dtype comes first.
    panels.dedup_by(|b, a| (&a.processor, a.setting, a.pass) == (&b.processor, b.setting, b.pass));
    panels.iter().map(sentence).map(|(place, result)| format!("{place}: {result}")).collect()
}

/// The charts of all headlines.
pub(in crate::report) fn charts(records: &[Record]) -> Vec<Chart> {
    charts_of(&headline(records)).into_iter().flat_map(|(_, charts)| charts).collect()
}

/// The charts per processor and dtype: of each workload the forward pass, then the backward pass.
fn charts_of(panels: &[Panel<'_>]) -> Vec<(String, Vec<Chart>)> {
    let title = |p: &&Panel<'_>| format!("{}, {}{}", p.processor, p.dtype, p.setting.words());
    let of_panels = |(title, own): (String, Vec<&Panel<'_>>)| {
        let rows = own.iter().flat_map(|panel| &panel.rows);
        let rows = by_key(rows, |c| &c.ours.workload).into_iter().flat_map(|(_, rows)| rows);
        (title, rows.map(chart).collect())
    };
    by_key(panels, title).into_iter().map(of_panels).collect()
}

fn chart(c: &Comparison<'_>) -> Chart {
    let bar = |m: &Measurement, text: String, value, own| Bar { name: engine(&m.engine), value, text, own };
    let mut bars = vec![Bar { name: "msda".into(), ..bar(c.ours, time(c.ours), c.ours.time.median, true) }];
    bars.extend(c.others.iter().map(|o| match o.verdict {
        Verdict::Failed => bar(o.measured, "wrong result".into(), 0.0, false),
        _ => {
            let text = format!("{}, {}", time(o.measured), times(Some(o.ratio)));
            bar(o.measured, text, o.measured.time.median, false)
        }
    }));
    Chart { title: format!("{} {}, {}", c.ours.workload, c.ours.pass, c.ours.dtype), bars }
}

fn time(m: &Measurement) -> String {
    let (scale, unit) = unit(m.device);
    format!("{} {unit}", figure(m.time.median * scale))
}

/// A main result: where it holds, and the result.
fn sentence(panel: &Panel<'_>) -> (String, String) {
    let fastest: Vec<f64> = panel.rows.iter().filter_map(|c| Some(c.fastest()?.ratio)).collect();
    let torch: Vec<f64> = panel.rows.iter().filter_map(|c| Some(c.torch()?.ratio)).collect();
    let engines = panel.rows.iter().flat_map(|c| c.counted()).map(|o| o.measured.engine.as_str());
    let mut others = by_key(engines, |engine| implementation(engine));
    others.sort_by_cached_key(|(name, engines)| (order(engines[0]), name.clone()));
    let names: Vec<&str> = others.iter().map(|(name, _)| name.as_str()).collect();
    let result = match names.as_slice() {
        [one] => format!("{} {one}", speed(&fastest)),
        _ => format!("{} the fastest of {}", speed(&fastest), names.join(", ")),
    };
    let torch = match torch.is_empty() || names.len() < 2 {
        true => String::new(),
        false => format!(", {} torch", speed(&torch)),
    };
    let Panel { processor, pass, dtype, .. } = panel;
    (format!("{processor}, {pass}, {dtype}"), format!("{result}{torch}."))
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
