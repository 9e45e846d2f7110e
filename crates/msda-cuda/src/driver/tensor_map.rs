//! Descriptions of tensors for bulk copies into shared memory.

use std::ffi::c_void;

use cudarc::driver::sys::{
    CUtensorMap, CUtensorMapDataType as DataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion as Promote, CUtensorMapSwizzle,
};
use msda::{Dtype, Error, ErrorKind, Result};

use super::Device;
use super::api;
use super::check::check;

/// Dimensions that a tensor map can have at most.
const MAX_RANK: usize = 5;

/// A tensor in device memory, and the window of it that one bulk copy loads into shared memory. The
/// first dimension is the contiguous one.
#[derive(Debug, Clone, Copy)]
pub struct Tiled<'a> {
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its address; a multiple of 16.
    pub address: u64,
    /// The size of each dimension in elements.
    pub sizes: &'a [u64],
    /// Bytes from one element to the next in each dimension but the first; multiples of 16.
    pub strides: &'a [u64],
    /// The window's size in each dimension, in elements, at most 256; its rows are a multiple of 16
    /// bytes.
    pub window: &'a [u32],
    /// How the window is laid out in shared memory.
    pub swizzle: Swizzle,
    /// The granularity of loads into the L2.
    pub promotion: Promotion,
}

impl Default for Tiled<'_> {
    /// `f32` without dimensions; the tensor itself is left to fill in.
    fn default() -> Self {
        Self {
            dtype: Dtype::F32,
            address: 0,
            sizes: &[],
            strides: &[],
            window: &[],
            swizzle: Swizzle::None,
            promotion: Promotion::Bytes128,
        }
    }
}

/// How the 16-byte chunks of a window's rows are swizzled in shared memory, so that columns have no
/// bank conflicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swizzle {
    /// Not swizzled.
    None,
    /// Within 32 bytes.
    Bytes32,
    /// Within 64 bytes.
    Bytes64,
    /// Within 128 bytes.
    Bytes128,
}

/// The granularity of loads into the L2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promotion {
    /// As many bytes as are requested.
    None,
    /// 64 bytes.
    Bytes64,
    /// 128 bytes.
    Bytes128,
    /// 256 bytes.
    Bytes256,
}

/// The driver's encoding of a [`Tiled`] tensor: a `__grid_constant__ const` parameter of a kernel.
/// Elements outside the tensor are copied as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(128))]
pub struct TensorMap([u64; 16]);

impl TensorMap {
    /// Encodes `tensor`, which is on `device`.
    pub fn tiled(device: &Device, tensor: &Tiled<'_>) -> Result<Self> {
        tensor.check()?;
        let _bound = device.bind()?;
        let mut map = CUtensorMap { opaque: [0; 16] };
        let every_element = [1; MAX_RANK];
        // SAFETY: `map` is valid to write and aligned by its type; the arrays have as many elements
        // as the rank (strides one less), as `check` found; the address is only encoded.
        let result = unsafe {
            api::cuTensorMapEncodeTiled(
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
                match tensor.swizzle {
                    Swizzle::None => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
                    Swizzle::Bytes32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
                    Swizzle::Bytes64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
                    Swizzle::Bytes128 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                },
                match tensor.promotion {
                    Promotion::None => Promote::CU_TENSOR_MAP_L2_PROMOTION_NONE,
                    Promotion::Bytes64 => Promote::CU_TENSOR_MAP_L2_PROMOTION_L2_64B,
                    Promotion::Bytes128 => Promote::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                    Promotion::Bytes256 => Promote::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                },
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        check("cuTensorMapEncodeTiled", result)?;
        Ok(Self(map.opaque))
    }
}

impl Tiled<'_> {
    /// Checks the driver's rules: the driver itself does not say which rule is violated.
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
        let longest = match self.swizzle {
            Swizzle::None => usize::MAX,
            Swizzle::Bytes32 => 32,
            Swizzle::Bytes64 => 64,
            Swizzle::Bytes128 => 128,
        };
        if !row.is_multiple_of(16) || row > longest {
            let expected = "a multiple of 16, at most the bytes of the swizzle";
            return refuse("bytes of a row of the window", row.to_string(), expected);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_tensor_maps_are_refused_with_a_reason() {
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
            (Tiled { swizzle: Swizzle::Bytes64, ..good }, "row of the window"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
