//! Runs and machines in sentences.

use super::compare::{Verdict, comparisons, verdict};
use super::distinct;
use super::group::{Group, is_own};
use super::names::{self, engine, place};
use super::number::{count, figure, percent, short, times};
use crate::record::{Device, Gpu, GpuState, Machine, Measurement, Record};

/// A few words, and the evidence.
type Finding = (String, String);

/// The findings of a run that its table does not show at a glance; losses first.
pub(super) fn findings(run: &Record, groups: &[Group<'_>]) -> Vec<Finding> {
    let mut all: Vec<Finding> = losses(run).into_iter().collect();
    for device in [Device::Cuda, Device::Cpu] {
        all.extend(floor(groups, device));
    }
    all.push(checks(run, groups));
    all
}

/// The state of a machine during a run, in one line.
pub(super) fn about(run: &Record) -> String {
    let mut parts = vec![count(run.measurements.len(), "time"), format!("msda {}", run.version)];
    parts.extend(run.machine.torch.as_ref().map(|v| format!("torch {v}")));
    parts.extend(run.machine.load.map(|load| format!("load {:.2} per core", load.per_core)));
    parts.extend(run.machine.gpu.iter().flat_map(states));
    parts.join(", ")
}

/// A warning if runs were made on a busy machine.
pub(super) fn busy(records: &[Record]) -> Option<String> {
    let busy = |r: &&Record| r.machine.load.is_some_and(|load| load.busy) && !r.measurements.is_empty();
    let runs: Vec<String> = records
        .iter()
        .filter(busy)
        .map(|r| format!("{} ({})", names::date(r), names::cpu(&r.machine)))
        .collect();
    (!runs.is_empty()).then(|| {
        let n = count(runs.len(), "run");
        format!("{n} made on a busy machine, so times may be too long and ratios off: {}.", runs.join("; "))
    })
}

/// The machine below its name, in one line.
pub(super) fn machine_note(m: &Machine) -> String {
    let mut parts = Vec::new();
    if let Some(gpu) = &m.gpu {
        parts.extend(gpu.sms.map(|n| format!("{n} SMs")));
        parts.push(format!("{} GiB", figure(gpu.memory_bytes as f64 / f64::from(1 << 30))));
        parts.push(format!("driver {}", gpu.driver));
        parts.push(names::cpu(m));
    }
    parts.extend(super::group::positive(m.memory_gib).map(|gib| format!("{} GiB", figure(gib))));
    parts.push(m.os.clone());
    parts.push(m.isas.join(" "));
    parts.retain(|p| !p.is_empty());
    parts.join(", ")
}

/// The sensors of a GPU before and after a run.
fn states(gpu: &Gpu) -> impl Iterator<Item = String> {
    let all = [("before", &gpu.before), ("after", &gpu.after)];
    all.into_iter().filter_map(|(when, state)| Some(format!("{when}: {}", state.as_ref().and_then(sensors)?)))
}

fn sensors(state: &GpuState) -> Option<String> {
    let all = [
        state.clocks_mhz.sm.map(|mhz| format!("{mhz} MHz")),
        state.clocks_mhz.memory.map(|mhz| format!("memory {mhz} MHz")),
        state.temperature_c.map(|degrees| format!("{degrees} C")),
        state.power_w.filter(|w| w.is_finite()).map(|watts| format!("{watts:.0} W")),
    ];
    let all: Vec<String> = all.into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Comparisons in which another implementation is faster.
fn losses(run: &Record) -> Option<Finding> {
    let all = comparisons(run);
    let fastest: Vec<_> = all.iter().filter_map(|c| Some((c, c.fastest()?))).collect();
    if fastest.is_empty() {
        return None;
    }
    let slower = fastest.iter().filter(|(_, other)| other.ratio < 1.0);
    let Some((c, other)) = slower.clone().min_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio)) else {
        return Some((
            match fastest.len() {
                1 => "Faster in the one comparison".into(),
                n => format!("Faster in all {n} comparisons"),
            },
            "with the fastest other implementation per workload, pass and dtype".into(),
        ));
    };
    let Measurement { workload, pass, dtype, .. } = c.ours;
    let (name, ratio) = (engine(&other.measured.engine), times(Some(other.ratio)));
    Some((
        format!("Slower in {} of {}", slower.count(), count(fastest.len(), "comparison")),
        format!("most of all on {workload} {pass} {dtype}: {name} takes {ratio} our time"),
    ))
}

/// How near our fastest times are to the limit of the machine.
fn floor(groups: &[Group<'_>], device: Device) -> Option<Finding> {
    let best = |g: &Group<'_>| {
        let ours = g.rows.iter().filter(|m| is_own(&m.engine) && m.within());
        ours.filter_map(|m| m.reached()).max_by(f64::total_cmp)
    };
    let mut shares: Vec<f64> =
        groups.iter().filter(|g| g.setting.device == device).filter_map(best).collect();
    shares.sort_by(f64::total_cmp);
    let (lo, hi) = (shares.first()?, shares.last()?);
    let [lo, middle, hi] = [*lo, shares[shares.len() / 2], *hi].map(|share| percent(Some(share)));
    Some((
        format!("{lo} to {hi} of the speed that the limits of the {} allow", place(device)),
        format!("our fastest engine on each workload and pass, median {middle}"),
    ))
}

/// How many results passed their check, and which failed.
fn checks(run: &Record, groups: &[Group<'_>]) -> Finding {
    let all: Vec<(&Measurement, Verdict)> =
        groups.iter().flat_map(|g| &g.rows).map(|m| (*m, verdict(run, m))).collect();
    let of = |wanted: Verdict| all.iter().filter(move |(_, v)| *v == wanted).map(|(m, _)| *m);
    let total = all.len();
    let (failed, rounded) = (of(Verdict::Failed).count(), of(Verdict::Rounded).count());
    let mut parts = Vec::new();
    if failed > 0 {
        let names = of(Verdict::Failed).map(|m| format!("{} {}", engine(&m.engine), m.pass));
        parts.push(distinct(names).join(", "));
    }
    if rounded > 0 {
        parts.push(format!("{rounded} outside the tolerance because of 16-bit rounding"));
    }
    let errors = of(Verdict::Passed).map(|m| m.check.max_error / m.check.tolerance).filter(|e| e.is_finite());
    if let Some(worst) = errors.max_by(f64::total_cmp) {
        let others = if failed + rounded > 0 { " of the others" } else { "" };
        parts.push(format!("the largest error{others} is {} of the tolerance", short(worst)));
    }
    let lead = match (failed, rounded) {
        (0, 0) => format!("All {total} results passed their check"),
        (0, _) => format!("None of {total} results failed its check"),
        _ => format!("{failed} of {total} results failed their check"),
    };
    (lead, parts.join("; "))
}
