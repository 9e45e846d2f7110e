//! Tensors of torch, owned by us.

use std::cell::OnceCell;
use std::ffi::c_void;
use std::ptr;

use msda::Dtype;
use msda_call::call::{MOST_DIMENSIONS, Tensor, dense_stride};
use msda_call::dtypes::EXPECTED;
use msda_call::error::{Kind, Refused, Result};

use super::abi::{Api, Code, Handle};

/// A tensor that is deleted when dropped.
#[derive(Debug)]
pub(super) struct Owned {
    api: &'static Api,
    handle: Handle,
    /// What torch said about it; asked once, because every question costs a call.
    described: OnceCell<Described<'static>>,
}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is deleted once.
        unsafe { (self.api.core.aoti_torch_delete_tensor_object)(self.handle) };
    }
}

/// Where a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) kind: i32,
    pub(super) index: i32,
}

/// Rank and type of a tensor, and where its elements are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Described<'a> {
    pub(super) place: Place,
    pub(super) dtype: i32,
    pub(super) data: *mut c_void,
    pub(super) sizes: &'a [i64],
    pub(super) strides: &'a [i64],
}

fn ok(code: Code, call: &str) -> Result<()> {
    match code {
        0 => Ok(()),
        _ => Err(Refused::new(Kind::Runtime, format!("torch's {call} failed"))),
    }
}

impl Owned {
    /// # Safety
    /// The handle is a tensor that nobody else deletes.
    pub(super) unsafe fn new(api: &'static Api, handle: Handle) -> Self {
        Self { api, handle, described: OnceCell::new() }
    }

    /// Gives the handle away.
    pub(super) fn into_raw(self) -> Handle {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }

    /// A new tensor of at most [`MOST_DIMENSIONS`].
    pub(super) fn empty(api: &'static Api, sizes: &[i64], dtype: i32, place: Place) -> Result<Self> {
        let rank = sizes.len();
        if rank > MOST_DIMENSIONS {
            let expected = format!("at most {MOST_DIMENSIONS} dimensions");
            return Err(Refused::value("a tensor", format!("shape {sizes:?}"), expected));
        }
        let strides: [i64; MOST_DIMENSIONS] = std::array::from_fn(|dim| dense_stride(sizes, dim));
        let mut handle = ptr::null_mut();
        // SAFETY: sizes and strides have `rank` numbers; `handle` is valid to write.
        let code = unsafe {
            (api.core.aoti_torch_empty_strided)(
                rank as i64,
                sizes.as_ptr(),
                strides.as_ptr(),
                dtype,
                place.kind,
                place.index,
                &mut handle,
            )
        };
        if code != 0 {
            let expected = "torch had no memory for it";
            return Err(Refused::new(Kind::Memory, format!("a tensor of shape {sizes:?}: {expected}")));
        }
        // SAFETY: a new tensor.
        Ok(unsafe { Self::new(api, handle) })
    }

    /// The tensor as torch describes it.
    pub(super) fn describe(&self) -> Result<Described<'_>> {
        if let Some(described) = self.described.get() {
            return Ok(*described);
        }
        // SAFETY: the cell is part of the tensor, and is read with the lifetime of the tensor.
        let described = unsafe { self.ask()? };
        Ok(*self.described.get_or_init(|| described))
    }

    /// # Safety
    /// The lists live as long as the tensor.
    unsafe fn ask(&self) -> Result<Described<'static>> {
        let core = &self.api.core;
        let (mut rank, mut dtype) = (0i64, 0i32);
        let (mut sizes, mut strides, mut data) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let mut place = Place { kind: 0, index: 0 };
        // SAFETY: the tensor lives; the results are valid to write.
        unsafe {
            ok((core.aoti_torch_get_dim)(self.handle, &mut rank), "get_dim")?;
            ok((core.aoti_torch_get_sizes)(self.handle, &mut sizes), "get_sizes")?;
            ok((core.aoti_torch_get_strides)(self.handle, &mut strides), "get_strides")?;
            ok((core.aoti_torch_get_dtype)(self.handle, &mut dtype), "get_dtype")?;
            ok((core.aoti_torch_get_device_type)(self.handle, &mut place.kind), "get_device_type")?;
            ok((core.aoti_torch_get_device_index)(self.handle, &mut place.index), "get_device_index")?;
            ok((core.aoti_torch_get_data_ptr)(self.handle, &mut data), "get_data_ptr")?;
        }
        let list = |from: *const i64| match usize::try_from(rank) {
            // SAFETY: torch returns as many numbers as the rank, which live as long as the tensor.
            Ok(rank) if rank > 0 => unsafe { std::slice::from_raw_parts(from, rank) },
            _ => &[],
        };
        Ok(Described { place, dtype, data, sizes: list(sizes), strides: list(strides) })
    }

    /// A tensor of floats as the operator takes it.
    pub(super) fn float(&self, name: &'static str) -> Result<(Tensor<'_>, Place)> {
        let Described { place, dtype, data, sizes, strides } = self.describe()?;
        let found = self.api.floats.find(dtype);
        let dtype = found.ok_or_else(|| Refused::wrong_type(name, dtype_name(dtype), EXPECTED))?;
        Ok((Tensor { name, data, dtype, sizes, strides: Some(strides) }, place))
    }

    /// A contiguous copy, unless the dimensions from `first` on are contiguous already.
    pub(super) fn dense_from(&self, first: usize) -> Result<Option<Self>> {
        let Described { place, dtype, data, sizes, strides } = self.describe()?;
        // Only sizes and strides count here.
        let tensor = Tensor { name: "", data, dtype: Dtype::F32, sizes, strides: Some(strides) };
        let usable = strides.iter().all(|&stride| stride >= 0);
        // A tensor of too many dimensions is refused by its name when the shapes are checked.
        let refused = sizes.len() > MOST_DIMENSIONS;
        if refused || usable && tensor.dense_from(first.min(sizes.len())) {
            return Ok(None);
        }
        let copy = Self::empty(self.api, sizes, dtype, place)?;
        // SAFETY: both tensors live and have the same sizes.
        ok(unsafe { (self.api.core.aoti_torch_copy_)(copy.handle, self.handle, 0) }, "copy_")?;
        Ok(Some(copy))
    }
}

/// Torch's name of a type, for messages. The numbers have never changed.
pub(super) fn dtype_name(number: i32) -> String {
    let name = match number {
        0 => "uint8",
        1 => "int8",
        2 => "int16",
        3 => "int32",
        4 => "int64",
        5 => "float16",
        6 => "float32",
        7 => "float64",
        8..=10 => "a complex type",
        11 => "bool",
        15 => "bfloat16",
        23..=26 => "an 8-bit floating-point type",
        _ => return format!("type number {number} of torch"),
    };
    name.to_owned()
}
