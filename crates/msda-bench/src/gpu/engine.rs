//! The kernels of this project on an NVIDIA GPU.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use msda::Backend;
use msda_cuda::choose::choose;
use msda_cuda::driver::Device as Gpu;
use msda_cuda::kernels::Kernel;
use msda_cuda::measure::Resident;
use msda_cuda::{Levels, Operands, Plan, Request, Sizes, Sums, Target, jit};

use crate::engines::{Engine, Launching, split_cuda};
use crate::record::{Device, Pass, Replay};
use crate::task::{Key, Results, Task};
use crate::timing::{Effort, summarize};

/// Words in place of a kernel's name: sums in `f16`, kernels for fixed sizes, level sizes in device
/// memory.
const HALF: &str = "half";
const FIXED: &str = "fixed";
const LEVELS: &str = "levels";

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
    kernel: Wanted,
    guest: bool,
    /// The task whose tensors are on the device.
    loaded: Option<(Key, Resident)>,
    /// The last task and its kernel.
    ran: Option<(Key, Ran)>,
}

/// Which kernel an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// The chosen kernel.
    Chosen,
    /// The kernel chosen for sums in `f16`.
    Half,
    /// The kernel chosen for fixed sizes.
    Fixed,
    /// The kernel chosen for level sizes in device memory.
    Levels,
    /// This kernel.
    Given(Kernel),
}

impl Wanted {
    /// The request with its sums and sizes.
    fn apply<'a>(self, request: Request<'a>) -> Request<'a> {
        match self {
            Self::Chosen => request,
            Self::Levels => Request { levels: Levels::Device, ..request },
            Self::Half => Request { sums: Sums::F16, ..request },
            Self::Fixed => Request { sizes: Sizes::Fixed, ..request },
            Self::Given(kernel) => Request { sums: kernel.sums(), ..request },
        }
    }

    fn is_exact(self) -> bool {
        match self {
            Self::Chosen | Self::Fixed | Self::Levels => true,
            Self::Half => false,
            Self::Given(kernel) => kernel.is_exact(),
        }
    }
}

/// The kernel and launches of a task.
struct Ran {
    kernel: String,
    launching: Launching,
}

/// The number of the GPU and the kernel, from an engine's name.
fn parse(name: &str) -> Result<(usize, Wanted)> {
    let (ordinal, kernel) = split_cuda(name)?;
    let wanted = match kernel {
        None => Wanted::Chosen,
        Some(HALF) => Wanted::Half,
        Some(FIXED) => Wanted::Fixed,
        Some(LEVELS) => Wanted::Levels,
        Some(kernel) => Wanted::Given(kernel.parse().with_context(|| {
            format!("engine {name}, which is none of cuda:{HALF}, cuda:{FIXED}, cuda:{LEVELS}")
        })?),
    };
    Ok((ordinal, wanted))
}

/// Refuses a name that no engine on a GPU has.
pub(super) fn check(name: &str) -> Result<()> {
    parse(name).map(|_| ())
}

/// The backend of such a name.
pub(super) fn backend(name: &str) -> Result<Box<dyn Backend + Send>> {
    let (ordinal, kernel) = parse(name)?;
    let device = Gpu::open(ordinal).with_context(|| format!("engine {name}"))?;
    Ok(match kernel {
        Wanted::Chosen => Box::new(msda_cuda::Cuda::new(&device)),
        Wanted::Half => Box::new(msda_cuda::Cuda::halves(&device)),
        Wanted::Fixed => Box::new(msda_cuda::Cuda::fixed(&device)),
        Wanted::Levels => Box::new(msda_cuda::Cuda::device_levels(&device)),
        Wanted::Given(kernel) => Box::new(msda_cuda::Cuda::with_pick(&device, name, move |_| Some(kernel))),
    })
}

impl Cuda {
    /// The engine called `name`; an error without the GPU.
    pub fn open(name: &str) -> Result<Self> {
        let (ordinal, kernel) = parse(name)?;
        Self::new(name, ordinal, kernel, false)
    }

    /// An engine called `name` that runs `kernel`; an error without the GPU. It is a guest: the
    /// benchmark notes its failures and goes on.
    pub fn with_kernel(name: &str, ordinal: usize, kernel: Kernel) -> Result<Self> {
        Self::new(name, ordinal, Wanted::Given(kernel), true)
    }

    fn new(name: &str, ordinal: usize, kernel: Wanted, guest: bool) -> Result<Self> {
        let device = Gpu::open(ordinal).with_context(|| format!("engine {name}"))?;
        Ok(Self { name: name.to_owned(), device, kernel, guest, loaded: None, ran: None })
    }

    /// Its GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.device
    }

    /// The kernel for a task; none for the chosen one.
    fn given(&self, task: &Task<'_>) -> Option<Kernel> {
        match self.kernel {
            Wanted::Chosen | Wanted::Levels => None,
            Wanted::Given(kernel) => Some(kernel),
            Wanted::Half | Wanted::Fixed => {
                let operands = Operands::dense(&task.problem, None);
                let request = self.kernel.apply(Request::new(&task.problem, &operands));
                Some(choose(&request, &Target::of(&self.device)).kernel)
            }
        }
    }

    fn ran(&self, task: &Task<'_>) -> Option<&Ran> {
        self.ran.as_ref().filter(|(key, _)| *key == task.key()).map(|(_, ran)| ran)
    }

    /// The task on the device. With `again` the tensors that were copied last are used if they are
    /// the same.
    fn load(&mut self, task: &Task<'_>, again: bool) -> Result<&mut Resident> {
        let key = task.key();
        let loaded = self.loaded.take().filter(|(other, _)| again && *other == key);
        let resident = match loaded {
            Some((_, resident)) => resident,
            None => {
                let levels = if self.kernel == Wanted::Levels { Levels::Device } else { Levels::Host };
                Resident::with_levels(&self.device, &task.problem, &task.inputs, self.given(task), levels)?
            }
        };
        let kernel = resident.plan().choice().kernel.to_string();
        self.ran = Some((key.clone(), Ran { kernel, launching: Launching::default() }));
        Ok(&mut self.loaded.insert((key, resident)).1)
    }
}

/// Milliseconds to compile the slowest kernel of a plan, without the cache; none without a
/// compiler.
fn compile_ms(resident: &Resident) -> Option<f64> {
    if !jit::Cache::global().compiles() {
        return None;
    }
    let plan = resident.plan();
    let call = plan.choice().kernel.prepare(&resident.request(), &Target::of(plan.device()));
    let mut slowest = None;
    for kernel in call.kernels() {
        let start = Instant::now();
        jit::compile(&kernel.unit).ok()?;
        slowest = slowest.max(Some(start.elapsed()));
    }
    slowest.map(|took| took.as_secs_f64() * 1e3)
}

impl Engine for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn refuses(&self, task: &Task<'_>) -> Option<String> {
        if task.pass == Pass::Backward {
            return Some("no backward pass yet".into());
        }
        let operands = Operands::dense(&task.problem, None);
        let request = self.kernel.apply(Request::new(&task.problem, &operands));
        if let Some(kernel) = self.given(task) {
            if self.kernel == Wanted::Half && kernel.sums() != Sums::F16 {
                return Some(match task.problem.types().value {
                    msda::Dtype::F16 => format!("{kernel} is faster with sums in f32"),
                    _ => "sums in f16 need f16 values".into(),
                });
            }
            if self.kernel == Wanted::Fixed && kernel.sizes() != Sizes::Fixed {
                return Some(format!("{kernel} is no faster for fixed sizes"));
            }
            return kernel.refuses(&request, &Target::of(&self.device));
        }
        // Without a compiler only cached kernels run.
        jit::nvrtc().err()?;
        Plan::new(&self.device, &request).err().map(|why| why.to_string())
    }

    fn exact(&self, _task: &Task<'_>) -> bool {
        self.kernel.is_exact()
    }

    fn is_guest(&self) -> bool {
        self.guest
    }

    fn device(&self) -> Device {
        Device::Cuda
    }

    fn is_cold(&self) -> bool {
        true
    }

    fn kernel(&self, task: &Task<'_>) -> Option<String> {
        self.ran(task).map(|ran| ran.kernel.clone())
    }

    fn launching(&self, task: &Task<'_>) -> Launching {
        self.ran(task).map(|ran| ran.launching).unwrap_or_default()
    }

    fn run(&mut self, task: &Task<'_>) -> Result<Results> {
        if task.pass == Pass::Backward {
            bail!("{}: no backward pass yet", self.name);
        }
        let resident = self.load(task, false)?;
        resident.poison()?;
        resident.run()?;
        Ok(Results(vec![resident.output()?]))
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
        let mut replayed = |cold| anyhow::Ok(summarize(&resident.time_graph(REPLAYS, cold)?).median);
        let replay = Some(Replay { cold: replayed(true)?, warm: replayed(false)? });
        // Last, because launches without waiting heat the device, which may slow it.
        let host_us = Some(resident.host_cost()?);
        let launching = Launching { host_us, compile_ms: compile_ms(resident), replay };
        if let Some((_, ran)) = &mut self.ran {
            ran.launching = launching;
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
        assert_eq!(parse("cuda").unwrap(), (0, Wanted::Chosen));
        assert_eq!(parse("cuda@3").unwrap(), (3, Wanted::Chosen));
        assert_eq!(parse("cuda:half").unwrap(), (0, Wanted::Half));
        assert_eq!(parse("cuda@2:fixed").unwrap(), (2, Wanted::Fixed));
        assert_eq!(parse("cuda:levels").unwrap(), (0, Wanted::Levels));
        assert_eq!(parse("cuda:generic").unwrap(), (0, Wanted::Given(Kernel::Generic)));
        assert_eq!(parse("cuda@1:generic").unwrap(), (1, Wanted::Given(Kernel::Generic)));
        for wrong in ["cuda@", "cuda@x", "cuda@-1", "cuda:", "cuda:nothing", "cuda@0:rows:split=x"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let exact = |name: &str| parse(name).unwrap().1.is_exact();
        assert!(exact("cuda") && exact("cuda:fixed") && exact("cuda:generic"));
        assert!(!exact("cuda:half"));
    }
}
