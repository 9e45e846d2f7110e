//! Device memory.

use std::ptr;

use cudarc::driver::sys;
use msda::{Error, ErrorKind, Result};

use super::check::check;
use super::{Device, StreamHandle};

/// Memory on a device, freed when dropped. Freeing waits for work that is queued on the device.
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
            let _bound = device.bind()?;
            // SAFETY: a context is current; `address` is valid to write.
            check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, bytes) }).map_err(|error| {
                match error.kind() {
                    ErrorKind::Memory => refused(device, bytes),
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

    /// Where it begins; a multiple of 256. 0 when it is empty.
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

    /// Copies `bytes` to it, `offset` bytes from its beginning, and waits until they are there. Work on other streams
    /// that uses it must be done.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        let Some(address) = self.part(offset, bytes.len())? else { return Ok(()) };
        let _bound = self.device.bind()?;
        // SAFETY: both sides have that many bytes.
        let result = unsafe { sys::cuMemcpyHtoD_v2(address, bytes.as_ptr().cast(), bytes.len()) };
        check("cuMemcpyHtoD", result)?;
        self.arrived()
    }

    /// Copies from it, `offset` bytes from its beginning, into all of `bytes`. Work on other streams that writes to
    /// it must be done.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let Some(address) = self.part(offset, bytes.len())? else { return Ok(()) };
        let _bound = self.device.bind()?;
        // SAFETY: both sides have that many bytes.
        let result = unsafe { sys::cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), address, bytes.len()) };
        check("cuMemcpyDtoH", result)
    }

    /// Sets every byte of it and waits until that is done. Work on other streams that uses it must be done.
    pub fn fill(&mut self, byte: u8) -> Result<()> {
        let Some(address) = self.part(0, self.bytes)? else { return Ok(()) };
        let _bound = self.device.bind()?;
        // SAFETY: the memory has that many bytes.
        check("cuMemsetD8", unsafe { sys::cuMemsetD8_v2(address, byte, self.bytes) })?;
        self.arrived()
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

    /// Waits for the default stream: copies from the host and fills return before they are done there, and our
    /// streams do not wait for it.
    fn arrived(&self) -> Result<()> {
        // SAFETY: a context is current; null is the default stream.
        check("cuStreamSynchronize", unsafe { sys::cuStreamSynchronize(ptr::null_mut()) })
    }
}

fn refused(device: &Device, bytes: usize) -> Error {
    let free = device.free_memory().map_or_else(|_| "unknown".into(), |free| format!("{free} bytes"));
    let expected = format!("no more than is free on {} ({free})", device.name());
    Error::new(ErrorKind::Memory, "device memory", format!("{bytes} bytes wanted"), expected)
        .hint("free what others hold (`nvidia-smi` lists them), or take fewer images or queries at a time")
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.address != 0 {
            // SAFETY: the memory was made by `new` and is freed once.
            self.device.release(|| unsafe { sys::cuMemFree_v2(self.address) });
        }
    }
}

/// Queues setting `bytes` bytes at `address` on `device`.
///
/// # Safety
/// They are memory that `device` can write, and nobody else uses them until `stream` got there.
pub unsafe fn fill_async(
    device: &Device,
    address: u64,
    byte: u8,
    bytes: usize,
    stream: StreamHandle<'_>,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let _bound = device.bind()?;
    // SAFETY: the caller's promise.
    check("cuMemsetD8Async", unsafe { sys::cuMemsetD8Async(address, byte, bytes, stream.cu()) })
}

/// Queues copying `bytes` bytes from `from` to `to` on `device`.
///
/// # Safety
/// Both are memory that `device` can use, they do not overlap, and nobody else writes to either or reads `to` until
/// `stream` got there.
pub unsafe fn copy_async(
    device: &Device,
    to: u64,
    from: u64,
    bytes: usize,
    stream: StreamHandle<'_>,
) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    let _bound = device.bind()?;
    // SAFETY: the caller's promise.
    check("cuMemcpyDtoDAsync", unsafe { sys::cuMemcpyDtoDAsync_v2(to, from, bytes, stream.cu()) })
}
