//! Values that are made once per key.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use msda::Result;

/// Values by key. The first caller makes the value; other callers with the same key wait for it. A
/// failure is not kept.
#[derive(Debug)]
pub(super) struct OncePerKey<K, V> {
    values: Mutex<BTreeMap<K, Place<V>>>,
    most: usize,
}

type Place<V> = Arc<Mutex<Option<V>>>;

impl<K: Ord, V: Clone> OncePerKey<K, V> {
    /// Keeps about so many values: if there are more, all are forgotten that are not being made.
    pub(super) const fn new(most: usize) -> Self {
        Self { values: Mutex::new(BTreeMap::new()), most }
    }

    /// The value of `key`, made by `make` when there is none yet.
    pub(super) fn get(&self, key: K, make: impl FnOnce() -> Result<V>) -> Result<V> {
        let slot = self.place(key);
        let mut slot = locked(&slot);
        if let Some(value) = &*slot {
            return Ok(value.clone());
        }
        Ok(slot.insert(make()?).clone())
    }

    fn place(&self, key: K) -> Place<V> {
        let mut values = locked(&self.values);
        if values.len() >= self.most && !values.contains_key(&key) {
            values.retain(|_, place| Arc::strong_count(place) > 1);
        }
        values.entry(key).or_default().clone()
    }

    /// Sets the value of `key`.
    pub(super) fn put(&self, key: K, value: V) {
        locked(&self.values).insert(key, Arc::new(Mutex::new(Some(value))));
    }

    /// Removes all values.
    pub(super) fn clear(&self) {
        locked(&self.values).clear();
    }
}

/// A panic while a value is made leaves an empty slot, which is a valid state.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_made_once_and_their_number_is_bounded() {
        let (all, made) = (OncePerKey::new(4), std::cell::Cell::new(0));
        let get = |key: u32| {
            all.get(key, || {
                made.set(made.get() + 1);
                Ok(key)
            })
        };
        for key in [1, 2, 1, 2, 3, 4, 1] {
            assert_eq!(get(key).unwrap(), key);
        }
        assert_eq!(made.get(), 4);
        // The fifth key makes room, and so does the ninth. The value that is being made stays.
        all.get(5, || (6..10).map(get).last().unwrap()).unwrap();
        assert_eq!(locked(&all.values).keys().copied().collect::<Vec<_>>(), [5, 9]);
        (10..100).for_each(|key| assert_eq!(get(key).unwrap(), key));
        assert!(locked(&all.values).len() <= 4);
    }
}
