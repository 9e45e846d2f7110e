//! The kernels of this project on an NVIDIA GPU.

use std::time::Instant;

use super::kernels::whole_pass;
use super::measure::{Resident, Setup};
use anyhow::{Context, Result};
use msda::{Backend, Problem};
use msda_cuda::choose::choose;
use msda_cuda::driver::Device as Gpu;
use msda_cuda::kernels::Kernel;
use msda_cuda::{Operands, Options, Plan, Request, Scatter, Sizes, Sums, Target, jit};

use crate::engines::{Engine, Launching, split_cuda};
use crate::parallel::{cores, in_parallel};
use crate::record::{Device, Pass, Replay};
use crate::task::{Key, Results, Task};
use crate::timing::{Effort, summarize};

/// Warm-up runs.
const WARM_UP: usize = 3;
/// Runs between two checks of the time.
const BATCH: usize = 5;
/// The most runs. Runs are short, and more would not change the median.
const AT_MOST: usize = 200;
/// Replays from a CUDA graph, for cold and for warm caches.
const REPLAYS: usize = 100;

/// A GPU with the chosen kernels or with a given one.
pub struct Cuda {
    name: String,
    device: Gpu,
    options: Options,
    may_fail: bool,
    /// The task whose tensors are on the device.
    loaded: Option<((Key, Pass), Resident)>,
    /// The last task and its kernel.
    ran: Option<((Key, Pass), Launching)>,
}

/// Whether options have a pass that the chosen kernels do not have.
fn computes(options: Options, pass: Pass) -> bool {
    match options {
        // Kernels of other crates have no backward pass.
        Options { kernel: Some(Kernel::Custom(_)), .. } | Options { sums: Sums::F16, .. } => {
            pass == Pass::Forward
        }
        // Its forward pass is that of the chosen kernel.
        Options { kernel: None, scatter, .. } if scatter != Scatter::Ordered => pass == Pass::Backward,
        _ => true,
    }
}

fn is_exact(options: Options) -> bool {
    options.kernel.map_or(options.sums == Sums::F32, |kernel| kernel.is_exact())
}

/// The pass of a task, and its dense tensors.
fn pass_of(task: &Task<'_>) -> (msda_cuda::Pass, Operands) {
    let pass = whole_pass(task.pass, None);
    (pass, Operands::for_pass(&task.problem, None, pass))
}

/// The number of the GPU and the options, from an engine's name.
fn parse(name: &str) -> Result<(usize, Options)> {
    let (ordinal, kernel) = split_cuda(name)?;
    let Some(word) = kernel else { return Ok((ordinal, Options::CHOSEN)) };
    let options = Options::named(word).with_context(|| {
        let words = Options::NAMED.map(|(word, _)| format!("cuda:{word}"));
        format!("engine {name}, which is none of {}", words.join(", "))
    })?;
    Ok((ordinal, options))
}

/// Refuses a name that no engine on a GPU has.
pub fn check(name: &str) -> Result<()> {
    parse(name).map(|_| ())
}

/// Opens the backend called `name`.
pub fn backend(name: &str) -> Result<Box<dyn Backend + Send>> {
    let (ordinal, options) = parse(name)?;
    let device = Gpu::open(ordinal).with_context(|| format!("engine {name}"))?;
    Ok(Box::new(msda_cuda::Cuda::with(&device, name, options)))
}

impl Cuda {
    /// The engine called `name`; an error without the GPU.
    pub fn open(name: &str) -> Result<Self> {
        let (ordinal, options) = parse(name)?;
        Self::new(name, ordinal, options, false)
    }

    /// An engine called `name` that runs `kernel`; an error without the GPU. Where it fails, the
    /// benchmark notes it and goes on.
    pub fn with_kernel(name: &str, ordinal: usize, kernel: Kernel) -> Result<Self> {
        Self::new(name, ordinal, Options { kernel: Some(kernel), ..Options::CHOSEN }, true)
    }

    fn new(name: &str, ordinal: usize, options: Options, may_fail: bool) -> Result<Self> {
        let device = Gpu::open(ordinal).with_context(|| format!("engine {name}"))?;
        Ok(Self { name: name.to_owned(), device, options, may_fail, loaded: None, ran: None })
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.device
    }

    /// The kernel for a task; none for the chosen one.
    fn given(&self, task: &Task<'_>) -> Option<Kernel> {
        if self.options.sums == Sums::F32 && self.options.sizes == Sizes::Any {
            return self.options.kernel;
        }
        let (pass, operands) = pass_of(task);
        let request = self.options.apply(Request { pass, ..Request::new(&task.problem, &operands) });
        Some(choose(&request, &Target::of(&self.device)).ok()?.kernel)
    }

    /// The task on the device. With `again` the tensors that were copied last are used if they are
    /// the same.
    fn load(&mut self, task: &Task<'_>, again: bool) -> Result<&mut Resident> {
        let key = (task.key(), task.pass);
        let loaded = self.loaded.take().filter(|(other, _)| again && *other == key);
        let resident = match loaded {
            Some((_, resident)) => resident,
            None => {
                let Options { levels, scatter, .. } = self.options;
                let setup = Setup { levels, scatter, ..Setup::of(task) };
                Resident::new(&self.device, &setup, self.given(task))?
            }
        };
        let kernel = Some(resident.plan().choice().kernel.to_string());
        self.ran = Some((key, Launching { kernel, ..Launching::default() }));
        Ok(&mut self.loaded.insert((key, resident)).1)
    }
}

impl Engine for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn refuses(&self, task: &Task<'_>) -> Option<String> {
        if !computes(self.options, task.pass) {
            return Some(format!("{} has no {} pass of its own", self.name, task.pass));
        }
        if task.part.is_some() && !jit::Cache::global().compiles() {
            return Some("its kernels may not be among those that were compiled ahead".into());
        }
        let (pass, operands) = pass_of(task);
        let request = self.options.apply(Request { pass, ..Request::new(&task.problem, &operands) });
        if let Some(kernel) = self.given(task) {
            if self.options.sums == Sums::F16 && kernel.sums() != Sums::F16 {
                return Some(match task.problem.types().value {
                    msda::Dtype::F16 => format!("{kernel} is faster with sums in f32"),
                    _ => "sums in f16 need f16 values".into(),
                });
            }
            if self.options.sizes == Sizes::Fixed && kernel.sizes() != Sizes::Fixed {
                return Some(format!("{kernel} is no faster for fixed sizes"));
            }
            return kernel.refuses(&request, &Target::of(&self.device));
        }
        // Without a compiler only cached kernels run.
        jit::nvrtc().err()?;
        Plan::new(&self.device, &request).err().map(|why| why.to_string())
    }

    fn computes(&self, pass: Pass) -> bool {
        computes(self.options, pass)
    }

    fn exact(&self, _task: &Task<'_>) -> bool {
        is_exact(self.options)
    }

    fn may_fail(&self) -> bool {
        self.may_fail
    }

    fn device(&self) -> Device {
        Device::Cuda
    }

    fn is_cold(&self) -> bool {
        true
    }

    fn launching(&self, task: &Task<'_>) -> Launching {
        let own = self.ran.as_ref().filter(|(key, _)| *key == (task.key(), task.pass));
        own.map(|(_, ran)| ran.clone()).unwrap_or_default()
    }

    fn prepare(&self, problems: &[(Problem, Pass)]) {
        in_parallel(cores(), problems, |(problem, pass)| {
            let pass = whole_pass(*pass, None);
            let operands = Operands::for_pass(problem, None, pass);
            let request = self.options.apply(Request { pass, ..Request::new(problem, &operands) });
            // Its kernels stay loaded. An error comes again when the problem is run.
            drop(Plan::new(&self.device, &request));
        });
    }

    fn run(&mut self, task: &Task<'_>) -> Result<Results> {
        let resident = self.load(task, false)?;
        resident.poison()?;
        resident.run()?;
        Ok(Results(resident.results()?))
    }

    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>> {
        let resident = self.load(task, true)?;
        resident.time(WARM_UP, true)?;
        let at_most = effort.at_most.min(AT_MOST);
        let mut times = Vec::new();
        let start = Instant::now();
        while times.len() < effort.at_least
            || (start.elapsed() < effort.budget && times.len() + BATCH <= at_most)
        {
            times.extend(resident.time(BATCH, true)?);
        }
        if !effort.launching {
            self.loaded = None;
            return Ok(times);
        }
        let mut replayed = |cold| anyhow::Ok(summarize(&resident.time_graph(REPLAYS, cold)?).median);
        let replay = Some(Replay { cold: replayed(true)?, warm: replayed(false)? });
        // Last, because launches without waiting heat the device, which may slow it.
        let host_us = Some(resident.host_cost()?);
        if let Some((_, ran)) = &mut self.ran {
            (ran.host_us, ran.replay) = (host_us, replay);
        }
        // Free the memory for other engines.
        self.loaded = None;
        Ok(times)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_select_device_and_kernel() {
        let generic = Options { kernel: Some(Kernel::Generic), ..Options::CHOSEN };
        let named = Options::NAMED.map(|(_, options)| options);
        for (name, ordinal, options, exact, passes) in [
            ("cuda", 0, Options::CHOSEN, true, [true, true]),
            ("cuda@3", 3, Options::CHOSEN, true, [true, true]),
            ("cuda:half", 0, named[0], false, [true, false]),
            ("cuda@2:fixed", 2, named[1], true, [true, true]),
            ("cuda:levels", 0, named[2], true, [true, true]),
            ("cuda:sorted", 0, named[3], true, [false, true]),
            ("cuda:atomic", 0, named[4], true, [false, true]),
            ("cuda@1:generic", 1, generic, true, [true, true]),
        ] {
            assert_eq!(parse(name).unwrap(), (ordinal, options));
            assert_eq!(is_exact(options), exact, "{name}");
            assert_eq!([Pass::Forward, Pass::Backward].map(|pass| computes(options, pass)), passes, "{name}");
        }
        for wrong in ["cuda@", "cuda@x", "cuda@-1", "cuda:", "cuda:nothing", "cuda@0:rows:split=x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
