//! Engines: implementations that can run and time a task.

pub mod external;
mod local;
mod names;
mod registry;

use anyhow::Result;
use msda::Problem;

pub use self::local::Local;
pub use self::names::{is_cuda, ordinal, split_cuda};
pub use self::registry::{Registry, Source};

use crate::record::{Device, Pass, Replay};
use crate::task::{Results, Task};
use crate::timing::Effort;

/// The engine of the CPU that every machine has: others are compared with it.
pub const BASELINE: &str = "cpu-portable";

/// An implementation that runs tasks and can be timed.
pub trait Engine {
    /// Its name in tables and records.
    fn name(&self) -> String;

    /// The reason why it does not take a task; none if it does.
    fn refuses(&self, task: &Task<'_>) -> Option<String>;

    /// Whether it has a pass at all.
    fn computes(&self, _pass: Pass) -> bool {
        true
    }

    /// Whether its result must be within the tolerance. Otherwise the error is recorded and marked.
    fn exact(&self, _task: &Task<'_>) -> bool {
        true
    }

    /// Whether its failures are noted and the benchmark goes on. Other failures end the benchmark.
    fn may_fail(&self) -> bool {
        false
    }

    /// The device that it computes on.
    fn device(&self) -> Device {
        Device::Cpu
    }

    /// Whether every timed run begins with cold caches.
    fn is_cold(&self) -> bool {
        false
    }

    /// The kernel of the task that ran last, and measurements of it.
    fn launching(&self, _task: &Task<'_>) -> Launching {
        Launching::default()
    }

    /// Makes ready for these problems, so that the first run of each takes no longer than others.
    fn prepare(&self, _problems: &[(Problem, Pass)]) {}

    /// Runs a task once and returns its results.
    fn run(&mut self, task: &Task<'_>) -> Result<Results>;

    /// Runs a task repeatedly and returns the milliseconds of each run.
    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>>;
}

/// A kernel and measurements besides its time; none where one was not made.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Launching {
    /// The name of the kernel, if there are several.
    pub kernel: Option<String>,
    /// Microseconds of the host per launch.
    pub host_us: Option<f64>,
    /// Times of replays from a CUDA graph.
    pub replay: Option<Replay>,
}
