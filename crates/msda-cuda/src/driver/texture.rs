//! Textures: memory that kernels read through the texture unit.

use cudarc::driver::sys::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_st__bindgen_ty_1 as Resource,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 as Pitched,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_5 as Reserved, CUDA_TEXTURE_DESC, CUaddress_mode,
    CUarray_format, CUfilter_mode, CUresourcetype,
};
use msda::{Dtype, Error, ErrorKind, Result};

use super::api;
use super::check::check;
use super::{Device, Memory};

/// Rows of texels in device memory. A texel is four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Texels {
    /// Bytes from the beginning of the memory; a multiple of [`Texels::ALIGN`].
    pub at: usize,
    /// The type of the numbers: `f16` or `f32`.
    pub dtype: Dtype,
    /// Texels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Row pitch in bytes; a multiple of 128.
    pub pitch: usize,
}

impl Texels {
    /// The alignment of a texture in bytes, on every device.
    pub const ALIGN: usize = 512;

    /// The largest width and height that every device takes.
    pub const MOST: (usize, usize) = (65536, 65000);

    /// Checks the driver's rules, and that all texels are within `bytes` bytes.
    fn check(&self, bytes: usize) -> Result<()> {
        let format = [Dtype::F16, Dtype::F32].contains(&self.dtype);
        let (w, h) = Self::MOST;
        let sizes = (1..=w).contains(&self.width) && (1..=h).contains(&self.height);
        let rows = self.pitch >= self.width.saturating_mul(4 * self.dtype.size());
        let aligned = self.at.is_multiple_of(Self::ALIGN) && self.pitch.is_multiple_of(128);
        let end = self.pitch.checked_mul(self.height).and_then(|length| length.checked_add(self.at));
        if format && sizes && rows && aligned && end.is_some_and(|end| end <= bytes) {
            return Ok(());
        }
        let expected = format!("rows of f16 or f32 texels within {bytes} bytes");
        Err(Error::new(ErrorKind::Shape, "texture", format!("{self:?}"), expected))
    }
}

/// A texture. Coordinates count texels, the centre of the first is at 0.5, and values between
/// centres are interpolated. Its memory must outlive its use.
#[derive(Debug)]
pub struct Texture {
    device: Device,
    handle: u64,
}

impl Texture {
    /// A texture of a part of `memory`.
    pub fn new(memory: &Memory, texels: &Texels) -> Result<Self> {
        texels.check(memory.len())?;
        let device = memory.device();
        let _bound = device.bind_relaxed()?;
        // The rest of the union must be zero.
        let mut res = Resource { reserved: Reserved { reserved: [0; 32] } };
        res.pitch2D = Pitched {
            devPtr: memory.address() + texels.at as u64,
            format: match texels.dtype {
                Dtype::F16 => CUarray_format::CU_AD_FORMAT_HALF,
                _ => CUarray_format::CU_AD_FORMAT_FLOAT,
            },
            numChannels: 4,
            width: texels.width,
            height: texels.height,
            pitchInBytes: texels.pitch,
        };
        let resource =
            CUDA_RESOURCE_DESC { resType: CUresourcetype::CU_RESOURCE_TYPE_PITCH2D, res, flags: 0 };
        let reading = CUDA_TEXTURE_DESC {
            addressMode: [CUaddress_mode::CU_TR_ADDRESS_MODE_CLAMP; 3],
            filterMode: CUfilter_mode::CU_TR_FILTER_MODE_LINEAR,
            flags: 0,
            maxAnisotropy: 0,
            mipmapFilterMode: CUfilter_mode::CU_TR_FILTER_MODE_POINT,
            mipmapLevelBias: 0.0,
            minMipmapLevelClamp: 0.0,
            maxMipmapLevelClamp: 0.0,
            borderColor: [0.0; 4],
            reserved: [0; 12],
        };
        let mut handle = 0;
        // SAFETY: a context is current; `handle` is valid to write; both descriptions are complete;
        // the texels are within the memory, as `check` found.
        let result = unsafe { api::cuTexObjectCreate(&mut handle, &resource, &reading, std::ptr::null()) };
        check("cuTexObjectCreate", result)?;
        Ok(Self { device: device.clone(), handle })
    }

    /// The handle that kernels use.
    pub fn handle(&self) -> u64 {
        self.handle
    }
}

impl Drop for Texture {
    fn drop(&mut self) {
        // SAFETY: the texture was made by `new` and is destroyed once.
        self.device.release(|| unsafe { api::cuTexObjectDestroy(self.handle) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_textures_are_refused() {
        let good = Texels { at: 512, dtype: Dtype::F16, width: 10, height: 3, pitch: 128 };
        good.check(512 + 3 * 128).unwrap();
        for bad in [
            Texels { at: 256, ..good },
            Texels { dtype: Dtype::Bf16, ..good },
            Texels { width: 0, ..good },
            Texels { width: 17, ..good },
            Texels { height: 4, ..good },
            Texels { height: usize::MAX, ..good },
            Texels { pitch: 160, ..good },
        ] {
            assert!(bad.check(512 + 3 * 128).is_err(), "{bad:?}");
        }
    }
}
