//! Work beside a graph capture.

use std::ffi::c_uint;
use std::marker::PhantomData;

use super::api;
use super::types::capture;

/// While it lives, the calling thread may allocate, load and wait although a stream captures a
/// graph. Otherwise the driver refuses such calls and invalidates the capture.
#[derive(Debug)]
#[must_use = "the mode holds only while this lives"]
pub struct Relaxed {
    before: c_uint,
    /// The mode belongs to the thread.
    thread: PhantomData<*mut ()>,
}

impl Relaxed {
    pub(super) fn new() -> Self {
        Self { before: exchange(capture::RELAXED), thread: PhantomData }
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        exchange(self.before);
    }
}

/// Sets the thread's mode and returns the one before. The driver refuses only modes that do not
/// exist.
fn exchange(mut mode: c_uint) -> c_uint {
    // SAFETY: `mode` is valid to read and write.
    let _ = unsafe { api::cuThreadExchangeStreamCaptureMode(&mut mode) };
    mode
}
