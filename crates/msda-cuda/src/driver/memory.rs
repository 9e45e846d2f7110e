//! Device memory.

use msda::{Error, ErrorKind, Result};

use super::api;
use super::check::check;
use super::{Device, StreamHandle};

/// Memory on a device, freed when dropped. Freeing waits for the work that is queued on the device.
#[derive(Debug)]
pub struct Memory {
    device: Device,
    address: u64,
    bytes: usize,
}

impl Memory {
    pub(super) fn new(device: &Device, bytes: usize) -> Result<Self> {
        let mut address = 0;
        if bytes > 0 {
            let _bound = device.bind_relaxed()?;
            // SAFETY: a context is current; `address` is valid to write.
            check("cuMemAlloc", unsafe { api::cuMemAlloc_v2(&mut address, bytes) }).map_err(|error| {
                match error.kind() {
                    ErrorKind::Memory => too_large(device, bytes),
                    _ => error,
                }
            })?;
        }
        Ok(Self { device: device.clone(), address, bytes })
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Its address: a multiple of 256, or 0 when it is empty.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// Copies `bytes` to it, `offset` bytes from its beginning, and waits for the copy. Work on
    /// streams that uses it must be done.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some(address) = self.part(offset, bytes.len())? else { return Ok(()) };
        self.device.transfer("cuMemcpyHtoDAsync", |stream| {
            // SAFETY: both sides have that many bytes, and live until the copy is done.
            unsafe { api::cuMemcpyHtoDAsync_v2(address, bytes.as_ptr().cast(), bytes.len(), stream) }
        })
    }

    /// Copies from it, `offset` bytes from its beginning, into all of `bytes`. Work on streams that
    /// writes to it must be done.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let Some(address) = self.part(offset, bytes.len())? else { return Ok(()) };
        self.device.transfer("cuMemcpyDtoHAsync", |stream| {
            // SAFETY: both sides have that many bytes, and live until the copy is done.
            unsafe { api::cuMemcpyDtoHAsync_v2(bytes.as_mut_ptr().cast(), address, bytes.len(), stream) }
        })
    }

    /// Sets every byte of it and waits for that. Work on streams that uses it must be done.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let Some(address) = self.part(0, self.bytes)? else { return Ok(()) };
        self.device.transfer("cuMemsetD8Async", |stream| {
            // SAFETY: the memory has that many bytes.
            unsafe { api::cuMemsetD8Async(address, byte, self.bytes, stream) }
        })
    }

    /// The address of a part of it; none when the part is empty.
    fn part(&self, offset: usize, bytes: usize) -> Result<Option<u64>> {
        if offset.checked_add(bytes).is_none_or(|end| end > self.bytes) {
            let got = format!("{bytes} bytes at offset {offset}");
            let expected = format!("a part of its {} bytes", self.bytes);
            return Err(Error::new(ErrorKind::Shape, "device memory", got, expected));
        }
        Ok((bytes > 0).then_some(self.address + offset as u64))
    }
}

fn too_large(device: &Device, bytes: usize) -> Error {
    let free = device.free_memory().map_or_else(|_| "an unknown number".into(), |free| free.to_string());
    let expected = format!("at most the {free} bytes that are free on {}", device.name());
    Error::new(ErrorKind::Memory, "device memory", format!("a request for {bytes} bytes"), expected)
        .hint("end other programs on the GPU (`nvidia-smi` lists them), or use smaller batches")
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: the memory was made by `new` and is freed once.
            self.device.release(|| unsafe { api::cuMemFree_v2(self.address) });
        }
    }
}

/// Queues a fill: `bytes` bytes at `address` on `device` become `byte`.
///
/// # Safety
/// They are memory that `device` can write, and nobody else uses them until the fill is done.
pub unsafe fn fill_async(
    device: &Device,
    address: u64,
    byte: u8,
    bytes: usize,
    stream: StreamHandle<'_>,
) -> Result<()> {
    debug_assert!(bytes == 0 || address != 0, "a fill of {bytes} bytes has an address");
    // SAFETY: the stream lives; `bytes` bytes at `address` may be written, by the caller's promise.
    queue(device, "cuMemsetD8Async", bytes, || unsafe {
        api::cuMemsetD8Async(address, byte, bytes, stream.cu())
    })
}

/// Queues a copy of `bytes` bytes from `from` to `to` on `device`.
///
/// # Safety
/// Both are memory that `device` can use, they do not overlap, and nobody else writes to either or
/// reads `to` until the copy is done.
pub unsafe fn copy_async(
    device: &Device,
    to: u64,
    from: u64,
    bytes: usize,
    stream: StreamHandle<'_>,
) -> Result<()> {
    debug_assert!(bytes == 0 || (to != 0 && from != 0), "a copy of {bytes} bytes has two addresses");
    debug_assert!(to.abs_diff(from) >= bytes as u64, "{from:#x} and {to:#x} overlap in {bytes} bytes");
    // SAFETY: the stream lives; both sides have `bytes` bytes, by the caller's promise.
    queue(device, "cuMemcpyDtoDAsync", bytes, || unsafe {
        api::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.cu())
    })
}

/// Makes a call that queues work on so many bytes, unless there are none.
fn queue(device: &Device, name: &'static str, bytes: usize, call: impl FnOnce() -> u32) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let _bound = device.bind()?;
    check(name, call())
}
