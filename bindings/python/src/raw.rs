//! Calls by address, for NumPy, DLPack and versions of torch without the stable C ABI.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use msda_call::call::{Call, LevelSizes, Tensor, names};
use msda_call::cuda::Prepared;
use msda_call::dtypes::{EXPECTED, NAMES};
use msda_call::error::{Kind, Refused, Result};
use msda_call::threads::{self, OnThreads};
use msda_call::{cpu, cuda};
use pyo3::prelude::*;

use crate::error::PyResult;

/// A tensor by address: address, name of the type, sizes, strides in elements.
type Raw = (usize, String, Vec<i64>, Vec<i64>);

/// Level sizes: pairs and starts, or the addresses of both tables on the device and their length.
#[derive(FromPyObject)]
pub(crate) enum RawLevels {
    Host(Vec<(usize, usize)>, Option<Vec<usize>>),
    Device(u64, u64, usize),
}

fn tensor<'a>(name: &'static str, raw: &'a Raw) -> Result<Tensor<'a>> {
    let (address, dtype, sizes, strides) = raw;
    let found = NAMES.find(dtype.as_str());
    let dtype = found.ok_or_else(|| Refused::wrong_type(name, dtype, EXPECTED))?;
    if sizes.len() != strides.len() {
        return Err(Refused::value(name, format!("{} strides", strides.len()), format!("{}", sizes.len())));
    }
    let data = ptr::with_exposed_provenance_mut::<c_void>(*address);
    Ok(Tensor { name, data, dtype, sizes, strides: Some(strides) })
}

/// Inputs by address.
#[derive(FromPyObject)]
pub(crate) struct RawCall {
    #[pyo3(item)]
    value: Raw,
    #[pyo3(item)]
    levels: RawLevels,
    #[pyo3(item)]
    reference: Option<Raw>,
    #[pyo3(item)]
    locations: Raw,
    #[pyo3(item)]
    weights: Raw,
    #[pyo3(item)]
    options: i64,
    #[pyo3(item)]
    points: i64,
}

impl RawLevels {
    fn sizes(&self) -> LevelSizes {
        match self {
            Self::Host(shapes, starts) => LevelSizes::new(shapes.clone(), starts.clone()),
            &Self::Device(shapes, starts, levels) => LevelSizes::Device { shapes, starts, levels },
        }
    }
}

/// The part of the key of a CUDA plan that level sizes give.
#[pyfunction]
pub(crate) fn cuda_level_key(levels: RawLevels) -> Vec<u64> {
    cuda::level_key(&levels.sizes())
}

impl RawCall {
    fn call(&self) -> Result<Call<'_>> {
        let names = names(self.reference.is_some());
        Ok(Call {
            value: tensor(names[0], &self.value)?,
            levels: self.levels.sizes(),
            reference: self.reference.as_ref().map(|raw| tensor(names[1], raw)).transpose()?,
            locations: tensor(names[names.len() - 2], &self.locations)?,
            weights: tensor(names[names.len() - 1], &self.weights)?,
            options: self.options,
            points: self.points,
        })
    }
}

/// The device, its stream as an address, and a function that allocates bytes there.
type RawDevice = (usize, usize, Py<PyAny>);

/// Threads that are told nothing else: `None` means as many as the machine has.
type Threads = Option<usize>;

/// A pointer that may cross threads: the call does nothing with it but pass it on.
struct Crossing<T>(T);
// SAFETY: the caller promises that the memory behind the addresses stays through the call.
unsafe impl<T> Send for Crossing<T> {}

impl<T> Crossing<T> {
    fn get(self) -> T {
        self.0
    }
}

/// Refuses a call with wrong types, sizes or levels. No element is read.
#[pyfunction]
pub(crate) fn check(call: RawCall) -> PyResult<()> {
    call.call()?.problem()?;
    Ok(())
}

/// Computes the output into memory of the caller.
#[pyfunction]
#[pyo3(signature = (call, output, device=None, threads=None))]
pub(crate) fn forward(
    py: Python<'_>,
    call: RawCall,
    output: Raw,
    device: Option<RawDevice>,
    threads: Threads,
) -> PyResult<()> {
    let inputs = call.call()?;
    let out = tensor("output", &output)?;
    let problem = inputs.problem()?;
    inputs.check_output(&out)?;
    match device {
        None => {
            let all = Crossing((inputs, out));
            let threads = on_threads(threads)?;
            // SAFETY: the Python side keeps all arrays alive through the call.
            py.detach(move || unsafe {
                let (inputs, out) = all.get();
                cpu::forward(&inputs, &problem, &out, threads)
            })?;
        }
        Some((device, stream, alloc)) => {
            let stream = ptr::with_exposed_provenance_mut(stream);
            let prepared = Prepared::forward(&inputs, &out, device)?;
            // SAFETY: as above; the memory is the device's.
            unsafe { prepared.launch(stream, |bytes| allocate(py, &alloc, bytes))? };
        }
    }
    Ok(())
}

/// Computes gradients into memory of the caller: of value, locations, weights and reference points.
#[pyfunction]
#[pyo3(signature = (call, grad_output, gradients, device=None, threads=None))]
pub(crate) fn backward(
    py: Python<'_>,
    call: RawCall,
    grad_output: Raw,
    gradients: [Option<Raw>; 4],
    device: Option<RawDevice>,
    threads: Threads,
) -> PyResult<()> {
    let inputs = call.call()?;
    let problem = inputs.problem()?;
    let grad = tensor("grad_output", &grad_output)?;
    let names =
        ["gradient of value", "gradient of locations", "gradient of weights", "gradient of reference"];
    let mut grads = [None; 4];
    for i in 0..4 {
        grads[i] = gradients[i].as_ref().map(|raw| tensor(names[i], raw)).transpose()?;
    }
    inputs.check_gradients(&grads)?;
    match device {
        None => {
            let all = Crossing((inputs, grad, grads));
            let threads = on_threads(threads)?;
            // SAFETY: the Python side keeps all arrays alive through the call.
            py.detach(move || unsafe {
                let (inputs, grad, grads) = all.get();
                cpu::backward(&inputs, &problem, &grad, grads, threads)
            })?;
        }
        Some((device, stream, alloc)) => {
            let stream = ptr::with_exposed_provenance_mut(stream);
            if let Some(prepared) = Prepared::backward(&inputs, &grad, grads, device)? {
                // SAFETY: as above; the memory is the device's.
                unsafe { prepared.launch(stream, |bytes| allocate(py, &alloc, bytes))? };
            }
        }
    }
    Ok(())
}

/// The threads of a call. Their number may be in the environment, which is read before other
/// threads of Python can run and change it.
fn on_threads(threads: Threads) -> Result<OnThreads> {
    Ok(OnThreads::Count(Some(threads.map_or_else(threads::default, Ok)?)))
}

fn allocate(py: Python<'_>, alloc: &Py<PyAny>, bytes: usize) -> Result<u64> {
    let address = alloc.call1(py, (bytes,)).and_then(|address| address.extract::<u64>(py));
    address.map_err(|error| Refused::new(Kind::Memory, format!("workspace of {bytes} bytes: {error}")))
}
