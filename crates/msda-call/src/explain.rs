//! Which kernels a call gets, and why. Nothing is compiled or run, and no element is read.

use msda::{Cpu, Problem};
use msda_cuda::choose::{choose, refusals};
use msda_cuda::driver::{Arch, Device};
use msda_cuda::kernels::Action;
use msda_cuda::{Levels, Operand, Operands, Request, Slot, Target, Wanted};

use crate::call::{Call, LevelSizes};
use crate::cuda::align;
use crate::error::Result;

/// Where a call would run.
#[derive(Debug, Clone, Copy)]
pub enum Place {
    /// On so many threads of this CPU.
    Cpu {
        /// The number of threads.
        threads: usize,
    },
    /// On a GPU of this machine, by its number.
    Gpu(usize),
    /// On the largest common GPU of an architecture.
    Described(Arch),
}

/// How a call runs.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The problem's readable key.
    pub problem: String,
    /// The GPU, or the CPU with its instruction set and threads.
    pub target: String,
    /// The forward and the backward pass.
    pub passes: [Pass; 2],
}

/// The kernel of one pass.
#[derive(Debug, Clone, Default)]
pub struct Pass {
    /// The kernel, or the instruction set.
    pub kernel: String,
    /// The reason of this choice, a sentence.
    pub why: String,
    /// What a launch queues, in order: the key of each kernel, and its purpose.
    pub stages: Vec<(String, String)>,
    /// Bytes of device memory that a launch needs beside its results.
    pub workspace: usize,
    /// Candidates that do not take it, each with its reason. Each reason is there once.
    pub refused: Vec<(String, String)>,
}

/// Explains a call. `wanted` has a bit per gradient: 1 value, 2 locations, 4 weights, 8 reference
/// points. Results are new, dense tensors.
pub fn explain(call: &Call<'_>, place: &Place, wanted: i64) -> Result<Explanation> {
    let problem = call.problem()?;
    let (target, name) = match *place {
        Place::Cpu { threads } => return Ok(on_cpu(&problem, threads)),
        Place::Gpu(number) => {
            let device = Device::open(number)?;
            (Target::of(&device), format!("{}, ", device.name()))
        }
        Place::Described(arch) => (Target::of_arch(arch)?, String::new()),
    };
    let wanted = Wanted {
        value: wanted & 1 != 0,
        locations: wanted & 2 != 0,
        weights: wanted & 4 != 0,
        reference: wanted & 8 != 0 && call.reference.is_some(),
    };
    let on_device = matches!(call.levels, LevelSizes::Device { .. });
    let forward = on_gpu(call, &problem, &target, msda_cuda::Pass::Forward)?;
    let backward = on_gpu(call, &problem, &target, msda_cuda::Pass::Backward(wanted))?;
    Ok(Explanation {
        problem: format!("{problem}{}", if on_device { ", level sizes on the GPU" } else { "" }),
        target: format!("{name}{} with {} SMs", target.arch, target.sms),
        passes: [forward, backward],
    })
}

fn on_cpu(problem: &Problem, threads: usize) -> Explanation {
    let cpu = Cpu::new();
    let on = match threads {
        _ if cpu.runs_alone(problem) => "on the calling thread, because the call is small".to_owned(),
        0 | 1 => "on the calling thread".to_owned(),
        _ => format!("on {threads} threads"),
    };
    let pass = Pass {
        kernel: cpu.isa().to_string(),
        why: "It is the fastest instruction set of this CPU.".into(),
        ..Pass::default()
    };
    Explanation {
        problem: problem.to_string(),
        target: format!("the CPU, {on}"),
        passes: [pass.clone(), pass],
    }
}

fn on_gpu(call: &Call<'_>, problem: &Problem, target: &Target, pass: msda_cuda::Pass) -> Result<Pass> {
    if problem.output_len() == 0 {
        let why = "There is nothing to compute.".into();
        return Ok(Pass { kernel: "none".into(), why, ..Pass::default() });
    }
    let mut operands = Operands::for_pass(problem, call.reference_kind(), pass);
    let inputs = [
        Some((Slot::Value, &call.value)),
        Some((Slot::Locations, &call.locations)),
        Some((Slot::Weights, &call.weights)),
        call.reference.as_ref().map(|tensor| (Slot::Reference, tensor)),
    ];
    for (slot, tensor) in inputs.into_iter().flatten() {
        operands[slot] = Operand { strides: call.strides(tensor)?, align: align(tensor) };
    }
    let levels = match call.levels {
        LevelSizes::Host(..) => Levels::Host,
        LevelSizes::Device { .. } => Levels::Device,
    };
    let request = Request { pass, levels, ..Request::new(problem, &operands) };
    let choice = choose(&request, target)?;
    let plan = choice.kernel.prepare(&request, target);
    let stages = plan.stages.iter().map(|stage| match &stage.action {
        Action::Run(run) => (run.unit.key.clone(), stage.why.to_string()),
        Action::Clear(_) => ("memset".to_owned(), stage.why.to_string()),
    });
    Ok(Pass {
        kernel: choice.kernel.to_string(),
        why: choice.why,
        stages: stages.collect(),
        workspace: plan.arena.bytes(),
        refused: refusals(&request, target).into_iter().map(|(k, why)| (k.to_string(), why)).collect(),
    })
}
