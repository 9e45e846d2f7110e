//! Records: the results of a run as JSON, with the command, the machine, the date and the checks.

use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};

use crate::files::cannot;

/// The version of the layout. Readers refuse other versions.
pub const SCHEMA: u32 = 1;

/// One run of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Layout version, [`SCHEMA`].
    pub schema: u32,
    /// The time in UTC: `2026-11-15T12:34:56Z`.
    pub created: String,
    /// The version of msda.
    pub version: String,
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// Ceilings of the machine, measured in the same run.
    pub ceilings: Vec<Ceiling>,
    /// The times.
    pub measurements: Vec<Measurement>,
    /// Named numbers, from commands that measure more than times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// Measurements that were skipped, with reasons.
    pub skipped: Vec<Skipped>,
}

/// A number with a name: words in small letters, from the general to the particular, joined by
/// dots, such as `tma-tile.queries-1000.tma.time`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit: `us`, `GB/s`, `x`, ...; empty if it has none.
    pub unit: String,
}

/// A computer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The name of the processor.
    pub cpu: String,
    /// Logical processors.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Operating system and architecture.
    pub os: String,
    /// Instruction sets that the CPU backend can use here, best first.
    pub isas: Vec<String>,
    /// The version of torch, if torch was measured.
    pub torch: Option<String>,
    /// The CUDA device, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// How busy it was before the run; records of older versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
}

/// How busy a computer is with other programs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The load average of the last minute, divided by the number of logical processors.
    pub per_core: f64,
    /// Whether that is enough to disturb times.
    pub busy: bool,
}

/// A GPU, from its driver.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA version that the driver supports: `13.0`.
    pub cuda: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// SMs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
    /// The largest shared memory of a block, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_per_block: Option<u64>,
    /// Bytes of L2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_bytes: Option<u64>,
    /// Its state before the measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<GpuState>,
    /// Its state after the last measurement on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<GpuState>,
}

/// The sensors of a GPU at one moment; none if a sensor is missing.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct GpuState {
    /// Clocks in MHz.
    pub clocks_mhz: Clocks,
    /// Degrees Celsius.
    pub temperature_c: Option<u32>,
    /// Watts.
    pub power_w: Option<f64>,
}

/// A GPU's clocks in MHz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Clocks {
    /// The clock of the SMs.
    pub sm: Option<u32>,
    /// The clock of the memory.
    pub memory: Option<u32>,
}

/// A limit of the machine with a number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Its name: `fma`, `stream`, `gather-l2`, `gather-memory`; on a GPU `copy`, `gather-l1`.
    pub name: String,
    /// The device.
    #[serde(default)]
    pub device: Device,
    /// The number of threads; 1 on a GPU.
    pub threads: usize,
    /// GB/s, or GFLOP/s for `fma`.
    pub rate: f64,
}

/// Forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// The output.
    Forward,
    /// All gradients.
    Backward,
}

impl Display for Pass {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A kind of processor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The CPU.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl Display for Device {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One engine on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The workload's name.
    pub workload: String,
    /// The problem's readable key.
    pub problem: String,
    /// The name of the engine: `cpu-avx512`, `torch`, ...
    pub engine: String,
    /// The pass.
    pub pass: Pass,
    /// Element type of the values.
    pub dtype: String,
    /// The number of threads; 1 on a GPU.
    pub threads: usize,
    /// The device.
    #[serde(default)]
    pub device: Device,
    /// Whether the caches were cold before each run.
    #[serde(default)]
    pub cold: bool,
    /// The kernel, if the engine has more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Host time of a launch in microseconds, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_us: Option<f64>,
    /// Times of replays from a CUDA graph, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// Times in milliseconds.
    pub time: Summary,
    /// The work of the pass.
    pub work: Work,
    /// The check of the result, made before timing.
    pub check: Check,
}

/// Medians of replays from a CUDA graph, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// With cold caches.
    pub cold: f64,
    /// With caches that the previous run has filled.
    pub warm: f64,
}

/// Order statistics of repeated runs, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The median.
    pub median: f64,
    /// The fastest run.
    pub min: f64,
    /// The 10th percentile.
    pub p10: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The number of runs.
    pub runs: usize,
}

/// The work of a pass, counted from the problem and its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations on channels; a multiply-add is two.
    pub flops: f64,
    /// Bytes of rows read through the caches (and, backward, read and written again).
    pub gathered_bytes: f64,
    /// Bytes that must move at least once: inputs read, outputs written.
    pub compulsory_bytes: f64,
    /// The least time that the measured ceilings of the machine allow, in milliseconds.
    pub floor_ms: f64,
    /// The ceiling that sets the floor: `fma`, `gather` or `stream`; on a GPU `gather` or `copy`.
    pub bound: String,
    /// On the processor: milliseconds in which the same rows are loaded in the same order, and
    /// nothing else is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows_ms: Option<f64>,
}

/// Agreement with the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Largest absolute difference from the oracle, over all results compared.
    pub max_error: f64,
    /// The tolerance.
    pub tolerance: f64,
    /// The number of compared values.
    pub compared: usize,
    /// Whether the engine may exceed the tolerance, as one that computes coordinates in 16 bits
    /// does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inexact: bool,
}

/// A measurement that was skipped.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// The measurement.
    pub what: String,
    /// The reason, with a hint if there is one.
    pub why: String,
}

/// The error of a file that is something else.
fn no_record(why: impl Display) -> anyhow::Error {
    anyhow!(
        "got a file that is no record ({why}), expected one that `msda bench` wrote\n\
         hint: records are .json files; a folder stands for all in it"
    )
}

impl Record {
    /// An empty record with the current time.
    pub fn new(command: &str, machine: Machine) -> Self {
        Self {
            schema: SCHEMA,
            created: Self::now(),
            version: env!("CARGO_PKG_VERSION").into(),
            command: command.into(),
            machine,
            ceilings: Vec::new(),
            measurements: Vec::new(),
            figures: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// The current time, in UTC: `2026-11-15T12:34:56Z`.
    pub fn now() -> String {
        humantime::format_rfc3339_seconds(SystemTime::now()).to_string()
    }

    /// Reads a record.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(|why| cannot("read", path, why))?;
        let text = str::from_utf8(&bytes).map_err(|_| no_record("it is not text"));
        text.and_then(Self::parse).with_context(|| format!("in {}", path.display()))
    }

    /// Reads a record from its text.
    pub fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let value: serde_json::Value =
            serde_json::from_str(text).map_err(|why| no_record(format_args!("it is not JSON: {why}")))?;
        let Version { schema } =
            serde_json::from_value(value).map_err(|_| no_record("it has no 'schema' number"))?;
        if schema != SCHEMA {
            bail!(
                "record schema: got {schema}, expected {SCHEMA}\nhint: measure again with this version of msda"
            );
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Says once why something was skipped.
    pub fn skip(&mut self, what: impl Display, why: impl Display) {
        let skipped = Skipped { what: what.to_string(), why: why.to_string() };
        if !self.skipped.contains(&skipped) {
            self.skipped.push(skipped);
        }
    }

    /// Writes the record.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).map_err(|why| cannot("write", path, why))
    }
}

/// A record and its file.
#[derive(Debug, Clone)]
pub struct Source {
    /// The path of the file.
    pub label: String,
    /// The record.
    pub record: Record,
}

/// Reads records from files, and from all JSON files in folders.
pub fn sources(paths: &[PathBuf]) -> Result<Vec<Source>> {
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() { json_files(path, &mut files)? } else { files.push(path.clone()) }
    }
    let source =
        |path: &PathBuf| Ok(Source { label: path.display().to_string(), record: Record::load(path)? });
    files.iter().map(source).collect()
}

fn json_files(folder: &Path, all: &mut Vec<PathBuf>) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|why| cannot("read", folder, why))?;
    let mut paths = entries.map(|e| Ok(e?.path())).collect::<Result<Vec<_>>>()?;
    paths.sort();
    for path in paths {
        if path.is_dir() {
            json_files(&path, all)?;
        } else if path.extension().is_some_and(|e| e == "json") {
            all.push(path);
        }
    }
    Ok(())
}
