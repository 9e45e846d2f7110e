//! Measurements in groups that can be compared.

use super::number::{NONE, figure, short};
use super::{Extensions, by_key, distinct};
use crate::engines::{self, external::OURS};
use crate::record::{Device, Measurement, Pass, Record};

/// The measurements of one workload, setting and pass in one run.
pub(super) struct Group<'a> {
    pub workload: &'a str,
    pub setting: Setting,
    pub pass: Pass,
    /// By dtype, then threads, then fastest first.
    pub rows: Vec<&'a Measurement>,
}

/// Times are comparable only with the same device and the same state of the caches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Setting {
    /// The device.
    pub device: Device,
    /// Whether the caches were cold before each run.
    pub cold: bool,
}

/// The groups of a run without the engines that extensions show: workloads in the order of
/// measurement, the processor before the GPU, forward before backward.
///
/// Two runs are never compared: they may come from different machines or days.
pub(super) fn workloads<'a>(record: &'a Record, extensions: &Extensions) -> Vec<Group<'a>> {
    let own = record.measurements.iter().filter(|m| !extensions.iter().any(|e| e.shows(&m.engine)));
    let mut groups = Vec::new();
    for (workload, own) in by_key(own, |m| m.workload.as_str()) {
        let mut kinds = by_key(own, |m| (Setting::of(m), m.pass));
        kinds.sort_by_key(|(kind, _)| *kind);
        for ((setting, pass), mut rows) in kinds {
            rows.sort_by(|a, b| {
                let order = |m: &'a Measurement| (dtype_order(&m.dtype), m.threads);
                order(a).cmp(&order(b)).then(a.time.median.total_cmp(&b.time.median))
            });
            groups.push(Group { workload, setting, pass, rows });
        }
    }
    groups
}

/// Whether an engine is torch.
pub(super) fn is_torch(engine: &str) -> bool {
    engine == "torch" || engine.starts_with("torch-")
}

/// Whether an engine is ours and chooses its kernel itself.
pub(super) fn is_own(engine: &str) -> bool {
    let ours = ["cpu", OURS].contains(&engine) || engine.starts_with("cpu-") || engines::is_cuda(engine);
    ours && !is_pinned(engine) && engine != engines::BASELINE
}

/// Whether two engines were timed in the same rounds: both in this program, or both by Python
/// beside `msda`. Runs without `msda` have one method for all.
pub(super) fn in_same_rounds(run: &Record, a: &Measurement, b: &Measurement) -> bool {
    let by_python =
        |m: &Measurement| m.engine == OURS || is_torch(&m.engine) || m.engine.starts_with("peer:");
    !run.measurements.iter().any(|m| m.engine == OURS) || by_python(a) == by_python(b)
}

/// Whether an engine is one of our kernels, selected by name or by an option that changes what it
/// computes.
pub(super) fn is_pinned(engine: &str) -> bool {
    engine.starts_with("cuda") && engine.contains(':')
}

/// The position of a type in lists; known types come first.
pub fn dtype_order(dtype: &str) -> (usize, &str) {
    let known = ["f64", "f32", "f16", "bf16"];
    (known.iter().position(|&k| k == dtype).unwrap_or(known.len()), dtype)
}

/// How milliseconds become the unit of a device's times, and that unit.
pub(super) fn unit(device: Device) -> (f64, &'static str) {
    match device {
        Device::Cuda => (1e3, "µs"),
        Device::Cpu => (1.0, "ms"),
    }
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
        // Types have their own column, so the key is cut before them.
        let key = |m: &&'_ Measurement| match m.problem.split_once(&format!("_{}", m.dtype)) {
            Some((before, _)) => before.to_owned(),
            None => m.problem.clone(),
        };
        distinct(self.rows.iter().map(key).filter(|key| !key.is_empty())).join(", ")
    }
}

/// What follows from a measurement.
impl Measurement {
    /// The median, if it is usable.
    pub fn median(&self) -> Option<f64> {
        positive(self.time.median)
    }

    /// The range of 8 of 10 runs in the unit of the device.
    pub fn spread(&self) -> String {
        let ends = [self.time.p10, self.time.p90];
        if !ends.iter().all(|ms| ms.is_finite()) {
            return NONE.into();
        }
        ends.map(|ms| figure(ms * unit(self.device).0)).join("..")
    }

    /// The floor divided by the median: 1 is the limit of the machine.
    pub fn reached(&self) -> Option<f64> {
        positive(self.work.floor_ms / self.median()?)
    }

    /// GB/s of rows read through the caches.
    pub fn gathered_rate(&self) -> Option<f64> {
        positive(self.work.gathered_bytes / self.median()? / 1e6)
    }

    /// Whether the error is within the tolerance.
    pub fn within(&self) -> bool {
        self.check.max_error <= self.check.tolerance
    }

    /// The error divided by the tolerance: `0.3`; `~12` for an engine that may exceed 1, `2 over`
    /// for others.
    pub fn error_text(&self) -> String {
        let share = match self.check.max_error {
            0.0 => Some(0.0),
            error => positive(error / self.check.tolerance),
        };
        self.error_as(share, self.within())
    }

    /// Another error of this engine over the tolerance, as [`error_text`](Self::error_text) writes
    /// it.
    pub fn error_as(&self, share: Option<f64>, within: bool) -> String {
        let share = share.map_or(NONE.into(), short);
        match (self.check.inexact, within) {
            (true, _) => format!("~{share}"),
            (false, true) => share,
            (false, false) => format!("{share} over"),
        }
    }
}
