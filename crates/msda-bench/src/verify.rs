//! Verification: the battery on backends, and whole workloads against the oracle.

use std::sync::Mutex;

use anyhow::Result;
use msda::conformance::{self, Group, Summary};
use msda::{Backend, Dtype, Isa};

use crate::bench::Progress;
use crate::check::Expected;
use crate::engines::{Registry, is_cuda};
use crate::gpu;
use crate::parallel::{cores, in_parallel};
use crate::record::{Check, Device, Pass};
use crate::task::Task;
use crate::workload::Workload;

/// A backend that runs the battery, or several of which each seed takes the next.
pub struct Subject {
    /// Its name in tables.
    pub name: String,
    device: Device,
    /// Seed `i` uses backend `i` modulo their number.
    backends: Vec<Box<dyn Backend + Send>>,
}

impl Subject {
    /// The backend called `name`.
    pub fn named(name: &str) -> Result<Self> {
        let backend = Registry::default().backend(name)?;
        let device = if is_cuda(name) { Device::Cuda } else { Device::Cpu };
        let name = if device == Device::Cuda { name.to_owned() } else { backend.name() };
        Ok(Self { name, device, backends: vec![backend] })
    }

    /// All backends of a device. On the CPU: every instruction set. On a GPU: the chosen kernels,
    /// the same with sums of `f16`, for fixed sizes, with level sizes in device memory and with
    /// atomic additions, the generic kernel, and kernels with parameters that change with every
    /// case and seed.
    pub fn all(device: Device, seeds: &[u64]) -> Result<Vec<Self>> {
        if device == Device::Cpu {
            let isas = Isa::available().into_iter().map(|isa| format!("cpu-{isa}"));
            return isas.map(|name| Self::named(&name)).collect();
        }
        let sweep = Self { name: "cuda, any parameters".into(), device, backends: gpu::sweeps(seeds)? };
        let chosen =
            ["cuda", "cuda:generic", "cuda:half", "cuda:fixed", "cuda:levels", "cuda:sorted", "cuda:atomic"]
                .map(Self::named);
        chosen.into_iter().chain([Ok(sweep)]).collect()
    }
}

/// Runs groups of the battery with some seeds on every subject.
pub fn battery(
    subjects: &[Subject],
    groups: &[Group],
    seeds: &[u64],
    progress: &mut (dyn Progress + Send),
) -> Vec<Summary> {
    let mut jobs = Vec::new();
    for subject in subjects {
        for &group in groups {
            for (i, &seed) in seeds.iter().enumerate() {
                jobs.push((subject, group, seed, &*subject.backends[i % subject.backends.len()]));
            }
        }
    }
    progress.begin(jobs.len());
    let progress = Mutex::new(progress);
    // On a GPU most of the time is spent on compiling, which several workers share. CPU backends
    // use every core.
    let gpu = subjects.iter().any(|subject| subject.device == Device::Cuda);
    let results = in_parallel(if gpu { cores() } else { 1 }, &jobs, |(subject, group, seed, backend)| {
        let what = format!("{} {}, seed {seed}", subject.name, group.name());
        progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner).step(&what);
        conformance::run(*backend, *group, *seed)
    });
    let mut totals: Vec<Summary> = subjects.iter().map(|_| Summary::default()).collect();
    for (i, result) in results.into_iter().enumerate() {
        totals[i / (groups.len() * seeds.len())].add(result);
    }
    totals
}

/// The check of one workload.
pub struct Checked {
    /// The workload.
    pub workload: String,
    /// The value type.
    pub dtype: Dtype,
    /// The pass.
    pub pass: Pass,
    /// The engine.
    pub engine: String,
    /// The kernel that ran, if there are several.
    pub kernel: Option<String>,
    /// The outcome.
    pub outcome: Outcome,
}

/// How a check ended.
pub enum Outcome {
    /// Within the tolerance.
    Right(Check),
    /// Outside the tolerance, or the engine failed.
    Wrong(String),
    /// Not run, for this reason.
    Skipped(String),
}

/// The types in which workloads are checked.
const TYPES: [Dtype; 3] = [Dtype::F32, Dtype::F16, Dtype::Bf16];

/// Checks outputs and gradients of workloads, in three types, on some engines.
pub fn outputs(
    workloads: &[Workload],
    passes: &[Pass],
    engines: &[String],
    progress: &mut dyn Progress,
) -> Result<Vec<Checked>> {
    let open = |name: &String| Registry::default().open(name, rayon::current_num_threads());
    let mut open = engines.iter().map(open).collect::<Result<Vec<_>>>()?;
    progress.begin(workloads.len() * TYPES.len() * passes.len() * open.len());
    let mut all = Vec::new();
    for workload in workloads {
        let name = &workload.name;
        for dtype in TYPES {
            let made = workload.data(dtype).and_then(|data| Ok((Expected::new(&data, name)?, data)));
            let pairs = passes.iter().flat_map(|&pass| (0..open.len()).map(move |i| (pass, i)));
            for (pass, i) in pairs.collect::<Vec<_>>() {
                let engine = &mut *open[i];
                progress.step(&format!("{name} {pass} {dtype} {}", engine.name()));
                let (outcome, kernel) = match &made {
                    Err(why) => (Outcome::Skipped(format!("{why:#}")), None),
                    Ok((expected, data)) => {
                        let task = Task::whole(data, pass);
                        let outcome = match engine.refuses(&task) {
                            Some(why) => Outcome::Skipped(why),
                            None => match expected.check(engine, data, pass, true) {
                                Ok(check) => Outcome::Right(check),
                                Err(why) => Outcome::Wrong(format!("{why:#}")),
                            },
                        };
                        (outcome, engine.launching(&task).kernel)
                    }
                };
                let (workload, engine) = (name.clone(), engine.name());
                all.push(Checked { workload, dtype, pass, engine, kernel, outcome });
            }
        }
    }
    Ok(all)
}
