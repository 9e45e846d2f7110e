//! Things that are made once for each key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msda::Result;

/// Values by key. Whoever asks first makes the value, whoever asks meanwhile waits for that key only, and a failure
/// is forgotten.
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

    /// Has `value` for `key` from now on.
    pub(super) fn put(&self, key: K, value: V) {
        locked(&self.0).insert(key, Arc::new(Mutex::new(Some(value))));
    }

    /// Forgets everything.
    pub(super) fn clear(&self) {
        locked(&self.0).clear();
    }
}

/// A panic while making a value leaves none, so there is nothing broken to see.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
