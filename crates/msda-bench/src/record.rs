//! What a measurement leaves behind: JSON that says what ran, where, when, and how right it was.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

/// The version of the layout below; a reader refuses others.
pub const SCHEMA: u32 = 1;

/// One run of the benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Layout version, [`SCHEMA`].
    pub schema: u32,
    /// When, in UTC: `2026-11-15T12:34:56Z`.
    pub created: String,
    /// The version of msda.
    pub version: String,
    /// What was typed.
    pub command: String,
    /// Where it ran.
    pub machine: Machine,
    /// What the machine can do at best, measured in the same run.
    pub ceilings: Vec<Ceiling>,
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// Single numbers with names of their own, of commands that measure more than times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub figures: Vec<Figure>,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
}

/// A number with a name: words in small letters, from the general to the particular, joined by dots, such as
/// `tma-tile.queries-1000.tma.time`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Its name.
    pub name: String,
    /// The number.
    pub value: f64,
    /// Its unit: `us`, `GB/s`, `x`, ...; empty where it has none.
    pub unit: String,
}

/// A computer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's own name.
    pub cpu: String,
    /// Logical processors.
    pub cores: usize,
    /// Memory in GiB.
    pub memory_gib: f64,
    /// Operating system and architecture.
    pub os: String,
    /// Instruction sets the backend can use here, best first.
    pub isas: Vec<String>,
    /// The version of torch that was measured beside, if any.
    pub torch: Option<String>,
    /// The first CUDA device, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
}

/// A GPU, as its driver describes it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Gpu {
    /// Its own name.
    pub name: String,
    /// The driver's version.
    pub driver: String,
    /// The newest CUDA that the driver knows: `13.0`.
    pub cuda: String,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// Streaming multiprocessors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sms: Option<u32>,
    /// Bytes of shared memory that a block can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_per_block: Option<u64>,
    /// Bytes of its second-level cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub l2_bytes: Option<u64>,
    /// How it stood before the measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<GpuState>,
    /// How it stood right after the last measurement on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<GpuState>,
}

/// What a GPU's sensors say at one moment; none where one says nothing.
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
    /// Of the multiprocessors.
    pub sm: Option<u32>,
    /// Of the memory.
    pub memory: Option<u32>,
}

/// An upper bound, for a number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// What it bounds: `fma`, `stream`, `gather-l2`, `gather-memory`; on a GPU `copy`, `gather-l1`.
    pub name: String,
    /// Of what.
    #[serde(default)]
    pub device: Device,
    /// Threads it was measured with; 1 where a GPU computes.
    pub threads: usize,
    /// GB/s, or GFLOP/s for `fma`.
    pub rate: f64,
}

/// Forward or backward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pass {
    /// Output from inputs.
    Forward,
    /// All gradients from the output's gradient.
    Backward,
}

impl std::fmt::Display for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        })
    }
}

/// Where something is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The processor.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl std::fmt::Display for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
        })
    }
}

/// One engine on one workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The workload's name.
    pub workload: String,
    /// The problem's readable key.
    pub problem: String,
    /// The engine's name: `cpu-avx512`, `torch`, ...
    pub engine: String,
    /// Which pass.
    pub pass: Pass,
    /// Element type of the values.
    pub dtype: String,
    /// Threads in use; 1 where a GPU computes.
    pub threads: usize,
    /// Where it was computed.
    #[serde(default)]
    pub device: Device,
    /// Whether every run began with cold caches.
    #[serde(default)]
    pub cold: bool,
    /// The kernel that ran, where there is more than one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// Microseconds of the host for a launch, where a GPU computes and that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_us: Option<f64>,
    /// Milliseconds that compiling its kernels takes, the slowest of them, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compile_ms: Option<f64>,
    /// The same replayed from a graph, where a GPU computes and that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay: Option<Replay>,
    /// Milliseconds.
    pub time: Summary,
    /// What the pass has to do.
    pub work: Work,
    /// How right the result was. Checked before timing.
    pub check: Check,
}

/// Medians of runs that are replayed from a graph, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Replay {
    /// From cold caches.
    pub cold: f64,
    /// With caches as the run before left them.
    pub warm: f64,
}

/// Order statistics of repeated runs, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Half of the runs were faster.
    pub median: f64,
    /// The fastest run.
    pub min: f64,
    /// A tenth of the runs were faster.
    pub p10: f64,
    /// Nine tenths of the runs were faster.
    pub p90: f64,
    /// How many runs.
    pub runs: usize,
}

/// What a pass has to do, counted from the problem and its data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Floating-point operations on channels; a multiply-add is two.
    pub flops: f64,
    /// Bytes of rows read through the caches (and, backward, read and written again).
    pub gathered_bytes: f64,
    /// Bytes that must move at least once: inputs read, outputs written.
    pub compulsory_bytes: f64,
    /// The time below which this machine cannot go, by its measured ceilings, in milliseconds.
    pub floor_ms: f64,
    /// What that floor is made of: `fma`, `gather` or `stream`; on a GPU `gather` or `copy`.
    pub bound: String,
}

/// Agreement with the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Largest absolute difference from the oracle, over all results compared.
    pub max_error: f64,
    /// What was allowed.
    pub tolerance: f64,
    /// How many numbers were compared.
    pub compared: usize,
    /// Whether the engine may exceed the tolerance, as one that computes coordinates in 16 bits does.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub inexact: bool,
}

/// Something that was not measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Skipped {
    /// What.
    pub what: String,
    /// Why, and what to do about it.
    pub why: String,
}

impl Record {
    /// A record of now with nothing in it yet.
    pub fn new(command: &str, machine: Machine) -> Self {
        Self {
            schema: SCHEMA,
            created: crate::machine::now(),
            version: env!("CARGO_PKG_VERSION").into(),
            command: command.into(),
            machine,
            ceilings: Vec::new(),
            measurements: Vec::new(),
            figures: Vec::new(),
            skipped: Vec::new(),
        }
    }

    /// Reads a record.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Reads a record from its text.
    pub fn parse(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let value: serde_json::Value = serde_json::from_str(text).context("not JSON")?;
        let Version { schema } = serde_json::from_value(value).context("not a record: no 'schema' number")?;
        if schema != SCHEMA {
            bail!(
                "record schema: got {schema}, expected {SCHEMA}\nhint: measure again with this version of msda"
            );
        }
        Ok(serde_json::from_str(text)?)
    }

    /// Writes the record.
    pub fn save(&self, path: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
    }
}

/// A record and the file that it comes from.
#[derive(Debug, Clone)]
pub struct Source {
    /// The file, as messages name it.
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
    let entries = std::fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
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
