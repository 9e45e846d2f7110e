//! An operator of a model: its attributes, and the computation.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use msda_call::call::{Call, SHAPES, STARTS, Tensor, pack_points};
use msda_call::cpu;
use msda_call::cuda::Prepared;
use msda_call::error::{Refused, Result};
use msda_call::threads::OnThreads;

use crate::api::{Api, Handle};
use crate::attributes;
use crate::form::{Form, Provider};
use crate::input::{Input, level_sizes};
use crate::pool::Pool;
use crate::workspace::Workspace;

/// An operator of a model that is loaded.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) api: Api,
    form: Form,
    provider: Provider,
    /// As [`Call`] takes them.
    options: i64,
    /// Points per level; none if all levels have the same number.
    points: Vec<u8>,
    workspaces: Mutex<Vec<Workspace>>,
}

impl Kernel {
    /// # Safety
    /// `info` describes a node of the operator.
    pub(crate) unsafe fn new(api: Api, form: Form, provider: Provider, info: Handle) -> Result<Self> {
        // SAFETY: `info` describes a node, which lives through this function.
        let attributes = unsafe { (attributes::options(api, info), attributes::points(api, info)) };
        let named = |refused: Refused| {
            // SAFETY: the function follows the rules of `Api::text`.
            let name = unsafe { Api::text(|text, len| api.kernel_info_get_node_name(info, text, len)) };
            let (op, name) = (form.name().to_string_lossy(), name.unwrap_or_default());
            Refused::new(refused.kind, format!("{op} node {name:?}: {}", refused.message))
        };
        Ok(Self {
            api,
            form,
            provider,
            options: attributes.0.map_err(named)?,
            points: attributes.1.map_err(named)?,
            workspaces: Mutex::default(),
        })
    }

    /// # Safety
    /// `context` is the context of a run of this kernel.
    pub(crate) unsafe fn compute(&self, context: Handle) -> Result<()> {
        let api = self.api;
        // SAFETY: the context is that of a run. The indices below are those of the operator's
        // inputs.
        let input = |i: usize, name| unsafe { Input::new(api, context, i, name) };
        let levels = level_sizes(&input(1, SHAPES)?, &input(2, STARTS)?)?;
        let names = self.form.floats();
        let float = |i: usize| input(if i == 0 { 0 } else { i + 2 }, names[i]);
        let (value, locations, weights) = (float(0)?, float(names.len() - 2)?, float(names.len() - 1)?);
        let mut reference = if self.form == Form::Fused { Some(float(1)?) } else { None };
        if let Some(reference) = &mut reference {
            reference.repeat_level(levels.len());
        }
        if !self.points.is_empty() && self.points.len() != levels.len() {
            let got = format!("{} numbers", self.points.len());
            return Err(Refused::value("points", got, format!("{}, one per level", levels.len())));
        }
        let call = Call {
            value: value.tensor()?,
            levels,
            reference: reference.as_ref().map(Input::tensor).transpose()?,
            locations: locations.tensor()?,
            weights: weights.tensor()?,
            options: self.options,
            points: pack_points(&self.points).unwrap_or(0),
        };
        // On the GPU the plan checks the problem when it is made.
        let problem = if self.provider == Provider::Cpu { Some(call.problem()?) } else { None };
        let sizes = call.output_shape()?;
        let (mut output, mut data) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the context lives; the results are valid to write.
        unsafe {
            api.kernel_context_get_output(context, 0, sizes.as_ptr(), sizes.len(), &mut output)?;
            api.get_tensor_mutable_data(output, &mut data)?;
        }
        let dtype = call.value.dtype;
        let output = Tensor { name: "output", data, dtype, sizes: &sizes, strides: None };
        match problem {
            Some(problem) => {
                // SAFETY: `forward` drops the pool before the run of the context ends.
                let threads = OnThreads::Framework(Arc::new(unsafe { Pool::new(api, context) }));
                // SAFETY: ONNX Runtime keeps the tensors through the call; the output is new.
                unsafe { cpu::forward(&call, &problem, &output, threads) }
            }
            None => {
                let (mut device, mut stream) = (ptr::null_mut(), ptr::null_mut());
                let mut number: c_int = 0;
                // SAFETY: the context and the tensor live; the results are valid to write.
                unsafe {
                    api.get_tensor_memory_info(value.value, &mut device)?;
                    api.memory_info_get_id(device, &mut number)?;
                    api.kernel_context_get_gpu_compute_stream(context, &mut stream)?;
                }
                let number = usize::try_from(number).unwrap_or(0);
                let prepared = Prepared::forward(&call, &output, number)?;
                // Two runs may queue on one stream: the workspaces stay locked until the end.
                let mut locked = None;
                // SAFETY: ONNX Runtime's tensors are in memory of the device until the stream has
                // run the call. The workspace stays until the kernel is destroyed, and only this
                // stream uses it, one run after the other.
                unsafe {
                    prepared.launch(stream, |bytes| {
                        let guard = self.workspaces.lock().unwrap_or_else(PoisonError::into_inner);
                        let workspaces = locked.insert(guard);
                        Workspace::find_or_add(workspaces, api, context, device, stream, bytes)
                    })
                }
            }
        }
    }
}
