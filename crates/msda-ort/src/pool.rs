//! Loops on ONNX Runtime's threads.

use std::any::Any;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use msda::Threads;

use crate::api::{Api, Handle};

/// ONNX Runtime's threads for the operators of a session, for one run.
pub(crate) struct Pool {
    api: Api,
    context: Handle,
}

// SAFETY: the context is used during the run alone, and the loop is started on the run's thread.
unsafe impl Send for Pool {}
// SAFETY: through a reference the context is only passed on to ONNX Runtime's loop.
unsafe impl Sync for Pool {}

impl Pool {
    /// # Safety
    /// `context` is that of a run, which ends after the last use of the pool.
    pub(crate) unsafe fn new(api: Api, context: Handle) -> Self {
        Self { api, context }
    }
}

impl Threads for Pool {
    /// ONNX Runtime does not say how many threads a session has. A number above it costs little.
    fn count(&self) -> usize {
        static COUNT: OnceLock<usize> = OnceLock::new();
        *COUNT.get_or_init(|| thread::available_parallelism().map_or(1, usize::from))
    }

    fn for_each(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
        struct Loop<'a> {
            work: &'a (dyn Fn(usize) + Sync),
            panic: Mutex<Option<Box<dyn Any + Send>>>,
        }
        unsafe extern "C" fn step(data: *mut c_void, i: usize) {
            // SAFETY: `data` is the loop below, which waits for all steps.
            let this = unsafe { &*data.cast::<Loop<'_>>() };
            if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (this.work)(i))) {
                this.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
            }
        }
        let this = Loop { work, panic: Mutex::new(None) };
        // SAFETY: the run of the context has not ended, and the call returns after the last step.
        let ran = unsafe {
            self.api.kernel_context_parallel_for(
                self.context,
                step,
                n,
                0,
                (&raw const this).cast_mut().cast(),
            )
        };
        if let Some(panic) = this.panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
            resume_unwind(panic);
        }
        // `Api::guard` turns it into a status.
        if let Err(refused) = ran {
            panic!("{}", refused.message);
        }
    }
}
