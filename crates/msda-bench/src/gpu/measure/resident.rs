//! A call whose tensors stay on the device, to be run and timed repeatedly.
#![allow(unsafe_code)]

use std::sync::OnceLock;
use std::time::Instant;

use msda::backend::{check_gradients, check_inputs};
use msda::{Buffer, Gradients, Inputs, Problem, Result, View};

use super::{Flush, time};
use msda_cuda::driver::{Device, Graph, Memory, Stream, StreamHandle};
use msda_cuda::kernels::Kernel;
use msda_cuda::{Levels, Operands, Pass, Plan, Request, Scatter, Slot, Tensors, Wanted};

use crate::record;
use crate::task::Task;

/// A call to be made resident. The constructors give the usual options; other ones are set with
/// `Setup { levels: Levels::Device, ..Setup::forward(problem, inputs) }`.
#[derive(Debug, Clone, Copy)]
pub struct Setup<'a> {
    /// The problem.
    pub problem: &'a Problem,
    /// Its inputs.
    pub inputs: &'a Inputs<'a>,
    /// For the backward pass: the gradient of the output, and the gradients that are computed.
    pub backward: Option<(View<'a>, Wanted)>,
    /// Where level sizes are known.
    pub levels: Levels,
    /// How contributions to the gradient of value are added.
    pub scatter: Scatter,
}

impl<'a> Setup<'a> {
    /// The forward pass.
    pub fn forward(problem: &'a Problem, inputs: &'a Inputs<'a>) -> Self {
        Self { problem, inputs, backward: None, levels: Levels::Host, scatter: Scatter::Ordered }
    }

    /// The backward pass with all gradients that the form has.
    pub fn backward(problem: &'a Problem, inputs: &'a Inputs<'a>, grad_output: View<'a>) -> Self {
        let reference = inputs.reference.is_some();
        let wanted = Wanted { value: true, locations: true, weights: true, reference };
        Self { backward: Some((grad_output, wanted)), ..Self::forward(problem, inputs) }
    }

    /// The pass of a task.
    pub(crate) fn of(task: &'a Task<'a>) -> Self {
        match task.pass {
            record::Pass::Forward => Self::forward(&task.problem, &task.inputs),
            record::Pass::Backward => Self::backward(&task.problem, &task.inputs, task.grad_output),
        }
    }

    fn pass(&self) -> Pass {
        self.backward.map_or(Pass::Forward, |(_, wanted)| Pass::Backward(wanted))
    }
}

/// The tensors that a pass may write, in the order of [`Resident::results`].
const RESULTS: [Slot; 5] =
    [Slot::Output, Slot::GradValue, Slot::GradLocations, Slot::GradWeights, Slot::GradReference];

/// A problem with its tensors on a device, ready to be run any number of times. The results are
/// dense.
#[derive(Debug)]
pub struct Resident {
    /// With placeholders for the level sizes, if those are on the device.
    problem: Problem,
    pass: Pass,
    levels: Levels,
    scatter: Scatter,
    operands: Operands,
    tensors: Tensors,
    plan: Plan,
    workspace: Memory,
    stream: Stream,
    flush: OnceLock<Flush>,
}

impl Resident {
    /// Copies the inputs to the device and plans the call, with the given kernel or the chosen one.
    pub fn new(device: &Device, setup: &Setup<'_>, kernel: Option<Kernel>) -> Result<Self> {
        let Setup { problem, inputs, backward, levels, scatter } = *setup;
        let pass = setup.pass();
        let mut tensors = Tensors::new(device, problem, inputs)?;
        if let Some((grad_output, _)) = backward {
            let args = check_inputs(problem, inputs)?;
            let (tensor, _) = check_gradients(problem, &args, &grad_output, &Gradients::default())?;
            tensors.copy(device, Slot::GradOutput, &tensor.data, tensor.strides)?;
        }
        for slot in RESULTS.into_iter().filter(|&slot| pass.uses(slot)) {
            tensors.allocate(device, problem, slot)?;
        }
        let problem = match levels {
            Levels::Host => problem.clone(),
            Levels::Device => {
                tensors.add_levels(device, problem)?;
                Levels::hidden(problem)?
            }
        };
        let operands = tensors.operands();
        let request = Request { pass, levels, scatter, ..Request::new(&problem, &operands) };
        let plan = plan(device, &request, kernel)?;
        Ok(Self {
            workspace: device.alloc(plan.workspace())?,
            stream: device.stream()?,
            problem,
            pass,
            levels,
            scatter,
            operands,
            tensors,
            plan,
            flush: OnceLock::new(),
        })
    }

    /// Plans another kernel for the same tensors. If that fails, the old plan stays.
    pub fn replan(&mut self, kernel: Option<Kernel>) -> Result<()> {
        let plan = plan(self.plan.device(), &self.request(), kernel)?;
        if plan.workspace() > self.workspace.len() {
            self.workspace = plan.device().alloc(plan.workspace())?;
        }
        self.plan = plan;
        Ok(())
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The request that was planned.
    pub fn request(&self) -> Request<'_> {
        let (pass, levels, scatter) = (self.pass, self.levels, self.scatter);
        Request { pass, levels, scatter, ..Request::new(&self.problem, &self.operands) }
    }

    /// Runs the call once and waits for it.
    pub fn run(&mut self) -> Result<()> {
        self.queue(self.stream.handle())?;
        self.stream.synchronize()
    }

    /// Copies the results back: the output, or the gradients of value, locations, weights and
    /// reference points, as far as they are computed.
    pub fn results(&self) -> Result<Vec<Buffer>> {
        self.written().map(|slot| self.fetch(slot)).collect()
    }

    /// Copies the output of the forward pass back.
    pub fn output(&self) -> Result<Buffer> {
        self.fetch(Slot::Output)
    }

    /// Fills the results with NaN, so that an element that is not written is noticed.
    pub fn poison(&mut self) -> Result<()> {
        self.written().try_for_each(|slot| self.tensors.fill(slot, 0xff))
    }

    /// The tensors that the pass writes.
    fn written(&self) -> impl Iterator<Item = Slot> + use<> {
        let pass = self.pass;
        RESULTS.into_iter().filter(move |&slot| pass.uses(slot))
    }

    fn fetch(&self, slot: Slot) -> Result<Buffer> {
        let mut buffer = self.tensors.zeros(&self.problem, slot)?;
        self.tensors.fetch(slot, &mut buffer.as_mut().into())?;
        Ok(buffer)
    }

    /// Times some runs on the device, in milliseconds each: with cold caches, or right after
    /// another run.
    pub fn time(&mut self, runs: usize, cold: bool) -> Result<Vec<f64>> {
        time(&self.stream, self.flush()?, runs, cold, |stream| self.queue(stream))
    }

    /// Times runs that are replayed from a graph.
    pub fn time_graph(&mut self, runs: usize, cold: bool) -> Result<Vec<f64>> {
        let graph = Graph::capture(&self.stream, |stream| self.queue(stream))?;
        // SAFETY: plan and tensors are those of the capture, and live until the stream is done.
        time(&self.stream, self.flush()?, runs, cold, |stream| unsafe { graph.launch(stream) })
    }

    /// Host time of a launch in microseconds: the median of several batches of launches.
    pub fn host_cost(&mut self) -> Result<f64> {
        const BATCH_SECONDS: f64 = 0.02;
        // The first run of a kernel may load it.
        self.run()?;
        let start = Instant::now();
        self.run()?;
        // No more than the driver queues, and fewer where a run takes long.
        let launches = (BATCH_SECONDS / start.elapsed().as_secs_f64()).clamp(20.0, 200.0) as u32;
        let _bound = self.plan.device().bind()?;
        let mut batches = Vec::new();
        for batch in 0..6 {
            let start = Instant::now();
            for _ in 0..launches {
                self.queue(self.stream.handle())?;
            }
            let took = start.elapsed().as_secs_f64() * 1e6 / f64::from(launches);
            self.stream.synchronize()?;
            // The first one warms up.
            if batch > 0 {
                batches.push(took);
            }
        }
        batches.sort_by(f64::total_cmp);
        Ok(batches[batches.len() / 2])
    }

    fn queue(&self, stream: StreamHandle<'_>) -> Result<()> {
        // SAFETY: the tensors are on the device, checked against the problem, and ours; freeing
        // them waits for the device. Two queued runs write the same numbers, one after the other.
        unsafe { self.plan.launch(&self.tensors.addresses(&self.workspace), stream) }
    }

    /// Made when it is first needed: it is large.
    fn flush(&self) -> Result<&Flush> {
        if self.flush.get().is_none() {
            // Nobody else can have set it.
            let _ = self.flush.set(Flush::new(self.plan.device())?);
        }
        Ok(self.flush.get().expect("it was made"))
    }
}

fn plan(device: &Device, request: &Request<'_>, kernel: Option<Kernel>) -> Result<Plan> {
    match kernel {
        None => Plan::new(device, request),
        Some(kernel) => Plan::with_kernel(device, &Request { sums: kernel.sums(), ..*request }, kernel),
    }
}
