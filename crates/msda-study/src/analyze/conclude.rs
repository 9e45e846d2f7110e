//! What bounds a kernel, in a sentence computed from its figures.

use msda_bench::record::Figure;

/// Percent of its peak from which a unit counts as the bound. Below it, time goes to waiting.
const BUSY: f64 = 60.0;
/// Units this many percent below the busiest one bound a kernel too.
const NEAR: f64 = 5.0;

/// A sentence for each kernel with counters: `analyze.WORKLOAD.DTYPE.KERNEL.*`. The name of a
/// kernel has no dot.
pub fn conclusions(figures: &[Figure]) -> Vec<(String, String)> {
    let value = |name: &str| figures.iter().rfind(|f| f.name == name).map(|f| f.value);
    let counted = |f: &Figure| {
        let ends = [".data-path.measured", ".issue.measured", ".dram.measured"];
        ends.iter().find_map(|end| f.name.strip_suffix(end)).map(str::to_owned)
    };
    let mut kernels: Vec<String> = figures.iter().filter_map(counted).collect();
    kernels.dedup();
    let conclusion = |kernel: String| {
        let workload = kernel.rsplit_once('.')?.0;
        let of = |place: &str, metric: &str| value(&format!("{place}.{metric}"));
        let said = sentence(|metric| of(&kernel, metric), |metric| of(workload, metric))?;
        Some((kernel.trim_start_matches("analyze.").replace('.', " "), said))
    };
    kernels.into_iter().filter_map(conclusion).collect()
}

/// The busiest unit by the hardware's counters, or waiting.
fn sentence(get: impl Fn(&str) -> Option<f64>, work: impl Fn(&str) -> Option<f64>) -> Option<String> {
    // Percent of the rate of a copy at which the kernel moves bytes of device memory.
    let memory = || {
        let copy = work("compulsory")? / work("roof.copy.time")?;
        Some(100.0 * get("dram.measured")? / get("duration")? / copy)
    };
    let mut units: Vec<(&str, f64)> = [
        ("the L1 data path", get("data-path.measured")),
        ("instruction issue", get("issue.measured")),
        ("device memory", memory()),
    ]
    .into_iter()
    .filter_map(|(name, busy)| Some((name, busy?)))
    .collect();
    units.sort_by(|a, b| b.1.total_cmp(&a.1));
    let &(first, busiest) = units.first()?;
    let others: Vec<String> = units[1..].iter().map(|(name, busy)| format!("{name} {busy:.0} %")).collect();
    let others = if others.is_empty() { String::new() } else { format!("; {}", others.join(", ")) };
    let peak = format!("{first} at {busiest:.0} % of its peak{others}");
    if busiest < BUSY {
        let waiting = match (get("stall-memory.measured"), get("occupancy.measured")) {
            (Some(stalled), Some(occupancy)) => format!(
                ". Per issued instruction {stalled:.1} warps wait for memory, at an occupancy of {occupancy:.0} %"
            ),
            _ => String::new(),
        };
        return Some(format!("latency bounds it: the busiest unit is {peak}{waiting}"));
    }
    let near = units.iter().filter(|(_, busy)| *busy >= busiest - NEAR);
    let bounds: Vec<&str> = near.map(|(name, _)| *name).collect();
    let verb = if bounds.len() == 1 { "bounds" } else { "bound" };
    Some(format!("{} {verb} it: {peak}", bounds.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Figures from their names and values; `k` is a kernel.
    fn figures(all: &str) -> Vec<Figure> {
        let figure = |pair: &str| {
            let (name, value) = pair.split_once(' ').unwrap();
            let name = format!("analyze.seed.f16.{name}").replace(".k.", ".rows:sides=2.");
            Figure { name, value: value.parse().unwrap(), unit: String::new() }
        };
        all.split(", ").map(figure).collect()
    }

    fn conclude(kernel: &str) -> String {
        let all = conclusions(&figures(&format!("compulsory 2.5e8, roof.copy.time 60, {kernel}")));
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!(all[0].0, "seed f16 rows:sides=2");
        all[0].1.clone()
    }

    #[test]
    fn the_busiest_unit_or_latency_bounds_a_kernel() {
        for (kernel, begins, contains) in [
            (
                "k.data-path.measured 91, k.issue.measured 76",
                "the L1 data path bounds it: the L1 data path at 91 %",
                "instruction issue 76 %",
            ),
            (
                "k.data-path.measured 78, k.issue.measured 81",
                "instruction issue and the L1 data path bound it",
                "81 %",
            ),
            // 2e9 bytes in 600 us are 80 % of a copy that moves 2.5e8 bytes in 60 us.
            (
                "k.issue.measured 20, k.dram.measured 2e9, k.duration 600",
                "device memory bounds it: device memory at 80 %",
                "20 %",
            ),
            (
                "k.data-path.measured 24, k.issue.measured 30, k.stall-memory.measured 6.1, k.occupancy.measured 37",
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
        assert!(conclusions(&figures("k.registers 40, taps 1")).is_empty());
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
