//! Measurements side by side, and which is compared with which.

use std::collections::BTreeSet;

use super::Extension;
use super::number::{NONE, short};
use crate::engines::peers;
use crate::record::{Device, Measurement, Pass, Record};

/// The measurements of one workload, setting and pass in one run.
pub(super) struct Group<'a> {
    pub workload: &'a str,
    pub setting: Setting,
    pub pass: Pass,
    /// By dtype, then threads, then fastest first.
    pub rows: Vec<Row<'a>>,
}

/// What times must share to be comparable: the device, and whether runs began with cold caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// Where it was computed.
    pub device: Device,
    /// Whether every run began with cold caches.
    pub cold: bool,
}

/// A measurement and what it is compared with.
pub struct Row<'a> {
    /// The measurement.
    pub measured: &'a Measurement,
    /// None where no time of the group can be divided by.
    pub baseline: Option<&'a Measurement>,
}

/// The groups of a run, workloads in the order they were measured, the processor before the GPU, forward before backward.
///
/// Runs are never compared with each other: they may come from other machines or other days.
pub(super) fn groups(record: &Record) -> Vec<Group<'_>> {
    grouped(&record.measurements.iter().collect::<Vec<_>>())
}

/// The groups of a run without engines that extensions show.
pub(super) fn workloads<'a>(record: &'a Record, extensions: &[Box<dyn Extension>]) -> Vec<Group<'a>> {
    let shown = |m: &&Measurement| extensions.iter().any(|e| e.shows(&m.engine));
    grouped(&record.measurements.iter().filter(|m| !shown(m)).collect::<Vec<_>>())
}

fn grouped<'a>(measurements: &[&'a Measurement]) -> Vec<Group<'a>> {
    let mut names: Vec<&str> = Vec::new();
    for m in measurements {
        if !names.contains(&m.workload.as_str()) {
            names.push(&m.workload);
        }
    }
    let mut groups = Vec::new();
    let all = || measurements.iter().copied();
    for workload in names {
        let settings: BTreeSet<Setting> = all().filter(|m| m.workload == workload).map(Setting::of).collect();
        let kinds = settings.into_iter().flat_map(|s| [Pass::Forward, Pass::Backward].map(|pass| (s, pass)));
        for (setting, pass) in kinds {
            let mut members: Vec<&Measurement> = all()
                .filter(|m| m.workload == workload && m.pass == pass && Setting::of(m) == setting)
                .collect();
            if members.is_empty() {
                continue;
            }
            members.sort_by(|a, b| {
                dtype_order(&a.dtype)
                    .cmp(&dtype_order(&b.dtype))
                    .then(a.threads.cmp(&b.threads))
                    .then(a.time.median.total_cmp(&b.time.median))
            });
            let rows =
                members.iter().map(|&m| Row { measured: m, baseline: baseline(m, &members) }).collect();
            groups.push(Group { workload, setting, pass, rows });
        }
    }
    groups
}

/// Torch of the same dtype, else torch f32, else the slowest engine of the processor; with the same threads where it can
/// be.
fn baseline<'a>(row: &Measurement, members: &[&'a Measurement]) -> Option<&'a Measurement> {
    let usable = || members.iter().copied().filter(|m| positive(m.time.median).is_some());
    let torch = |dtype: &str| {
        usable().filter(|m| is_torch(&m.engine) && m.dtype == dtype).min_by(|a, b| {
            // Other thread counts stand in only where the row's own is missing, the largest first.
            let key = |m: &Measurement| (m.threads != row.threads, std::cmp::Reverse(m.threads));
            key(a).cmp(&key(b)).then(a.time.median.total_cmp(&b.time.median))
        })
    };
    torch(&row.dtype).or_else(|| torch("f32")).or_else(|| {
        usable()
            .filter(|m| m.dtype == row.dtype && m.threads == row.threads && m.device == Device::Cpu)
            .max_by(|a, b| a.time.median.total_cmp(&b.time.median))
    })
}

/// Whether an engine is the framework that others are compared with.
pub(super) fn is_torch(engine: &str) -> bool {
    engine == "torch" || engine.starts_with("torch-")
}

/// Whether an engine is the plain loop that others are compared with.
pub(super) fn is_plain(engine: &str) -> bool {
    engine == crate::engines::Plain::NAME
}

/// Whether an engine is what a call of this project runs: a kernel pinned by name is for comparison.
pub(super) fn is_own(engine: &str) -> bool {
    !is_torch(engine) && !is_plain(engine) && !is_peer(engine) && !is_pinned(engine)
}

/// Whether an engine is one kernel of ours, pinned by its name, instead of the kernel that a call gets.
pub(super) fn is_pinned(engine: &str) -> bool {
    let kernel = engine.strip_prefix("cuda").and_then(|rest| rest.split_once(':'));
    kernel.is_some_and(|(_, kernel)| !["half", "fixed"].contains(&kernel))
}

/// Whether an engine is another implementation.
pub(super) fn is_peer(engine: &str) -> bool {
    engine.starts_with(peers::PREFIX)
}

/// Where a type stands in lists, known ones first.
pub fn dtype_order(dtype: &str) -> (usize, &str) {
    let known = ["f64", "f32", "f16", "bf16"];
    (known.iter().position(|&k| k == dtype).unwrap_or(known.len()), dtype)
}

/// The value, if it is finite and above zero.
pub fn positive(value: f64) -> Option<f64> {
    (value.is_finite() && value > 0.0).then_some(value)
}

impl Setting {
    /// The setting of a measurement.
    pub fn of(m: &Measurement) -> Self {
        Self { device: m.device, cold: m.cold }
    }

    /// In words, to stand after a name; nothing for what is usual.
    pub fn words(self) -> &'static str {
        match (self.device, self.cold) {
            (Device::Cpu, false) => "",
            (Device::Cpu, true) => ", cold caches",
            (Device::Cuda, false) => " on the GPU",
            (Device::Cuda, true) => " on the GPU, cold caches",
        }
    }
}

impl Group<'_> {
    /// Workload, pass and setting: `seed-encoder forward on the GPU, cold caches`.
    pub(super) fn title(&self) -> String {
        format!("{} {}{}", self.workload, self.pass, self.setting.words())
    }

    /// The problems' keys without their types, each once.
    pub(super) fn problems(&self) -> String {
        let mut keys: Vec<&str> = Vec::new();
        for row in &self.rows {
            // Types have a column of their own: what is before them says which problem it is.
            let key = row.measured.problem.as_str();
            let key = key.split_once(&format!("_{}", row.measured.dtype)).map_or(key, |(before, _)| before);
            if !key.is_empty() && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.join(", ")
    }

    /// Which baselines the speed-ups of the group are over, in words.
    pub(super) fn baseline_note(&self) -> String {
        let mut found: Vec<(String, Vec<&str>)> = Vec::new();
        for row in &self.rows {
            let Some(base) = row.baseline else { continue };
            let mut label = if !is_torch(&base.engine) {
                "the slowest engine of the same dtype and threads".into()
            } else if base.dtype == row.measured.dtype {
                format!("{} of the same dtype", base.engine)
            } else {
                format!("{} {}", base.engine, base.dtype)
            };
            if base.threads != row.measured.threads {
                label += &format!(" with {}", threads(base.threads));
            }
            let dtype = row.measured.dtype.as_str();
            match found.iter_mut().find(|(l, _)| *l == label) {
                Some((_, dtypes)) if dtypes.contains(&dtype) => {}
                Some((_, dtypes)) => dtypes.push(dtype),
                None => found.push((label, vec![dtype])),
            }
        }
        match found.as_slice() {
            [] if self.setting.device == Device::Cuda => "nothing: torch-cuda was not measured".into(),
            [] => "nothing: no usable time".into(),
            [(label, _)] => label.clone(),
            many => {
                let parts: Vec<String> =
                    many.iter().map(|(label, dtypes)| format!("{label} ({})", dtypes.join(", "))).collect();
                parts.join("; ")
            }
        }
    }
}

impl Row<'_> {
    /// The median, if it can be divided by.
    pub fn median(&self) -> Option<f64> {
        positive(self.measured.time.median)
    }

    /// Whether the row is what others are compared with.
    pub fn is_baseline(&self) -> bool {
        self.baseline.is_some_and(|b| std::ptr::eq(b, self.measured))
    }

    /// How many times faster than the baseline.
    pub fn speedup(&self) -> Option<f64> {
        positive(self.baseline?.time.median / self.median()?)
    }

    /// How many times faster than torch; none where the row is not ours, or torch was not measured.
    pub fn over_torch(&self) -> Option<f64> {
        let torch = is_torch(&self.baseline?.engine) && is_own(&self.measured.engine);
        self.speedup().filter(|_| torch)
    }

    /// The share of the floor that is reached: 1 is as fast as the machine can go.
    pub fn reached(&self) -> Option<f64> {
        positive(self.measured.work.floor_ms / self.median()?)
    }

    /// GB/s of rows read through the caches.
    pub fn gathered_rate(&self) -> Option<f64> {
        positive(self.measured.work.gathered_bytes / self.median()? / 1e6)
    }

    /// GFLOP/s.
    pub fn flop_rate(&self) -> Option<f64> {
        positive(self.measured.work.flops / self.median()? / 1e6)
    }

    /// FLOP per byte gathered.
    pub fn intensity(&self) -> Option<f64> {
        positive(self.measured.work.flops / self.measured.work.gathered_bytes)
    }

    /// The largest error as a fraction of what was allowed.
    pub fn error_share(&self) -> Option<f64> {
        let check = &self.measured.check;
        if check.max_error == 0.0 {
            return Some(0.0);
        }
        positive(check.max_error / check.tolerance)
    }

    /// Whether the result was as right as it has to be.
    pub fn within(&self) -> bool {
        self.measured.check.max_error <= self.measured.check.tolerance
    }

    /// Whether the result is outside the tolerance and has no leave to be.
    pub fn is_wrong(&self) -> bool {
        !self.within() && !self.measured.check.inexact
    }

    /// The error over the tolerance: `0.3`; `~12` where it may exceed it, `2 over` where it may not.
    pub fn error_text(&self) -> String {
        let share = self.error_share().map_or(NONE.into(), short);
        match (self.measured.check.inexact, self.within()) {
            (true, _) => format!("~{share}"),
            (false, true) => share,
            (false, false) => format!("{share} over"),
        }
    }

    /// The baseline by name, with its threads where they differ from the row's.
    pub fn baseline_name(&self) -> Option<String> {
        let base = self.baseline?;
        let mut name = format!("{} {}", base.engine, base.dtype);
        if base.threads != self.measured.threads {
            name += &format!(", {}", threads(base.threads));
        }
        Some(name)
    }

    /// Engine, dtype and, on the processor, threads: `cpu-avx512 f16, 2 threads`.
    pub fn name(&self) -> String {
        let m = self.measured;
        match m.device {
            Device::Cpu => format!("{} {}, {}", m.engine, m.dtype, threads(m.threads)),
            Device::Cuda => format!("{} {}", m.engine, m.dtype),
        }
    }
}

/// `1 thread`, `2 threads`.
pub(super) fn threads(n: usize) -> String {
    super::number::count(n, "thread")
}
