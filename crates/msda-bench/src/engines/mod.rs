//! Engines: anything that runs a task.

mod local;
mod names;
pub mod peers;
mod python;
mod registry;
mod torch;

use anyhow::Result;

pub use self::local::Local;
pub use self::names::{is_cuda, ordinal, split_cuda};
pub use self::python::find_python;
pub use self::registry::{Registry, Source};
pub use self::torch::Torch;

use crate::record::{Device, Replay};
use crate::task::{Results, Task};
use crate::timing::Effort;

/// Something that runs tasks and can be timed.
pub trait Engine {
    /// Its name in tables and records.
    fn name(&self) -> String;

    /// Why it does not take a task, if it does not.
    fn refuses(&self, task: &Task<'_>) -> Option<String>;

    /// Whether its result of a task is held to the tolerance. Otherwise the error is recorded and marked.
    fn exact(&self, _task: &Task<'_>) -> bool {
        true
    }

    /// Whether the benchmark notes its failures and goes on. A failure of an engine that is no guest stops it.
    fn is_guest(&self) -> bool {
        false
    }

    /// Where it computes.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Whether every timed run begins with cold caches.
    fn is_cold(&self) -> bool {
        false
    }

    /// The kernel that runs a task, where there is more than one.
    fn kernel(&self, _task: &Task<'_>) -> Option<String> {
        None
    }

    /// What else was measured of the task that was timed last.
    fn launching(&self, _task: &Task<'_>) -> Launching {
        Launching::default()
    }

    /// Runs a task once and returns what it computed.
    fn run(&mut self, task: &Task<'_>) -> Result<Results>;

    /// Runs a task repeatedly; milliseconds of each run.
    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>>;
}

/// What there is to measure of kernels beside their time, where that was measured.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Launching {
    /// Microseconds that a launch keeps the host.
    pub host_us: Option<f64>,
    /// Milliseconds that compiling takes, of the slowest kernel.
    pub compile_ms: Option<f64>,
    /// The task replayed from a graph.
    pub replay: Option<Replay>,
}
