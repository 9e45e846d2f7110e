//! The operator on tensors in host memory: the conformance battery and the benchmark run it.
#![allow(unsafe_code)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use msda::backend::{check_inputs, check_output};
use msda::{Backend, Error, ErrorKind, Gradients, Inputs, Problem, Result, View, ViewMut};

use crate::choose::choose;
use crate::driver::Device;
use crate::kernels::{Kernel, Rows, sweep};
use crate::plan::Plan;
use crate::request::{Levels, Operands, Request, Slot, Sums, Target};
use crate::tensors::Tensors;

/// Picks the kernel for a request; none means the generic kernel.
type Pick = dyn Fn(&Request<'_>) -> Option<Kernel> + Send + Sync;

/// A device as a backend. Every call copies its tensors to the device and back: that is good for checking kernels.
/// Programs whose tensors are on the device use [`Plan`].
#[derive(Clone)]
pub struct Cuda {
    device: Device,
    name: String,
    pick: Option<Arc<Pick>>,
    sums: Sums,
    levels: Levels,
}

impl Cuda {
    /// The device with the chosen kernels.
    pub fn new(device: &Device) -> Self {
        let (sums, levels) = (Sums::F32, Levels::Host);
        Self { device: device.clone(), name: "cuda".into(), pick: None, sums, levels }
    }

    /// The device with the kernels chosen for level sizes in device memory.
    pub fn device_levels(device: &Device) -> Self {
        Self { name: "cuda:levels".into(), levels: Levels::Device, ..Self::new(device) }
    }

    /// The device with the kernels chosen for `f16` sums.
    pub fn halves(device: &Device) -> Self {
        let target = Target::of(device);
        let chosen = move |request: &Request<'_>| {
            Some(choose(&Request { sums: Sums::F16, ..*request }, &target).kernel)
        };
        Self { sums: Sums::F16, ..Self::with_pick(device, "cuda:half", chosen) }
    }

    /// The device with the chosen kernels, compiled for one size even where that does not pay.
    pub fn fixed(device: &Device) -> Self {
        let target = Target::of(device);
        Self::with_pick(device, "cuda:fixed", move |request| {
            Some(for_one_size(choose(request, &target).kernel, true))
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

    /// The device with varying knobs: one kernel of [`sweep`] per call, picked by the call and the seed. Calls that no
    /// such kernel takes get the generic kernel.
    pub fn sweep(device: &Device, seed: u64) -> Self {
        let target = Target::of(device);
        let show = std::env::var_os("MSDA_SHOW_KERNELS").is_some();
        Self::with_pick(device, format!("cuda sweep {seed}"), move |request| {
            let all = sweep(request, &target);
            let mut hash = DefaultHasher::new();
            format!("{seed} {} {:?}", request.problem, request.operands).hash(&mut hash);
            let hash = hash.finish() as usize;
            // Half of them are compiled for one size.
            let kernel =
                (!all.is_empty()).then(|| for_one_size(all[hash % all.len()], hash.leading_zeros() % 2 == 1));
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

    fn plan(&self, problem: &Problem, operands: &Operands) -> Result<Plan> {
        let request = Request { levels: self.levels, ..Request::new(problem, operands) };
        let Some(pick) = &self.pick else {
            return Plan::new(&self.device, &request);
        };
        match pick(&request) {
            Some(kernel) => {
                Plan::with_kernel(&self.device, &Request { sums: kernel.sums(), ..request }, kernel)
            }
            None => Plan::with_kernel(&self.device, &request, Kernel::Generic),
        }
    }
}

/// The kernel compiled for one size or for any, where it supports both.
fn for_one_size(kernel: Kernel, fixed: bool) -> Kernel {
    match kernel {
        Kernel::Rows(knobs) => Kernel::Rows(Rows { fixed_sizes: fixed, ..knobs }),
        _ => kernel,
    }
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn computes_gradients(&self) -> bool {
        false
    }

    fn sums_in_f16(&self) -> bool {
        self.sums == Sums::F16
    }

    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        check_inputs(problem, inputs)?;
        check_output(problem, &output)?;
        if problem.output_len() == 0 {
            return Ok(());
        }
        let mut tensors = Tensors::new(&self.device, problem, inputs, Some(&output))?;
        let plan = match self.levels {
            Levels::Host => self.plan(problem, &tensors.operands())?,
            Levels::Device => {
                tensors.add_levels(&self.device, problem)?;
                self.plan(&Levels::hidden(problem)?, &tensors.operands())?
            }
        };
        let workspace = self.device.alloc(plan.workspace())?;
        let stream = self.device.stream()?;
        // SAFETY: the tensors are on the device, checked against the problem, ours, and live until the stream is done.
        unsafe { plan.launch(&tensors.addresses(&workspace), stream.handle())? };
        stream.synchronize()?;
        tensors.fetch(Slot::Output, &mut output)
    }

    fn backward(
        &self,
        problem: &Problem,
        _inputs: &Inputs<'_>,
        _grad_output: View<'_>,
        _gradients: Gradients<'_>,
    ) -> Result<()> {
        Err(Error::new(ErrorKind::Unsupported, "backward on CUDA", problem, "the forward pass")
            .hint("the CPU backend computes gradients"))
    }
}
