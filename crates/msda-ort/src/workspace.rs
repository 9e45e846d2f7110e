//! Device memory for the work of a call.

use std::ffi::c_void;
use std::ptr;

use msda_call::error::{Kind, Refused, Result};

use crate::api::{Api, Handle, Release};

/// Device memory of ONNX Runtime's allocator.
#[derive(Debug)]
pub(crate) struct Workspace {
    api: Api,
    allocator: Handle,
    memory: *mut c_void,
    stream: *mut c_void,
    bytes: usize,
}

// SAFETY: allocators may be used from any thread; the addresses are only passed on.
unsafe impl Send for Workspace {}

impl Workspace {
    /// The address of device memory for work on a stream. It is not freed before the kernel is:
    /// ONNX Runtime's allocator may give freed memory to another stream, and a captured graph uses
    /// it again.
    ///
    /// # Safety
    /// `context` is that of the run, and `device` describes memory of its device.
    pub(crate) unsafe fn find_or_add(
        all: &mut Vec<Self>,
        api: Api,
        context: Handle,
        device: Handle,
        stream: *mut c_void,
        bytes: usize,
    ) -> Result<u64> {
        let fits = |found: &&Self| found.stream == stream && found.bytes >= bytes;
        if let Some(found) = all.iter().find(fits) {
            return Ok(found.memory.addr() as u64);
        }
        // Sizes that grow slowly take at most twice the largest.
        let bytes = bytes.checked_next_power_of_two().unwrap_or(bytes);
        let mut new = Self { api, allocator: ptr::null_mut(), memory: ptr::null_mut(), stream, bytes };
        // SAFETY: the run has not ended, so context and device live; the results are valid to
        // write.
        unsafe {
            api.kernel_context_get_allocator(context, device, &mut new.allocator)?;
            api.allocator_alloc(new.allocator, bytes, &mut new.memory)?;
        }
        if new.memory.is_null() {
            let message = format!("workspace: ONNX Runtime has no {bytes} bytes of device memory");
            return Err(Refused::new(Kind::Memory, message));
        }
        let address = new.memory.addr() as u64;
        all.push(new);
        Ok(address)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // SAFETY: both belong to this workspace and are freed once. Runs have ended.
        unsafe {
            if !self.memory.is_null() {
                let _ = self.api.allocator_free(self.allocator, self.memory);
            }
            if !self.allocator.is_null() {
                self.api.release(Release::Allocator, self.allocator);
            }
        }
    }
}
