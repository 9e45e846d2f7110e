//! Calls by address: for NumPy and DLPack, for checks of JAX, and to explain a call.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use msda_call::call::{Call, LevelSizes, Tensor, names};
use msda_call::dtypes::{EXPECTED, NAMES};
use msda_call::error::{Refused, Result};
use msda_call::explain::{self as explanation, Place};
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

/// What a call by address uses, which crosses to a thread without Python's lock.
struct Crossing<T>(T);
// SAFETY: the call only reads the addresses, and the caller holds references to all arrays until
// it returns. No other thread gets the value.
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

/// Which kernels a call gets, and why. No element is read.
///
/// `place` is "cpu", the number of a GPU of this machine, or an architecture such as "sm_90".
/// `wanted` has a bit per gradient: 1 value, 2 locations, 4 weights, 8 reference points.
#[pyfunction]
pub(crate) fn explain(call: RawCall, place: &str, threads: usize, wanted: i64) -> PyResult<RawExplanation> {
    let place = match place.parse() {
        Ok(number) => Place::Gpu(number),
        Err(_) if place == "cpu" => Place::Cpu { threads },
        Err(_) => Place::Described(place.parse()?),
    };
    let explanation::Explanation { problem, target, passes } =
        explanation::explain(&call.call()?, &place, wanted)?;
    let pass = |pass: explanation::Pass| {
        let explanation::Pass { kernel, why, stages, workspace, refused } = pass;
        (kernel, why, stages, workspace, refused)
    };
    let [forward, backward] = passes.map(pass);
    Ok((problem, target, forward, backward))
}

/// The problem, the target, and the forward and the backward pass.
type RawExplanation = (String, String, RawPass, RawPass);

/// Kernel, reason, stages, bytes of the workspace, and refusals with their reasons.
type RawPass = (String, String, Vec<(String, String)>, usize, Vec<(String, String)>);

/// Computes the output into memory of the caller.
#[pyfunction]
pub(crate) fn forward(py: Python<'_>, call: RawCall, output: Raw) -> PyResult<()> {
    let inputs = call.call()?;
    let out = tensor("output", &output)?;
    let problem = inputs.problem()?;
    inputs.check_output(&out)?;
    let all = Crossing((inputs, out));
    // Their number may be in the environment, which is read before other threads of Python can run
    // and change it.
    let threads = OnThreads::Count(Some(threads::default()?));
    // SAFETY: the caller keeps all arrays alive through the call. Nobody else has the output yet.
    py.detach(move || unsafe {
        let (inputs, out) = all.get();
        cpu::forward(&inputs, &problem, &out, threads)
    })?;
    Ok(())
}
