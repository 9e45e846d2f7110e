//! Descriptions of tensors for bulk copies into shared memory.
#![allow(unsafe_code)]

use std::ffi::c_void;

use msda::{Dtype, Error, ErrorKind, Result};

use crate::functions::functions;
use msda_cuda::driver::{Device, StreamHandle, check};
use msda_cuda::kernels::{Hook, Owned, Resource};
use msda_cuda::{Addresses, Slot};

functions! {
    encode_tiled: "cuTensorMapEncodeTiled" => fn(
        *mut TensorMap,
        u32,
        u32,
        *mut c_void,
        *const u64,
        *const u64,
        *const u32,
        *const u32,
        u32,
        u32,
        u32,
        u32
    ),
}

/// How windows lie in shared memory and pass through L2, as in cuda.h.
const NO_INTERLEAVE: u32 = 0;
const NO_SWIZZLE: u32 = 0;
const PROMOTE_TO_128_BYTES: u32 = 2;
const ZEROS_OUTSIDE: u32 = 0;

/// Most dimensions that a tensor can have here.
const MAX_RANK: usize = 5;

/// A tensor in device memory and the window of it that one bulk copy brings into shared memory.
/// Dimensions are listed from the one whose elements are neighbours. The driver refuses addresses,
/// strides and rows that are no multiples of 16 bytes.
#[derive(Debug, Clone)]
pub(crate) struct Tiled {
    /// The type of its elements.
    pub(crate) dtype: Dtype,
    /// Where it begins.
    pub(crate) address: u64,
    /// The size of each dimension in elements.
    pub(crate) sizes: Vec<u64>,
    /// Bytes from one element to the next in each dimension but the first.
    pub(crate) strides: Vec<u64>,
    /// The window's size in each dimension, in elements, at most 256.
    pub(crate) window: Vec<u32>,
}

/// The driver's encoding of a [`Tiled`] tensor: a `__grid_constant__ const` parameter of a kernel.
/// What a copy reads outside the tensor is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
pub(crate) struct TensorMap([u64; 16]);

impl TensorMap {
    /// Encodes `tensor`, which is on `device`.
    pub(crate) fn tiled(device: &Device, tensor: &Tiled) -> Result<Self> {
        let rank = tensor.sizes.len();
        let lengths = [rank, tensor.strides.len() + 1, tensor.window.len()];
        if lengths != [rank; 3] || !(1..=MAX_RANK).contains(&rank) {
            let expected = "1 to 5 sizes, one stride less, and as many sides of the window";
            return Err(Error::new(ErrorKind::Shape, "tensor map", format!("{tensor:?}"), expected));
        }
        let _bound = device.bind()?;
        let mut map = Self([0; 16]);
        let every_element = [1; MAX_RANK];
        // SAFETY: `map` is valid to write and aligned by its type; the arrays have as many elements
        // as the rank says (strides one less); the address is only encoded.
        let result = unsafe {
            (functions()?.encode_tiled)(
                &mut map,
                match tensor.dtype {
                    Dtype::F16 => 6,
                    Dtype::F32 => 7,
                    Dtype::F64 => 8,
                    Dtype::Bf16 => 9,
                },
                rank as u32,
                tensor.address as *mut c_void,
                tensor.sizes.as_ptr(),
                tensor.strides.as_ptr(),
                tensor.window.as_ptr(),
                every_element.as_ptr(),
                NO_INTERLEAVE,
                NO_SWIZZLE,
                PROMOTE_TO_128_BYTES,
                ZEROS_OUTSIDE,
            )
        };
        check("cuTensorMapEncodeTiled", result)?;
        Ok(map)
    }
}

/// Windows of value, whose address is known when a kernel is launched: the place of each
/// description in the kernel's argument, and the window with its offset as the address.
#[derive(Debug, Clone, Default)]
pub(crate) struct Windows(pub(crate) Vec<(usize, Tiled)>);

impl Resource for Windows {
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
    windows: Vec<(usize, Tiled)>,
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
        for (place, window) in &self.windows {
            let address = at[Slot::Value] + window.address;
            let words = TensorMap::tiled(&self.device, &Tiled { address, ..window.clone() })?.0;
            for (bytes, word) in argument[*place..].as_chunks_mut::<8>().0.iter_mut().zip(words) {
                *bytes = word.to_ne_bytes();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let tiled = |dtype, width: u32, sides: [u32; 2]| Tiled {
            dtype,
            address: memory.address(),
            sizes: vec![u64::from(width), 80, 100],
            strides: vec![64, 80 * 64],
            window: vec![width, sides[0], sides[1]],
        };
        for (dtype, width) in [(Dtype::F32, 16), (Dtype::F16, 32), (Dtype::Bf16, 32)] {
            let map = |sides| TensorMap::tiled(&device, &tiled(dtype, width, sides)).unwrap();
            assert_ne!(map([4, 2]), map([4, 4]));
        }
        // What the driver refuses, and what it must not be asked.
        let row = tiled(Dtype::F16, 3, [4, 2]);
        let line = Tiled { sizes: vec![1000], strides: vec![], window: vec![64], ..row.clone() };
        TensorMap::tiled(&device, &line).unwrap();
        let short = Tiled { strides: vec![64], ..tiled(Dtype::F16, 32, [4, 2]) };
        assert!([row, short].iter().all(|bad| TensorMap::tiled(&device, bad).is_err()));
    }
}
