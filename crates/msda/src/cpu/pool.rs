//! Working memory that tasks share.

use std::sync::{Mutex, PoisonError};

/// Working memory that tasks take and give back. There are never more than tasks at a time.
pub(super) struct Pool<S, F> {
    make: F,
    idle: Mutex<Vec<S>>,
}

impl<S, F: Fn() -> S> Pool<S, F> {
    pub(super) fn new(make: F) -> Self {
        Self { make, idle: Mutex::new(Vec::new()) }
    }

    pub(super) fn take(&self) -> S {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.unwrap_or_else(|| (self.make)())
    }

    pub(super) fn put(&self, scratch: S) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(scratch);
    }
}
