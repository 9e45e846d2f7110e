//! The inputs of a run.

use std::ffi::{c_int, c_void};
use std::{ptr, slice};

use msda_call::call::{LevelSizes, Tensor, dense_stride};
use msda_call::dtypes::{EXPECTED, ONNX};
use msda_call::error::{Refused, Result};

use crate::api::{Api, Handle, INT64, Release};

/// An input of a run.
#[derive(Debug)]
pub(crate) struct Input {
    name: &'static str,
    pub(crate) value: Handle,
    data: *mut c_void,
    dtype: c_int,
    sizes: Vec<i64>,
    /// None for a dense tensor.
    strides: Option<Vec<i64>>,
}

impl Input {
    /// # Safety
    /// `context` is that of a run whose operator has an input of that index.
    pub(crate) unsafe fn new(api: Api, context: Handle, index: usize, name: &'static str) -> Result<Self> {
        let (mut value, mut info, mut data) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut dtype, mut rank, mut sizes) = (0, 0, Vec::new());
        // SAFETY: the context lives and has such an input; the results are valid to write, `sizes`
        // for `rank` numbers.
        unsafe {
            api.kernel_context_get_input(context, index, &mut value)?;
            if value.is_null() {
                return Err(Refused::value(name, "no tensor", "a tensor"));
            }
            api.get_tensor_type_and_shape(value, &mut info)?;
            let described = api
                .get_tensor_element_type(info, &mut dtype)
                .and_then(|()| api.get_dimensions_count(info, &mut rank))
                .and_then(|()| {
                    sizes.resize(rank, 0);
                    api.get_dimensions(info, sizes.as_mut_ptr(), rank)
                });
            api.release(Release::TensorTypeAndShapeInfo, info);
            described?;
            api.get_tensor_mutable_data(value, &mut data)?;
        }
        Ok(Self { name, value, data, dtype, sizes, strides: None })
    }

    /// As a tensor of floats.
    pub(crate) fn tensor(&self) -> Result<Tensor<'_>> {
        let dtype = ONNX.find(self.dtype).ok_or_else(|| self.wrong_type(EXPECTED))?;
        let (sizes, strides) = (&*self.sizes, self.strides.as_deref());
        Ok(Tensor { name: self.name, data: self.data, dtype, sizes, strides })
    }

    fn wrong_type(&self, expected: &str) -> Refused {
        Refused::wrong_type(self.name, format!("type number {} of ONNX", self.dtype), expected)
    }

    /// The elements of a table of integers on the host.
    fn integers(&self) -> Result<&[i64]> {
        if self.dtype != INT64 {
            return Err(self.wrong_type("int64"));
        }
        let size = |&size: &i64| usize::try_from(size).ok();
        let len = self.sizes.iter().try_fold(1usize, |len, n| len.checked_mul(size(n)?)).unwrap_or(0);
        if len == 0 {
            return Ok(&[]);
        }
        debug_assert!(self.data.cast::<i64>().is_aligned() && !self.data.is_null());
        // SAFETY: a dense tensor of so many 64-bit integers on the host. It lives through the run.
        Ok(unsafe { slice::from_raw_parts(self.data.cast(), len) })
    }

    /// Reference points of one level serve all levels.
    pub(crate) fn repeat_level(&mut self, levels: usize) {
        if self.sizes.len() == 4 && self.sizes[2] == 1 {
            let mut strides: Vec<i64> = (0..4).map(|dim| dense_stride(&self.sizes, dim)).collect();
            strides[2] = 0;
            (self.sizes[2], self.strides) = (levels as i64, Some(strides));
        }
    }
}

/// The sizes of the levels, from both tables.
pub(crate) fn level_sizes(shapes: &Input, starts: &Input) -> Result<LevelSizes> {
    let levels = LevelSizes::count(&shapes.sizes, &starts.sizes)?;
    let (shapes, starts) = (shapes.integers()?, starts.integers()?);
    LevelSizes::read(levels, |i| shapes[i], Some(|i| starts[i]))
}
