//! Facts from records.

use std::collections::BTreeSet;

use msda_bench::record::{Device, Measurement, Record, Source};
use msda_bench::report::distinct;
use msda_bench::work::COPY;

use super::Facts;
use super::shape::{Bytes, OUTPUTS};
use crate::engines::is_rung;
use crate::ladder::RUNGS;

/// The engine that msda chooses, as a member of the ladder: its time in the ladder's run.
pub const CHOSEN: &str = "cuda:ladder:chosen";

/// The theoretical peak of device memory in GB/s, by GPU, from NVIDIA's data sheets.
const MEMORY_PEAKS: [(&str, f64); 3] =
    [("NVIDIA H200", 4800.0), ("NVIDIA H100 80GB HBM3", 3350.0), ("NVIDIA GeForce RTX 5070", 672.0)];

/// Whether a record has at least a third of the rungs on one workload. A ratio of times from two
/// runs compares clocks and drivers too, so facts about rungs come from one such record.
pub fn holds_ladder(record: &Record) -> bool {
    let rungs = || record.measurements.iter().filter(|m| is_rung(&m.engine));
    let alike = |m: &Measurement| {
        rungs().filter(|o| (&o.workload, &o.dtype, o.pass) == (&m.workload, &m.dtype, m.pass)).count()
    };
    rungs().next().is_some_and(|m| 3 * alike(m) >= RUNGS.len())
}

/// The newest record that holds the ladder.
pub fn newest_ladder(sources: &[Source]) -> Option<&Source> {
    let ladders = sources.iter().filter(|source| holds_ladder(&source.record));
    ladders.max_by(|a, b| a.record.created.cmp(&b.record.created))
}

/// The GPUs of the records, that of the newest record first.
pub fn gpus(sources: &[Source]) -> Vec<String> {
    let mut newest_first: Vec<&Source> = sources.iter().collect();
    newest_first.sort_by(|a, b| b.record.created.cmp(&a.record.created));
    let gpu = |source: &Source| Some(source.record.machine.gpu.as_ref()?.name.clone());
    distinct(newest_first.into_iter().filter_map(gpu))
}

/// The records of one GPU, and those without a GPU. Ratios between GPUs say nothing about kernels.
pub fn of_gpu(sources: &[Source], gpu: Option<&str>) -> Vec<Source> {
    let own = |s: &&Source| s.record.machine.gpu.as_ref().is_none_or(|own| Some(own.name.as_str()) == gpu);
    sources.iter().filter(own).cloned().collect()
}

/// Adds the facts of a record. Times of rungs are added if it is the run of the ladder.
pub(super) fn add(facts: &mut Facts, source: &Source, is_ladder: bool, bytes: Bytes) {
    let record = &source.record;
    let machine = &record.machine;
    let name = machine.gpu.as_ref().map_or(&machine.cpu, |gpu| &gpu.name);
    let day = record.created.split('T').next().unwrap_or_default();
    let from = &format!("{}, {day}, {name}", source.label);

    if let Some((_, peak)) = MEMORY_PEAKS.iter().find(|(gpu, _)| gpu == name) {
        facts.insert("machine.memory-peak", *peak, "GB/s", "NVIDIA's data sheet");
    }
    let copy = record.ceilings.iter().find(|c| c.name == COPY && c.device == Device::Cuda).map(|c| c.rate);
    for m in record.measurements.iter().filter(|_| is_ladder) {
        let engine = if m.engine == "cuda" { CHOSEN } else { &m.engine };
        let place = format!("bench.{}.{}.{}.{engine}", m.workload, m.dtype, m.pass);
        let moved = if m.workload.contains("bare") { bytes.bare } else { bytes.ringed };
        add_measurement(facts, &place, m, moved, copy, from);
    }
    let probes: BTreeSet<&str> = record.figures.iter().filter_map(|f| probe(&f.name)).collect();
    facts.0.retain(|name, _| probe(name).is_none_or(|probe| !probes.contains(probe)));
    for figure in &record.figures {
        facts.insert(&figure.name, figure.value, &figure.unit, from);
        if let Some(name) = figure.name.strip_suffix(".rate").filter(|_| figure.unit == "GB/s") {
            facts.insert(format!("{name}.gib"), figure.value * 1e9 / 1024f64.powi(3), "GiB/s", from);
        }
    }
    for figure in &record.figures {
        let percentile = |p: &str| facts.get(&format!("{}.{p}", figure.name)).map_or(f64::NAN, |f| f.value);
        let (low, high) = (percentile("p10"), percentile("p90"));
        facts.vary(&figure.name, low, high);
        // Rates vary as their time does.
        let Some(name) = figure.name.strip_suffix(".time") else { continue };
        for rate in ["rate", "gib", "loads", "efficiency"].map(|rate| format!("{name}.{rate}")) {
            if let Some(value) = facts.get(&rate).map(|fact| fact.value) {
                facts.vary(&rate, value * figure.value / high, value * figure.value / low);
            }
        }
    }
}

/// The probe that a figure belongs to.
fn probe(figure: &str) -> Option<&str> {
    figure.strip_prefix("probe.")?.split('.').next()
}

/// Adds a time and what follows from it. `moved` are the bytes of all tensors of the seed shape,
/// `copy` is the rate of a copy in the same run.
fn add_measurement(
    facts: &mut Facts,
    place: &str,
    m: &Measurement,
    moved: f64,
    copy: Option<f64>,
    from: &str,
) {
    let w = &m.work;
    let copy = copy.unwrap_or(f64::NAN);
    // Numbers that follow from a time in milliseconds.
    let timed = |ms: f64| {
        [
            ("time", ms * 1e3, "us"),
            // The documents count 10 operations per sample and channel, 320 per output, and the
            // bytes of every tensor once.
            ("tflops", 320.0 * OUTPUTS / ms / 1e9, "TFLOP/s"),
            ("moved", moved / ms / 1e6, "GB/s"),
            ("copy-share", 100.0 * w.compulsory_bytes / ms / 1e6 / copy, "%"),
            ("floor-share", if w.floor_ms > 0.0 { 100.0 * w.floor_ms / ms } else { f64::NAN }, "%"),
        ]
    };
    let known = [("error", m.check.max_error, ""), ("allowed", m.check.tolerance, "")];
    for (name, value, unit) in timed(m.time.median).into_iter().chain(known) {
        facts.insert(format!("{place}.{name}"), value, unit, from);
    }
    for ((name, fast, _), (_, slow, _)) in timed(m.time.p10).into_iter().zip(timed(m.time.p90)) {
        facts.vary(&format!("{place}.{name}"), fast, slow);
    }
}

#[cfg(test)]
mod tests {
    use msda_bench::record::Figure;

    use super::*;
    use crate::facts::tests::committed;

    #[test]
    fn a_measurement_has_time_and_rates() {
        let facts = Facts::of(&committed()).unwrap();
        let fact = |name: &str| facts.get(&format!("bench.seed.f16.forward.{CHOSEN}.{name}")).unwrap().value;
        assert!((300.0..500.0).contains(&fact("time")), "{}", fact("time"));
        assert!((fact("tflops") - 320.0 * OUTPUTS / fact("time") / 1e6).abs() < 1e-9);
        assert!((0.0..100.0).contains(&fact("copy-share")) && (0.0..100.0).contains(&fact("floor-share")));
        assert!(fact("error") <= fact("allowed"));
        assert_eq!(facts.get("machine.memory-peak").unwrap().value, 4800.0);
        assert_eq!(gpus(&committed()), ["NVIDIA H200"]);
    }

    #[test]
    fn times_of_rungs_come_from_one_record() {
        let all = committed();
        let mut newer = all.iter().rfind(|s| holds_ladder(&s.record)).unwrap().clone();
        (newer.label, newer.record.created) = ("newer".into(), "2999-01-01T00:00:00Z".into());
        // Newer still, but a few rungs only: it is no ladder.
        let mut few = newer.clone();
        (few.label, few.record.created) = ("few".into(), "2999-01-02T00:00:00Z".into());
        few.record.measurements.retain(|m| m.engine == "cuda" || m.engine.ends_with(":original"));
        let facts = Facts::of(&[all, vec![newer, few]].concat()).unwrap();
        let rungs: Vec<_> = facts.iter().filter(|(name, _)| name.contains("cuda:ladder:")).collect();
        assert!(rungs.len() > 100 && rungs.iter().all(|(_, fact)| fact.from.starts_with("newer")));
    }

    #[test]
    fn figures_of_a_probe_come_from_one_record() {
        let mut old = committed().remove(0);
        let figure = |name: &str| Figure { name: name.into(), value: 1.0, unit: String::new() };
        old.record.figures = ["probe.banks.a", "probe.banks.b", "probe.clusters.a"].map(figure).into();
        let mut new = old.clone();
        (old.record.created, new.record.created) = ("1999".into(), "2000".into());
        new.record.figures.retain(|f| f.name == "probe.banks.a");
        let facts = Facts::of(&[new, old]).unwrap();
        let there =
            ["probe.banks.a", "probe.banks.b", "probe.clusters.a"].map(|name| facts.get(name).is_some());
        assert_eq!(there, [true, false, true]);
    }

    #[test]
    fn a_rate_varies_as_its_time_does() {
        let facts = Facts::of(&committed()).unwrap();
        let fact = |name: &str| facts.get(&format!("probe.tma-tile.queries-1000.tma-64.{name}")).unwrap();
        let (time, rate) = (fact("time"), fact("rate"));
        let ((fast, slow), (low, high)) = (time.range.unwrap(), rate.range.unwrap());
        for (us, rate) in [(slow, low), (time.value, rate.value), (fast, high)] {
            assert!((us * rate / (time.value * fact("rate").value) - 1.0).abs() < 1e-9);
        }
    }

    #[test]
    fn the_newest_record_counts() {
        let mut newer = committed().remove(0);
        newer.record.created = "2999-01-01T00:00:00Z".into();
        newer.record.figures = vec![Figure { name: "probe.x".into(), value: 2.0, unit: "us".into() }];
        let mut older = newer.clone();
        older.record.created = "1999-01-01T00:00:00Z".into();
        older.record.figures[0].value = 1.0;
        assert_eq!(Facts::of(&[newer, older]).unwrap().get("probe.x").unwrap().value, 2.0);
    }
}
