//! Measurements in groups that can be compared.

use std::collections::BTreeSet;

use super::Extension;
use super::number::{NONE, short};
use crate::engines;
use crate::record::{Device, Measurement, Pass, Record};

/// The measurements of one workload, setting and pass in one run.
pub(super) struct Group<'a> {
    pub workload: &'a str,
    pub setting: Setting,
    pub pass: Pass,
    /// By dtype, then threads, then fastest first.
    pub rows: Vec<Row<'a>>,
}

/// Times are comparable only with the same device and the same state of the caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// The device.
    pub device: Device,
    /// Whether the caches were cold before each run.
    pub cold: bool,
}

/// A measurement, with what follows from it.
pub struct Row<'a> {
    /// The measurement.
    pub measured: &'a Measurement,
}

/// The groups of a run: workloads in the order of measurement, the processor before the GPU,
/// forward before backward.
///
/// Two runs are never compared: they may come from different machines or days.
pub(super) fn groups(record: &Record) -> Vec<Group<'_>> {
    grouped(&record.measurements.iter().collect::<Vec<_>>())
}

/// The groups of a run without the engines that extensions show.
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
            let rows = members.into_iter().map(|measured| Row { measured }).collect();
            groups.push(Group { workload, setting, pass, rows });
        }
    }
    groups
}

/// Whether an engine is torch.
pub(super) fn is_torch(engine: &str) -> bool {
    engine == "torch" || engine.starts_with("torch-")
}

/// Whether an engine is the plain loop that others are compared with.
pub(super) fn is_plain(engine: &str) -> bool {
    engine == engines::Plain::NAME
}

/// Whether an engine is ours and chooses its kernel itself.
pub(super) fn is_own(engine: &str) -> bool {
    let ours = engine == "cpu" || engine.starts_with("cpu-") || engines::is_cuda(engine);
    ours && !is_pinned(engine)
}

/// Whether an engine is one of our kernels, selected by name or by an option that changes what it
/// computes.
pub(super) fn is_pinned(engine: &str) -> bool {
    let kernel = engine.strip_prefix("cuda").and_then(|rest| rest.split_once(':'));
    kernel.is_some_and(|(_, kernel)| !["half", "fixed"].contains(&kernel))
}

/// The position of a type in lists; known types come first.
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

    /// The setting as words after a name; empty for the processor with warm caches.
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
            // Types have their own column, so the key is cut before them.
            let key = row.measured.problem.as_str();
            let key = key.split_once(&format!("_{}", row.measured.dtype)).map_or(key, |(before, _)| before);
            if !key.is_empty() && !keys.contains(&key) {
                keys.push(key);
            }
        }
        keys.join(", ")
    }
}

impl Row<'_> {
    /// The median, if it is usable.
    pub fn median(&self) -> Option<f64> {
        positive(self.measured.time.median)
    }

    /// The floor divided by the median: 1 is the limit of the machine.
    pub fn reached(&self) -> Option<f64> {
        positive(self.measured.work.floor_ms / self.median()?)
    }

    /// GB/s of rows read through the caches.
    pub fn gathered_rate(&self) -> Option<f64> {
        positive(self.measured.work.gathered_bytes / self.median()? / 1e6)
    }

    /// The largest error divided by the tolerance.
    pub fn error_share(&self) -> Option<f64> {
        let check = &self.measured.check;
        if check.max_error == 0.0 {
            return Some(0.0);
        }
        positive(check.max_error / check.tolerance)
    }

    /// Whether the error is within the tolerance.
    pub fn within(&self) -> bool {
        self.measured.check.max_error <= self.measured.check.tolerance
    }

    /// Whether the error is outside the tolerance, of an engine that is held to it.
    pub fn is_wrong(&self) -> bool {
        !self.within() && !self.measured.check.inexact
    }

    /// The error divided by the tolerance: `0.3`; `~12` for an engine that may exceed 1, `2 over`
    /// for others.
    pub fn error_text(&self) -> String {
        let share = self.error_share().map_or(NONE.into(), short);
        match (self.measured.check.inexact, self.within()) {
            (true, _) => format!("~{share}"),
            (false, true) => share,
            (false, false) => format!("{share} over"),
        }
    }
}
