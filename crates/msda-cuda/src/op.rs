//! The operator on tensors in host memory: the conformance battery and the benchmark run it.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use msda::backend::{check_gradients, check_inputs, check_output};
use msda::{Backend, Error, ErrorKind, Gradients, Inputs, Problem, Result, View, ViewMut};

use crate::choose::choose;
use crate::driver::Device;
use crate::kernels::{Kernel, Rows, sweep};
use crate::plan::Plan;
use crate::request::{Levels, Pass, Request, Scatter, Slot, Sums, Wanted};
use crate::target::Target;
use crate::tensors::Tensors;

/// Picks the kernel for a request; none means the generic kernel.
type Pick = dyn Fn(&Request<'_>) -> Option<Kernel> + Send + Sync;

/// A device as a backend. Every call copies its tensors to the device and back: that is good for
/// checking kernels. Programs whose tensors are on the device use [`Plan`].
#[derive(Clone)]
pub struct Cuda {
    device: Device,
    name: String,
    pick: Option<Arc<Pick>>,
    sums: Sums,
    levels: Levels,
    scatter: Scatter,
    gradients: bool,
}

impl Cuda {
    /// The device with the chosen kernels.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            name: "cuda".into(),
            pick: None,
            sums: Sums::F32,
            levels: Levels::Host,
            scatter: Scatter::Ordered,
            gradients: true,
        }
    }

    /// The device with the kernels chosen for atomic additions to the gradient of value.
    pub fn atomic(device: &Device) -> Self {
        Self { name: "cuda:atomic".into(), scatter: Scatter::Atomic, ..Self::new(device) }
    }

    /// The device with the kernels that sort samples for the gradient of value, however few those
    /// are.
    pub fn sorted(device: &Device) -> Self {
        Self { name: "cuda:sorted".into(), scatter: Scatter::Sorted, ..Self::new(device) }
    }

    /// The device with the kernels chosen for level sizes in device memory.
    pub fn device_levels(device: &Device) -> Self {
        Self { name: "cuda:levels".into(), levels: Levels::Device, ..Self::new(device) }
    }

    /// The device with the kernels chosen for `f16` sums. Sums of the backward pass are `f32`.
    pub fn halves(device: &Device) -> Self {
        let target = Target::of(device);
        let chosen = move |request: &Request<'_>| {
            let sums = if request.pass == Pass::Forward { Sums::F16 } else { Sums::F32 };
            Some(choose(&Request { sums, ..*request }, &target).ok()?.kernel)
        };
        Self { sums: Sums::F16, ..Self::with_pick(device, "cuda:half", chosen) }
    }

    /// The device with the chosen kernels, compiled for one size even where that does not pay.
    pub fn fixed(device: &Device) -> Self {
        let target = Target::of(device);
        Self::with_pick(device, "cuda:fixed", move |request| {
            Some(for_one_size(choose(request, &target).ok()?.kernel, request, &target))
        })
    }

    /// The device with another choice of kernels.
    pub fn with_pick(
        device: &Device,
        name: impl Into<String>,
        pick: impl Fn(&Request<'_>) -> Option<Kernel> + Send + Sync + 'static,
    ) -> Self {
        Self { name: name.into(), pick: Some(Arc::new(pick)), ..Self::new(device) }
    }

    /// The same without a backward pass, for kernels that have none.
    #[must_use]
    pub fn forward_only(self) -> Self {
        Self { gradients: false, ..self }
    }

    /// The device with varying knobs: one kernel of [`sweep`] per call, picked by the call and the
    /// seed. Calls that no such kernel takes get the generic kernel.
    pub fn sweep(device: &Device, seed: u64) -> Self {
        let target = Target::of(device);
        let show = std::env::var_os("MSDA_SHOW_KERNELS").is_some();
        Self::with_pick(device, format!("cuda sweep {seed}"), move |request| {
            // The same kernel whichever gradients are wanted: each has the same bits alone.
            let reference = request.operands.reference_numbers() > 0;
            let wanted = Wanted { value: true, locations: true, weights: true, reference };
            let pass = match request.pass {
                Pass::Forward => Pass::Forward,
                Pass::Backward(_) => Pass::Backward(wanted),
            };
            let all = sweep(&Request { pass, ..*request }, &target);
            let inputs = [Slot::Value, Slot::Locations, Slot::Weights, Slot::Reference];
            let inputs = inputs.map(|slot| request.operands[slot]);
            let mut hash = DefaultHasher::new();
            format!("{seed} {} {inputs:?}", request.problem).hash(&mut hash);
            let hash = hash.finish() as usize;
            let kernel = (!all.is_empty()).then(|| all[hash % all.len()]);
            // Half of them are compiled for one size.
            let fixed = hash.leading_zeros() % 2 == 1;
            let kernel = kernel.map(|k| if fixed { for_one_size(k, request, &target) } else { k });
            if show {
                let name = kernel.map_or_else(|| "generic".into(), |k| k.to_string());
                eprintln!("{} fused {}: {name}", request.problem, request.operands.reference_numbers());
            }
            kernel
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn plan(&self, request: &Request<'_>) -> Result<Plan> {
        let Some(pick) = &self.pick else {
            let plan = Plan::new(&self.device, request)?;
            // A slower kernel is good enough for programs, but hides an error from tests.
            return plan.not_compiled().cloned().map_or(Ok(plan), Err);
        };
        let kernel = pick(request).unwrap_or(Kernel::Generic);
        Plan::with_kernel(&self.device, &Request { sums: kernel.sums(), ..*request }, kernel)
    }

    /// Plans a pass on tensors that are on the device, runs it and waits for it.
    fn run(&self, problem: &Problem, tensors: &mut Tensors, pass: Pass) -> Result<()> {
        let hidden = match self.levels {
            Levels::Host => None,
            Levels::Device => {
                tensors.add_levels(&self.device, problem)?;
                Some(Levels::hidden(problem)?)
            }
        };
        let (problem, operands) = (hidden.as_ref().unwrap_or(problem), tensors.operands());
        let (levels, scatter) = (self.levels, self.scatter);
        let plan = self.plan(&Request { pass, levels, scatter, ..Request::new(problem, &operands) })?;
        let workspace = self.device.alloc(plan.workspace())?;
        let stream = self.device.stream()?;
        // SAFETY: the tensors are on the device, checked against the problem, ours, and live until
        // the stream is done.
        unsafe { plan.launch(&tensors.addresses(&workspace), stream.handle())? };
        stream.synchronize()
    }
}

/// The kernel compiled for one size, where it supports that.
fn for_one_size(kernel: Kernel, request: &Request<'_>, target: &Target) -> Kernel {
    let Kernel::Rows(knobs) = kernel else { return kernel };
    let fixed = Kernel::Rows(Rows { fixed_sizes: true, ..knobs });
    if fixed.refuses(request, target).is_none() { fixed } else { kernel }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn computes_gradients(&self) -> bool {
        self.gradients
    }

    fn is_reproducible(&self) -> bool {
        self.scatter != Scatter::Atomic
    }

    fn sums_in_f16(&self) -> bool {
        self.sums == Sums::F16
    }

    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        check_inputs(problem, inputs)?;
        let strides = check_output(problem, &output)?;
        if problem.output_len() == 0 {
            return Ok(());
        }
        let mut tensors = Tensors::new(&self.device, problem, inputs)?;
        tensors.copy(&self.device, Slot::Output, &output.data.as_slice(), strides)?;
        self.run(problem, &mut tensors, Pass::Forward)?;
        tensors.fetch(Slot::Output, &mut output)
    }

    fn backward(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()> {
        if !self.gradients {
            let got = format!("gradients of {problem}");
            return Err(Error::new(ErrorKind::Unsupported, self.name(), got, "the forward pass"));
        }
        let args = check_inputs(problem, inputs)?;
        let (grad_output, strides) = check_gradients(problem, &args, &grad_output, &gradients)?;
        let mut results = [
            (Slot::GradValue, gradients.value, strides.value),
            (Slot::GradLocations, gradients.locations, strides.locations),
            (Slot::GradWeights, gradients.weights, strides.weights),
            (Slot::GradReference, gradients.reference, strides.reference),
        ];
        // Without queries or samples there still are gradients, which are zero.
        if results.iter().all(|(_, view, _)| view.as_ref().is_none_or(|v| v.data.as_slice().is_empty())) {
            return Ok(());
        }
        let mut tensors = Tensors::new(&self.device, problem, inputs)?;
        tensors.copy(&self.device, Slot::GradOutput, &grad_output.data, grad_output.strides)?;
        for (slot, view, strides) in &results {
            if let (Some(view), Some(strides)) = (view, strides) {
                tensors.copy(&self.device, *slot, &view.data.as_slice(), *strides)?;
            }
        }
        let wanted = Wanted {
            value: tensors.has(Slot::GradValue),
            locations: tensors.has(Slot::GradLocations),
            weights: tensors.has(Slot::GradWeights),
            reference: tensors.has(Slot::GradReference),
        };
        self.run(problem, &mut tensors, Pass::Backward(wanted))?;
        for (slot, view, _) in &mut results {
            if let Some(view) = view {
                tensors.fetch(*slot, view)?;
            }
        }
        Ok(())
    }
}
