//! What bounds a kernel, in a sentence computed from its figures.

use std::collections::BTreeMap;

use msda_bench::record::Figure;

/// Percent of its peak from which a unit counts as the bound. Below it, time goes to waiting.
const BUSY: f64 = 60.0;
/// Units this many percent below the busiest one bound a kernel too.
const NEAR: f64 = 5.0;

/// A sentence for each kernel with counters.
pub fn conclusions(figures: &[Figure]) -> Vec<(String, String)> {
    let mut groups: Vec<(String, Metrics)> = Vec::new();
    for figure in figures.iter().filter(|f| !f.name.starts_with("analyze.sweep.")) {
        let (group, metric) = split(&figure.name);
        match groups.iter_mut().find(|(g, _)| *g == group) {
            Some((_, metrics)) => drop(metrics.insert(metric, figure.value)),
            None => groups.push((group, Metrics::from([(metric, figure.value)]))),
        }
    }
    let none = Metrics::new();
    let mut all = Vec::new();
    for (name, metrics) in &groups {
        let workload = name.split(' ').take(2).collect::<Vec<_>>().join(" ");
        let work = groups.iter().find(|(other, _)| *other == workload).map_or(&none, |(_, m)| m);
        all.extend(sentence(metrics, work).map(|sentence| (name.clone(), sentence)));
    }
    all
}

type Metrics = BTreeMap<String, f64>;

/// The busiest unit by the hardware's counters, or waiting.
fn sentence(kernel: &Metrics, work: &Metrics) -> Option<String> {
    let get = |name: &str| kernel.get(name).copied();
    let mut units: Vec<(&str, f64)> = [
        ("the L1 data path", get("data-path.measured")),
        ("instruction issue", get("issue.measured")),
        ("device memory", memory(kernel, work)),
    ]
    .into_iter()
    .filter_map(|(name, busy)| Some((name, busy?)))
    .collect();
    units.sort_by(|a, b| b.1.total_cmp(&a.1));
    let &(first, busiest) = units.first()?;
    let percent = |busy: f64| format!("{busy:.0} %");
    let others: Vec<String> =
        units[1..].iter().map(|(name, busy)| format!("{name} {}", percent(*busy))).collect();
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
    if busiest < BUSY {
        let waiting = match (get("stall-memory.measured"), get("occupancy.measured")) {
            (Some(stalled), Some(occupancy)) => format!(
                ". Per issued instruction {stalled:.1} warps wait for memory, at an occupancy of {}",
                percent(occupancy)
            ),
            _ => String::new(),
        };
        return Some(format!(
            "latency bounds it: the busiest unit is {first} at {} of its peak{others}{waiting}",
            percent(busiest)
        ));
    }
    let bounds: Vec<&str> =
        units.iter().filter(|(_, busy)| *busy >= busiest - NEAR).map(|(name, _)| *name).collect();
    let verb = if bounds.len() == 1 { "bounds" } else { "bound" };
    Some(format!("{} {verb} it: {first} at {} of its peak{others}", bounds.join(" and "), percent(busiest)))
}

/// Percent of the rate of a copy at which the kernel moves bytes of device memory.
fn memory(kernel: &Metrics, work: &Metrics) -> Option<f64> {
    let copy = work.get("compulsory")? / work.get("roof.copy.time")?;
    Some(100.0 * kernel.get("dram.measured")? / kernel.get("duration")? / copy)
}

/// The workload, or workload and kernel, that a figure belongs to, and its metric. The name of a
/// kernel has no dot.
fn split(name: &str) -> (String, String) {
    let words: Vec<&str> = name.split('.').collect();
    let of_workload = |word: &str| {
        ["taps", "rows", "reuse", "gathered", "compulsory", "operations", "intensity", "roof"].contains(&word)
    };
    let head = match words.as_slice() {
        [_, _, _, word, _, ..] if !of_workload(word) => 4,
        _ => 3,
    }
    .min(words.len().saturating_sub(1));
    (words[head.min(1)..head].join(" "), words[head..].join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: &[(&str, f64)]) -> Vec<Figure> {
        let figure = |&(name, value): &(&str, f64)| Figure {
            name: format!("analyze.seed.f16.{name}"),
            value,
            unit: String::new(),
        };
        all.iter().map(figure).collect()
    }

    const WORK: [(&str, f64); 2] = [("compulsory", 2.5e8), ("roof.copy.time", 60.0)];

    fn conclude(kernel: &[(&str, f64)]) -> String {
        let all = conclusions(&figures(&[&WORK, kernel].concat()));
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].0, "seed f16 k");
        all[0].1.clone()
    }

    #[test]
    fn names_are_split_into_groups() {
        for (name, group, metric) in [
            ("analyze.seed.f16.taps", "seed f16", "taps"),
            ("analyze.seed.f16.roof.copy.time", "seed f16", "roof.copy.time"),
            ("analyze.seed.f16.rows:sides=2.issue.measured", "seed f16 rows:sides=2", "issue.measured"),
        ] {
            assert_eq!(split(name), (group.into(), metric.into()), "{name}");
        }
    }

    #[test]
    fn the_busiest_unit_or_latency_bounds_a_kernel() {
        for (kernel, begins, contains) in [
            (
                &[("k.data-path.measured", 91.0), ("k.issue.measured", 76.0)][..],
                "the L1 data path bounds it: the L1 data path at 91 %",
                "instruction issue 76 %",
            ),
            (
                &[("k.data-path.measured", 78.0), ("k.issue.measured", 81.0)],
                "instruction issue and the L1 data path bound it",
                "81 %",
            ),
            // 2e9 bytes in 600 us are 80 % of a copy that moves 2.5e8 bytes in 60 us.
            (
                &[("k.issue.measured", 20.0), ("k.dram.measured", 2e9), ("k.duration", 600.0)],
                "device memory bounds it: device memory at 80 %",
                "20 %",
            ),
            (
                &[
                    ("k.data-path.measured", 24.0),
                    ("k.issue.measured", 30.0),
                    ("k.stall-memory.measured", 6.1),
                    ("k.occupancy.measured", 37.0),
                ],
                "latency bounds it: the busiest unit is instruction issue at 30 %",
                "6.1 warps wait for memory, at an occupancy of 37 %",
            ),
        ] {
            let said = conclude(kernel);
            assert!(said.starts_with(begins) && said.contains(contains), "{said}");
        }
    }

    #[test]
    fn without_counters_there_is_no_conclusion() {
        assert!(conclusions(&figures(&[("k.registers", 40.0), ("taps", 1.0)])).is_empty());
    }

    #[test]
    fn committed_counters_have_conclusions() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../records/h200/2026-11-16-counters.json");
        let record = msda_bench::record::Record::load(path.as_ref()).unwrap();
        let all = conclusions(&record.figures);
        assert!(all.len() > 10, "{all:?}");
        assert!(all.iter().all(|(_, said)| said.contains("of its peak")), "{all:#?}");
        let encoder = all.iter().find(|(name, _)| name == "detr-encoder f16 chosen");
        assert!(encoder.is_some(), "{all:#?}");
    }
}
