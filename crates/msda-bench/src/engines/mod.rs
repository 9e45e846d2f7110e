//! Engines: anything that runs a task.

mod cuda;
mod local;
pub mod peers;
mod python;
mod torch;

use anyhow::{Context, Result, bail};
use msda::oracle::Oracle;
use msda::{Backend, Cpu, Isa};
use msda_cuda::kernels::Kernel;
use msda_cuda::kernels::ladder::RUNGS;

pub use self::cuda::{Cuda, is_cuda, ordinal};
pub use self::local::Local;
pub use self::python::find_python;
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

    /// Whether what goes wrong in it is noted, and the benchmark goes on: it is somebody else's work, or a rung of the
    /// ladder, which nobody gets unasked.
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

/// Names of the engines that show the ladder: the kernel that is chosen, then every rung.
pub fn ladder() -> Vec<String> {
    let rungs = RUNGS.iter().map(|rung| format!("cuda:{}", Kernel::Ladder(rung)));
    std::iter::once("cuda".to_owned()).chain(rungs).collect()
}

/// Names of the engines that exist on this machine, in the order they are measured.
pub fn available() -> Vec<String> {
    let mut names: Vec<String> = Isa::available().into_iter().map(|isa| format!("cpu-{isa}")).collect();
    if msda_cuda::driver::Device::count().is_ok_and(|count| count > 0) {
        names.push("cuda".into());
    }
    names.push("torch".into());
    names.push("oracle".into());
    names
}

/// The backend called `name`, of this process. `cpu` is the best instruction set of this machine, `cuda` its GPU.
pub fn backend(name: &str) -> Result<Box<dyn Backend + Send>> {
    match name {
        "oracle" => Ok(Box::new(Oracle)),
        "cpu" => Ok(Box::new(Cpu::new())),
        _ if is_cuda(name) => cuda::backend(name),
        _ => {
            let Some(isa) = name.strip_prefix("cpu-") else {
                let local: Vec<String> = available().into_iter().filter(|n| n != "torch").collect();
                bail!("engine: got '{name}', expected cpu, {}", local.join(", "));
            };
            let isa: Isa = isa.parse().with_context(|| format!("engine {name}"))?;
            Ok(Box::new(Cpu::with_isa(isa)?))
        }
    }
}

/// The engine called `name`, with that many threads: torch, a peer, a GPU, or a backend of this process.
pub fn open(name: &str, threads: usize) -> Result<Box<dyn Engine>> {
    match name {
        "torch" => Ok(Box::new(Torch::start(threads)?)),
        "torch-cuda" => Ok(Box::new(Torch::cuda()?)),
        _ if is_cuda(name) => Ok(Box::new(Cuda::open(name)?)),
        _ if name.starts_with(peers::PREFIX) => Ok(Box::new(Torch::peer(peers::find(name)?, threads)?)),
        _ => Ok(Box::new(Local::new(backend(name)?, threads)?)),
    }
}
