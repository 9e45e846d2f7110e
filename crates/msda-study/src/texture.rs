//! Textures: memory that kernels read through the texture unit.
#![allow(unsafe_code)]

use std::ptr;

use cudarc::driver::sys::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_DESC_st__bindgen_ty_1 as Described,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_4 as Pitched,
    CUDA_RESOURCE_DESC_st__bindgen_ty_1__bindgen_ty_5 as Room, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC,
    CUaddress_mode, CUarray_format, CUfilter_mode, CUresourcetype, CUtexObject,
};
use msda::{Dtype, Result};

use crate::functions::functions;
use msda_cuda::driver::{Device, Memory, check};
use msda_cuda::kernels::{Owned, Resource};

functions! {
    create: "cuTexObjectCreate" => fn(
        *mut CUtexObject,
        *const CUDA_RESOURCE_DESC,
        *const CUDA_TEXTURE_DESC,
        *const CUDA_RESOURCE_VIEW_DESC
    ),
    destroy: "cuTexObjectDestroy" => fn(CUtexObject),
}

/// Rows of texels in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Texels {
    /// Bytes from the beginning of the memory; a multiple of [`Texels::ALIGN`].
    pub(crate) at: usize,
    /// The type of the numbers: `f16` or `f32`.
    pub(crate) dtype: Dtype,
    /// Numbers of a texel: 1 or 4.
    pub(crate) channels: usize,
    /// Texels of a row.
    pub(crate) width: usize,
    /// Rows.
    pub(crate) height: usize,
    /// Bytes from row to row; a multiple of 128.
    pub(crate) pitch: usize,
}

impl Texels {
    /// What a texture begins at a multiple of, in bytes, on every device.
    pub(crate) const ALIGN: usize = 512;

    /// The most texels of a row that every device takes, and the most rows.
    pub(crate) const MOST: (usize, usize) = (65536, 65000);
}

/// Makes a texture of a part of `memory`, which [`Textures`] has made large enough, and returns its
/// handle. Coordinates count texels, the centre of the first being 0.5, and what lies between
/// centres is interpolated.
fn create(memory: &Memory, texels: &Texels) -> Result<CUtexObject> {
    debug_assert!(texels.at + texels.pitch * texels.height <= memory.len(), "{texels:?}");
    let _bound = memory.device().bind_relaxed()?;
    // All of the union is zero before the part that counts is written.
    let mut res = Described { reserved: Room { reserved: [0; 32] } };
    res.pitch2D = Pitched {
        devPtr: memory.address() + texels.at as u64,
        format: match texels.dtype {
            Dtype::F16 => CUarray_format::CU_AD_FORMAT_HALF,
            _ => CUarray_format::CU_AD_FORMAT_FLOAT,
        },
        numChannels: texels.channels as u32,
        width: texels.width,
        height: texels.height,
        pitchInBytes: texels.pitch,
    };
    let resource = CUDA_RESOURCE_DESC { resType: CUresourcetype::CU_RESOURCE_TYPE_PITCH2D, res, flags: 0 };
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
    // the texels are within the memory.
    let result = unsafe { (functions()?.create)(&mut handle, &resource, &reading, ptr::null()) };
    check("cuTexObjectCreate", result)?;
    Ok(handle)
}

/// Textures of one block of device memory, which begins with zeros.
#[derive(Debug, Clone, Default)]
pub(crate) struct Textures {
    bytes: usize,
    textures: Vec<Texels>,
}

impl Textures {
    /// Adds a texture at the end of the memory and returns its number.
    pub(crate) fn push(&mut self, texels: Texels) -> usize {
        let at = self.bytes.next_multiple_of(Texels::ALIGN);
        self.bytes = at + texels.pitch * texels.height;
        self.textures.push(Texels { at, ..texels });
        self.textures.len() - 1
    }
}

impl Resource for Textures {
    fn bytes(&self) -> usize {
        self.bytes
    }

    fn make(&self, device: &Device) -> Result<Box<dyn Owned>> {
        let mut memory = device.alloc(self.bytes)?;
        memory.fill(0)?;
        let mut made = Made { textures: Vec::new(), memory };
        for texels in &self.textures {
            made.textures.push((create(&made.memory, texels)?, texels.at));
        }
        Ok(Box::new(made))
    }
}

/// The handles and offsets of textures, and their memory.
#[derive(Debug)]
struct Made {
    textures: Vec<(CUtexObject, usize)>,
    memory: Memory,
}

impl Owned for Made {
    /// Texture `i` is word `2 * i`, the address of its memory word `2 * i + 1`.
    fn word(&self, index: usize) -> u64 {
        let (handle, at) = self.textures[index / 2];
        if index.is_multiple_of(2) { handle } else { self.memory.address() + at as u64 }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let (Ok(_bound), Ok(functions)) = (self.memory.device().bind_relaxed(), functions()) {
            for (handle, _) in &self.textures {
                // SAFETY: `create` made the texture, and it is destroyed once. A failure has no one
                // to report to.
                let _ = unsafe { (functions.destroy)(*handle) };
            }
        }
    }
}
