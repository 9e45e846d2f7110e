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
use crate::request::{Levels, Pass, Request, Scatter, Sizes, Slot, Sums, Wanted};
use crate::target::Target;
use crate::tensors::Tensors;

/// Picks the kernel for a request; none means the generic kernel.
type Pick = dyn Fn(&Request<'_>) -> Option<Kernel> + Send + Sync;

/// What is asked of the kernels beside the problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The type of sums in the forward pass.
    pub sums: Sums,
    /// Whether kernels are compiled for one size.
    pub sizes: Sizes,
    /// Where level sizes are known.
    pub levels: Levels,
    /// How contributions to the gradient of value are added.
    pub scatter: Scatter,
    /// This kernel instead of the chosen one.
    pub kernel: Option<Kernel>,
}

impl Options {
    /// The chosen kernels.
    pub const CHOSEN: Self = Self {
        sums: Sums::F32,
        sizes: Sizes::Any,
        levels: Levels::Host,
        scatter: Scatter::Ordered,
        kernel: None,
    };

    /// Options by name: `f16` sums, one size even where that does not pay, level sizes in device
    /// memory, samples that are sorted however few they are, and atomic additions.
    pub const NAMED: [(&str, Self); 5] = [
        ("half", Self { sums: Sums::F16, ..Self::CHOSEN }),
        ("fixed", Self { sizes: Sizes::Fixed, ..Self::CHOSEN }),
        ("levels", Self { levels: Levels::Device, ..Self::CHOSEN }),
        ("sorted", Self { scatter: Scatter::Sorted, ..Self::CHOSEN }),
        ("atomic", Self { scatter: Scatter::Atomic, ..Self::CHOSEN }),
    ];

    /// The chosen kernels with an option of this name, or the kernel of this name.
    pub fn named(name: &str) -> Result<Self> {
        match Self::NAMED.iter().find(|(own, _)| *own == name) {
            Some((_, options)) => Ok(*options),
            None => Ok(Self { kernel: Some(name.parse()?), ..Self::CHOSEN }),
        }
    }

    /// The request with its options.
    pub fn apply<'a>(self, request: Request<'a>) -> Request<'a> {
        let Self { sizes, levels, scatter, .. } = self;
        let sums = self.kernel.map_or(self.sums, |kernel| kernel.sums());
        Request { sums, sizes, levels, scatter, ..request }
    }

    /// The kernel for a request; none for the one that a plan chooses.
    fn pick(self, request: &Request<'_>, target: &Target) -> Option<Kernel> {
        let chosen = |request: &Request<'_>| Some(choose(request, target).ok()?.kernel);
        match self {
            Self { kernel: Some(kernel), .. } => Some(kernel),
            // Sums of the backward pass are `f32`.
            Self { sums: Sums::F16, .. } if request.pass == Pass::Forward => {
                chosen(&Request { sums: Sums::F16, ..*request })
            }
            Self { sizes: Sizes::Fixed, .. } => Some(for_one_size(chosen(request)?, request, target)),
            _ => None,
        }
    }
}

/// A device as a backend. Every call copies its tensors to the device and back: that is good for
/// checking kernels. Programs whose tensors are on the device use [`Plan`].
#[derive(Clone)]
pub struct Cuda {
    device: Device,
    name: String,
    options: Options,
    pick: Option<Arc<Pick>>,
    gradients: bool,
}

impl Cuda {
    /// The device with the chosen kernels.
    pub fn new(device: &Device) -> Self {
        Self::with(device, "cuda", Options::CHOSEN)
    }

    /// The device with an option of [`Options::NAMED`] or a kernel.
    pub fn named(device: &Device, name: &str) -> Result<Self> {
        Ok(Self::with(device, format!("cuda:{name}"), Options::named(name)?))
    }

    /// The device with these options.
    pub fn with(device: &Device, name: impl Into<String>, options: Options) -> Self {
        Self { device: device.clone(), name: name.into(), options, pick: None, gradients: true }
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
            kernel.map(|k| if fixed { for_one_size(k, request, &target) } else { k })
        })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    fn plan(&self, request: &Request<'_>) -> Result<Plan> {
        let kernel = match &self.pick {
            Some(pick) => Some(pick(request).unwrap_or(Kernel::Generic)),
            None => self.options.pick(request, &Target::of(&self.device)),
        };
        let Some(kernel) = kernel else {
            let plan = Plan::new(&self.device, request)?;
            // A slower kernel is good enough for programs, but hides an error from tests.
            return plan.not_compiled().cloned().map_or(Ok(plan), Err);
        };
        Plan::with_kernel(&self.device, &Request { sums: kernel.sums(), ..*request }, kernel)
    }

    /// Plans a pass on tensors that are on the device, runs it and waits for it.
    fn run(&self, problem: &Problem, tensors: &mut Tensors, pass: Pass) -> Result<()> {
        let Options { levels, scatter, .. } = self.options;
        let hidden = match levels {
            Levels::Host => None,
            Levels::Device => {
                tensors.add_levels(&self.device, problem)?;
                Some(Levels::hidden(problem)?)
            }
        };
        let (problem, operands) = (hidden.as_ref().unwrap_or(problem), tensors.operands());
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
        self.options.scatter != Scatter::Atomic
    }

    fn sums_in_f16(&self) -> bool {
        self.options.sums == Sums::F16
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
