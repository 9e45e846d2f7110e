//! Textures: memory that kernels read through the texture unit.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use msda::{Dtype, Result};

use crate::functions::functions;
use msda_cuda::driver::{Device, Memory, check};
use msda_cuda::kernels::{Owned, Resource};

functions! {
    create: "cuTexObjectCreate" => fn(
        *mut u64,
        *const Pitched,
        *const Reading,
        *const c_void
    ),
    destroy: "cuTexObjectDestroy" => fn(u64),
}

/// `CUDA_RESOURCE_DESC` of rows in memory: the union of the resources has 128 bytes.
#[repr(C)]
struct Pitched {
    kind: u64,
    address: u64,
    format: u32,
    channels: u32,
    width: usize,
    height: usize,
    pitch: usize,
    rest: [u64; 11],
    flags: u64,
}

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
struct Reading {
    address_modes: [u32; 3],
    filter_mode: u32,
    /// Flags, anisotropy, the filter mode and three numbers of mipmaps, the colour outside, and
    /// what is reserved.
    rest: [u32; 22],
}

/// Numbers of cuda.h.
const PITCH_2D: u64 = 3;
const HALF: u32 = 0x10;
const FLOAT: u32 = 0x20;
const CLAMP: u32 = 1;
const LINEAR: u32 = 1;

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
fn create(memory: &Memory, texels: &Texels) -> Result<u64> {
    debug_assert!(texels.at + texels.pitch * texels.height <= memory.len(), "{texels:?}");
    let _bound = memory.device().bind_relaxed()?;
    let resource = Pitched {
        kind: PITCH_2D,
        address: memory.address() + texels.at as u64,
        format: if texels.dtype == Dtype::F16 { HALF } else { FLOAT },
        channels: texels.channels as u32,
        width: texels.width,
        height: texels.height,
        pitch: texels.pitch,
        rest: [0; 11],
        flags: 0,
    };
    let reading = Reading { address_modes: [CLAMP; 3], filter_mode: LINEAR, rest: [0; 22] };
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
    textures: Vec<(u64, usize)>,
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
