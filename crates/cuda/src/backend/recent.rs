//! Keeps recently created values, up to a limit; beyond it, the oldest is dropped.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

/// A bounded store of values by key.
pub(super) struct Recent<K, V> {
    most: usize,
    values: HashMap<K, Arc<V>>,
    /// Keys by age, oldest first.
    order: VecDeque<K>,
}

impl<K: Clone + Eq + Hash, V> Recent<K, V> {
    /// An empty store of at most `most` values.
    pub fn new(most: usize) -> Recent<K, V> {
        Recent { most, values: HashMap::new(), order: VecDeque::new() }
    }

    /// The value of a key, if present.
    pub fn get(&self, key: &K) -> Option<Arc<V>> {
        self.values.get(key).cloned()
    }

    /// The value of a key, created if missing.
    ///
    /// # Errors
    /// The errors of `make`; nothing is stored then.
    pub fn get_or_make<E>(&mut self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<Arc<V>, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let value = Arc::new(make()?);
        if self.order.len() >= self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.values.remove(&oldest);
        }
        self.order.push_back(key.clone());
        self.values.insert(key, value.clone());
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_goes_and_failures_leave_nothing() {
        let mut recent = Recent::new(2);
        let mut made = Vec::new();
        for key in [1, 2, 1, 3, 2, 1] {
            let value = recent.get_or_make(key, || {
                made.push(key);
                Ok::<i32, ()>(key * 10)
            });
            assert_eq!(*value.unwrap(), key * 10);
        }
        assert_eq!(made, [1, 2, 3, 1]);
        assert_eq!(recent.get_or_make(9, || Err("no")), Err("no"));
        assert!(recent.get(&9).is_none());
    }
}
