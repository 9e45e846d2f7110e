//! Facts from records.

use std::collections::BTreeSet;

use msda_bench::record::{Ceiling, Device, Measurement, Source};
use msda_bench::report::distinct;
use msda_bench::work::COPY;

use super::shape::SEED;
use super::{CHOSEN, Facts};
use crate::engines::is_rung;

/// The theoretical peak of device memory in GB/s, by GPU, from NVIDIA's data sheets.
const MEMORY_PEAKS: [(&str, f64); 3] =
    [("NVIDIA H200", 4800.0), ("NVIDIA H100 80GB HBM3", 3350.0), ("NVIDIA GeForce RTX 5070", 672.0)];

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
pub(super) fn add(facts: &mut Facts, source: &Source, is_ladder: bool) {
    let record = &source.record;
    let machine = &record.machine;
    let name = machine.gpu.as_ref().map_or(&machine.cpu, |gpu| &gpu.name);
    let day = record.created.split('T').next().unwrap_or_default();
    let from = &format!("{}, {day}, {name}", source.label);

    facts.insert("machine.cores", machine.cores as f64, "", from);
    facts.insert("machine.memory", machine.memory_gib, "GiB", from);
    if let Some(gpu) = &machine.gpu {
        let clock = gpu.after.or(gpu.before).and_then(|state| state.clocks_mhz.sm);
        let known = [
            ("sms", gpu.sms.map(f64::from), ""),
            ("memory", Some(gpu.memory_bytes as f64), "B"),
            ("shared-per-block", gpu.shared_per_block.map(|n| n as f64), "B"),
            ("l2", gpu.l2_bytes.map(|n| n as f64), "B"),
            ("clock", clock.map(f64::from), "MHz"),
        ];
        for (name, value, unit) in known {
            facts.insert(format!("machine.gpu.{name}"), value.unwrap_or(f64::NAN), unit, from);
        }
        if let Some((_, peak)) = MEMORY_PEAKS.iter().find(|(name, _)| *name == gpu.name) {
            facts.insert("machine.gpu.memory-peak", *peak, "GB/s", "NVIDIA's data sheet");
        }
    }
    let most = |c: &Ceiling| {
        let same = record.ceilings.iter().filter(|o| o.name == c.name && o.device == c.device);
        same.map(|o| o.threads).max() == Some(c.threads)
    };
    for c in record.ceilings.iter().filter(|c| most(c)) {
        let unit = if c.name == msda_bench::work::FMA { "GFLOP/s" } else { "GB/s" };
        facts.insert(format!("ceiling.{}.{}.rate", c.device, c.name), c.rate, unit, from);
    }
    let most = |m: &Measurement| {
        let same = record.measurements.iter().filter(|o| place(o) == place(m));
        m.device == Device::Cuda || same.map(|o| o.threads).max() == Some(m.threads)
    };
    let copy = record.ceilings.iter().find(|c| c.name == COPY && c.device == Device::Cuda).map(|c| c.rate);
    for m in record.measurements.iter().filter(|m| most(m)) {
        if is_ladder || !is_rung(&m.engine) {
            add_measurement(facts, &place(m), m, copy, from);
        }
        if is_ladder && m.engine == "cuda" {
            let chosen = Measurement { engine: CHOSEN.into(), ..m.clone() };
            add_measurement(facts, &place(&chosen), m, copy, from);
        }
        // Both times come from one run, so a record that is no ladder may have it too.
        let seed = record.measurements.iter().find(|o| place(o) == place_of(SEED, m));
        if let Some((seed, rung)) = seed.zip(is_rung(&m.engine).then(|| m.engine.replacen("cuda:", "", 1)))
            && m.workload != SEED
        {
            let name = format!("ratio.{}.{}.{}.{rung}", m.workload, m.dtype, m.pass);
            facts.insert(name, m.time.median / seed.time.median, "x", from);
        }
    }
    let probes: BTreeSet<&str> = record.figures.iter().filter_map(|f| probe(&f.name)).collect();
    facts.0.retain(|name, _| probe(name).is_none_or(|probe| !probes.contains(probe)));
    for figure in &record.figures {
        facts.insert(&figure.name, figure.value, &figure.unit, from);
    }
    for figure in &record.figures {
        let percentile = |p: &str| facts.get(&format!("{}.{p}", figure.name)).map_or(f64::NAN, |f| f.value);
        let (low, high) = (percentile("p10"), percentile("p90"));
        facts.vary(&figure.name, low, high);
        // Rates vary as their time does.
        let Some(name) = figure.name.strip_suffix(".time") else { continue };
        for rate in ["rate", "loads", "efficiency"].map(|rate| format!("{name}.{rate}")) {
            if let Some(value) = facts.get(&rate).map(|fact| fact.value) {
                facts.vary(&rate, value * figure.value / high, value * figure.value / low);
            }
        }
    }
}

/// The name of a measurement. Of several numbers of threads the largest counts.
fn place(m: &Measurement) -> String {
    place_of(&m.workload, m)
}

/// The name of the same measurement on a workload.
fn place_of(workload: &str, m: &Measurement) -> String {
    format!("bench.{workload}.{}.{}.{}", m.dtype, m.pass, m.engine)
}

/// The probe that a figure belongs to.
fn probe(figure: &str) -> Option<&str> {
    figure.strip_prefix("probe.")?.split('.').next()
}

/// `copy` is the rate of a copy in the same run.
fn add_measurement(facts: &mut Facts, place: &str, m: &Measurement, copy: Option<f64>, from: &str) {
    let w = &m.work;
    // Numbers that follow from a time in milliseconds.
    let timed = |ms: f64| {
        let rate = w.compulsory_bytes / ms / 1e6;
        [
            ("time", ms * 1e3, "us"),
            ("flops", w.flops / ms / 1e9, "TFLOP/s"),
            ("rate", w.gathered_bytes / ms / 1e6, "GB/s"),
            ("compulsory-rate", rate, "GB/s"),
            ("copy-share", copy.map_or(f64::NAN, |copy| 100.0 * rate / copy), "%"),
        ]
    };
    let known = [
        ("p10", m.time.p10 * 1e3, "us"),
        ("p90", m.time.p90 * 1e3, "us"),
        ("flop", w.flops, "FLOP"),
        ("gathered", w.gathered_bytes, "B"),
        ("compulsory", w.compulsory_bytes, "B"),
        ("floor", if w.floor_ms > 0.0 { w.floor_ms * 1e3 } else { f64::NAN }, "us"),
        ("error", m.check.max_error, ""),
        ("allowed", m.check.tolerance, ""),
        ("compared", m.check.compared as f64, ""),
        ("launch", m.host_us.unwrap_or(f64::NAN), "us"),
    ];
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
    use crate::facts::{holds_ladder, today};

    #[test]
    fn a_measurement_has_time_and_rates() {
        let facts = Facts::of(&committed()).unwrap();
        let fact = |name: &str| facts.get(&format!("bench.seed.f16.forward.cuda.{name}")).unwrap().value;
        assert!((300.0..500.0).contains(&fact("time")), "{}", fact("time"));
        assert!((fact("flops") - fact("flop") / fact("time") / 1e6).abs() < 1e-9);
        assert!(fact("error") <= fact("allowed"));
        assert_eq!(facts.get("machine.gpu.sms").unwrap().value, 132.0);
        assert_eq!(facts.get("machine.gpu.memory-peak").unwrap().value, 4800.0);
        assert!(facts.get("ceiling.cuda.copy.rate").unwrap().from.contains("H200"));
        assert_eq!(gpus(&committed()), ["NVIDIA H200"]);
    }

    #[test]
    fn times_of_rungs_come_from_one_record() {
        let all = committed();
        let mut newer = all.iter().rfind(|s| holds_ladder(&today(&s.record))).unwrap().clone();
        (newer.label, newer.record.created) = ("newer".into(), "2999-01-01T00:00:00Z".into());
        // Newer still, but a few rungs only: it is no ladder.
        let mut few = newer.clone();
        (few.label, few.record.created) = ("few".into(), "2999-01-02T00:00:00Z".into());
        few.record.measurements.retain(|m| m.engine == "cuda" || m.engine.ends_with(":original"));
        let facts = Facts::of(&[all, vec![newer, few]].concat()).unwrap();
        let rungs: Vec<_> = facts.iter().filter(|(name, _)| name.contains("cuda:ladder:")).collect();
        assert!(rungs.len() > 100 && rungs.iter().all(|(_, fact)| fact.from.starts_with("newer")));
        let chosen = facts.get("bench.seed.f16.forward.cuda:ladder:chosen.time").unwrap();
        assert!(chosen.from.starts_with("newer"), "{chosen:?}");
        assert!(facts.get("bench.seed.f16.forward.cuda.time").unwrap().from.starts_with("few"));
        let share = facts.get("bench.seed.f16.forward.cuda:ladder:original.copy-share").unwrap().value;
        assert!((0.0..100.0).contains(&share), "{share}");
    }

    #[test]
    fn a_ratio_of_workloads_comes_from_one_record() {
        let all = committed();
        let name = "ratio.seed-ring-uniform.f16.forward.ladder:persistent_full";
        let ratio = Facts::of(&all).unwrap().get(name).unwrap().clone();
        let from = |s: &&Source| ratio.from.starts_with(&format!("{},", s.label));
        let record = &all.iter().find(from).unwrap().record;
        let time = |workload: &str| {
            let own = |m: &&Measurement| m.workload == workload && m.engine.ends_with(":persistent_full");
            record.measurements.iter().find(own).unwrap().time.median
        };
        assert_eq!(ratio.value, time("seed-ring-uniform") / time("seed"));
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
    fn the_newest_record_and_the_most_threads_count() {
        let mut all = committed();
        let mut newer = all[0].clone();
        newer.record.created = "2999-01-01T00:00:00Z".into();
        newer.record.figures = vec![Figure { name: "probe.x".into(), value: 2.0, unit: "us".into() }];
        let mut older = newer.clone();
        older.record.created = "1999-01-01T00:00:00Z".into();
        older.record.figures[0].value = 1.0;
        all.splice(0..0, [newer, older]);
        let facts = Facts::of(&all).unwrap();
        assert_eq!(facts.get("probe.x").unwrap().value, 2.0);
        // The run has one and two threads.
        let mut cpu = committed();
        cpu.retain(|s| s.label.ends_with("records/xeon-avx512-2core/2026-11-15-cpu.json"));
        let name = "bench.seed-encoder.f32.forward.cpu-avx512.time";
        let time = Facts::of(&cpu).unwrap().get(name).unwrap().value;
        let two = cpu[0].record.measurements.iter().find(|m| place(m) + ".time" == name && m.threads == 2);
        assert_eq!(time, two.unwrap().time.median * 1e3);
    }
}
