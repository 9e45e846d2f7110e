//! Descriptions of tensors for bulk copies into shared memory.
#![allow(unsafe_code)]

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion as Promote, CUtensorMapSwizzle,
};
use msda::{Dtype, Error, ErrorKind, Result};

use crate::functions::functions;
use msda_cuda::driver::{Device, StreamHandle, check};
use msda_cuda::kernels::{Hook, Owned, Resource};
use msda_cuda::{Addresses, Slot};

functions! {
    encode_tiled: "cuTensorMapEncodeTiled" => fn(
        *mut CUtensorMap,
        DataType,
        u32,
        *mut c_void,
        *const u64,
        *const u64,
        *const u32,
        *const u32,
        CUtensorMapInterleave,
        CUtensorMapSwizzle,
        Promote,
        CUtensorMapFloatOOBfill
    ),
}

/// Most dimensions that a tensor can have here.
const MAX_RANK: usize = 5;

/// A tensor in device memory and the window of it that one bulk copy brings into shared memory.
/// Dimensions are listed from the one whose elements are neighbours.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tiled<'a> {
    /// The type of its elements.
    pub(crate) dtype: Dtype,
    /// Where it begins; a multiple of 16.
    pub(crate) address: u64,
    /// The size of each dimension in elements.
    pub(crate) sizes: &'a [u64],
    /// Bytes from one element to the next in each dimension but the first; multiples of 16.
    pub(crate) strides: &'a [u64],
    /// The window's size in each dimension, in elements, at most 256; its rows are a multiple of 16
    /// bytes.
    pub(crate) window: &'a [u32],
}

impl Default for Tiled<'_> {
    /// No dimensions, of `f32`: what is left to fill in is the tensor.
    fn default() -> Self {
        Self { dtype: Dtype::F32, address: 0, sizes: &[], strides: &[], window: &[] }
    }
}

/// The driver's encoding of a [`Tiled`] tensor: a `__grid_constant__ const` parameter of a kernel.
/// What a copy reads outside the tensor is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// Encodes `tensor`, which is on `device`.
    pub(crate) fn tiled(device: &Device, tensor: &Tiled<'_>) -> Result<Self> {
        tensor.check()?;
        let _bound = device.bind()?;
        let mut map = CUtensorMap { opaque: [0; 16] };
        let every_element = [1; MAX_RANK];
        // SAFETY: `map` is valid to write and aligned by its type; the arrays have as many elements
        // as the rank says (strides one less), which `check` saw; the address is only encoded.
        let result = unsafe {
            (functions()?.encode_tiled)(
                &mut map,
                match tensor.dtype {
                    Dtype::F64 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                    Dtype::F32 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                    Dtype::F16 => DataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                    Dtype::Bf16 => DataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                },
                tensor.sizes.len() as u32,
                tensor.address as *mut c_void,
                tensor.sizes.as_ptr(),
                tensor.strides.as_ptr(),
                tensor.window.as_ptr(),
                every_element.as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                Promote::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("cuTensorMapEncodeTiled", result)?;
        Ok(Self(map.opaque))
    }
}

/// A window of value that is described when its address is known: see [`Tiled`].
#[derive(Debug, Clone)]
pub(crate) struct TmaWindow {
    /// Where the description lies in the kernel's argument.
    pub(crate) place: usize,
    /// Bytes from the tensor's address to its first element.
    pub(crate) offset: u64,
    /// The type of its elements.
    pub(crate) dtype: Dtype,
    /// Sizes, from the innermost dimension.
    pub(crate) sizes: Vec<u64>,
    /// Strides in bytes of all dimensions but the innermost.
    pub(crate) strides: Vec<u64>,
    /// The window that one copy brings.
    pub(crate) window: Vec<u32>,
}

/// The windows of a call with one kernel.
#[derive(Debug, Clone, Default)]
pub(crate) struct TmaWindows(pub(crate) Vec<TmaWindow>);

impl Resource for TmaWindows {
    fn bytes(&self) -> usize {
        0
    }

    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        Ok(Box::new(Placed { device: device.clone(), windows: self.0.clone() }))
    }
}

#[derive(Debug)]
struct Placed {
    device: Device,
    windows: Vec<TmaWindow>,
}

impl Owned for Placed {
    /// Kernels need no address of it.
    fn word(&self, _index: usize) -> u64 {
        0
    }

    fn hook(&self) -> Option<&dyn Hook> {
        Some(self)
    }
}

impl Hook for Placed {
    fn before(&self, _: usize, at: &Addresses, argument: &mut [u8], _: StreamHandle<'_>) -> Result<()> {
        for TmaWindow { place, offset, dtype, sizes, strides, window } in &self.windows {
            let address = at[Slot::Value] + offset;
            let words =
                TensorMap::tiled(&self.device, &Tiled { dtype: *dtype, address, sizes, strides, window })?.0;
            for (bytes, word) in argument[*place..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.to_ne_bytes();
            }
        }
        Ok(())
    }
}

impl Tiled<'_> {
    /// What the driver demands, which it would refuse without saying what is wrong.
    fn check(&self) -> Result<()> {
        let refuse = |what: &str, got: String, expected: &str| {
            Err(Error::new(ErrorKind::Shape, format!("tensor map: {what}"), got, expected))
        };
        let rank = self.sizes.len();
        if !(1..=MAX_RANK).contains(&rank) {
            return refuse("dimensions", rank.to_string(), "1 to 5");
        }
        if self.strides.len() != rank - 1 || self.window.len() != rank {
            let got = format!("{} and {}", self.strides.len(), self.window.len());
            return refuse("strides and window sizes", got, &format!("{} and {rank}", rank - 1));
        }
        if !self.address.is_multiple_of(16) {
            return refuse("address", format!("{:#x}", self.address), "a multiple of 16");
        }
        if !self.sizes.iter().all(|size| (1..=1 << 32).contains(size)) {
            return refuse("sizes", format!("{:?}", self.sizes), "1 to 2^32 each");
        }
        if !self.strides.iter().all(|stride| stride.is_multiple_of(16) && *stride < 1 << 40) {
            return refuse("strides", format!("{:?}", self.strides), "multiples of 16 bytes below 2^40");
        }
        if !self.window.iter().all(|side| (1..=256).contains(side)) {
            return refuse("window", format!("{:?}", self.window), "1 to 256 elements each");
        }
        let row = self.window[0] as usize * self.dtype.size();
        if !row.is_multiple_of(16) {
            return refuse("bytes of a row of the window", row.to_string(), "a multiple of 16");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_driver_would_refuse_is_refused_with_a_reason() {
        let good = Tiled {
            address: 256,
            sizes: &[32, 100, 80],
            strides: &[128, 12_800],
            window: &[32, 4, 4],
            ..Tiled::default()
        };
        good.check().unwrap();
        for (bad, reason) in [
            (Tiled { sizes: &[], strides: &[], window: &[], ..good }, "dimensions"),
            (Tiled { strides: &[128], ..good }, "strides and window"),
            (Tiled { address: 8, ..good }, "address"),
            (Tiled { sizes: &[32, 0, 80], ..good }, "sizes"),
            (Tiled { strides: &[120, 12_800], ..good }, "multiples of 16 bytes"),
            (Tiled { window: &[32, 257, 1], ..good }, "window"),
            (Tiled { window: &[3, 1, 1], ..good }, "row of the window"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn tensor_maps_are_encoded() {
        let device = match Device::open(0) {
            Ok(device) => device,
            Err(why) => {
                assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
                return eprintln!("skipped: {why}");
            }
        };
        let memory = device.alloc(100 * 80 * 64).unwrap();
        for (dtype, width) in [(Dtype::F32, 16), (Dtype::F16, 32), (Dtype::Bf16, 32)] {
            let tiled = Tiled {
                dtype,
                address: memory.address(),
                sizes: &[width, 80, 100],
                strides: &[64, 80 * 64],
                window: &[width as u32, 4, 2],
            };
            let map = TensorMap::tiled(&device, &tiled).unwrap();
            let other = Tiled { window: &[width as u32, 4, 4], ..tiled };
            assert_ne!(map, TensorMap::tiled(&device, &other).unwrap());
        }
        let line = Tiled { address: memory.address(), sizes: &[1000], window: &[64], ..Tiled::default() };
        TensorMap::tiled(&device, &line).unwrap();
    }
}
