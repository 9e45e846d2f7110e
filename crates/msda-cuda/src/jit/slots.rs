//! Values that are made once per key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msda::Result;

/// Values by key. The first caller makes the value; other callers with the same key wait for it. A
/// failure is not kept.
#[derive(Debug)]
pub(super) struct Slots<K, V>(Mutex<BTreeMap<K, Slot<V>>>);

type Slot<V> = Arc<Mutex<Option<V>>>;

impl<K: Ord, V: Clone> Slots<K, V> {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(BTreeMap::new()))
    }

    /// The value of `key`, made by `make` when there is none yet.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> Result<V>) -> Result<V> {
        let slot = locked(&self.0).entry(key).or_default().clone();
        let mut slot = locked(&slot);
        if let Some(value) = &*slot {
            return Ok(value.clone());
        }
        Ok(slot.insert(make()?).clone())
    }

    /// Sets the value of `key`.
    pub(super) fn put(&self, key: K, value: V) {
        locked(&self.0).insert(key, Arc::new(Mutex::new(Some(value))));
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        locked(&self.0).clear();
    }
}

/// A panic while a value is made leaves an empty slot, which is a valid state.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
