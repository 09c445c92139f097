//! A value that every call reads without a lock, and that is rarely replaced.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex};

use crate::lock::lock;

/// The latest of a few values. Reading takes no lock and never waits; a value that was replaced stays until all are
/// dropped, because a reader may still use it, and is used again if an equal one comes back.
#[derive(Debug)]
pub struct SwapCell<T> {
    /// One of `all`.
    latest: AtomicPtr<T>,
    /// Only ever added to.
    all: Mutex<Vec<Arc<T>>>,
}

impl<T> SwapCell<T> {
    /// The first value.
    pub fn new(value: T) -> SwapCell<T> {
        let first = Arc::new(value);
        SwapCell { latest: AtomicPtr::new(Arc::as_ptr(&first).cast_mut()), all: Mutex::new(vec![first]) }
    }

    /// The latest value.
    pub fn get(&self) -> &T {
        // SAFETY: it points into an `Arc` of `all`, which lets go of none before `self` is dropped, and nobody writes
        // there.
        unsafe { &*self.latest.load(Ordering::Acquire) }
    }
}

impl<T: PartialEq> SwapCell<T> {
    /// Replaces the value for later reads.
    pub fn replace(&self, value: T) {
        self.update(|_| value);
    }

    /// As [`SwapCell::replace`], by a value made from the latest one, which no other thread replaces meanwhile.
    pub fn update(&self, change: impl FnOnce(&T) -> T) {
        let mut all = lock(&self.all);
        let value = change(self.get());
        let known = all.iter().find(|known| ***known == value).cloned();
        let value = known.unwrap_or_else(|| {
            all.push(Arc::new(value));
            all[all.len() - 1].clone()
        });
        self.latest.store(Arc::as_ptr(&value).cast_mut(), Ordering::Release);
    }
}

impl<T: Default> Default for SwapCell<T> {
    fn default() -> SwapCell<T> {
        SwapCell::new(T::default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_see_the_latest_value_and_keep_the_one_they_have() {
        let latest = SwapCell::new(0);
        let first = latest.get();
        std::thread::scope(|threads| {
            for _ in 1..=8 {
                threads.spawn(|| latest.update(|value| value + 1));
            }
        });
        assert_eq!((*latest.get(), *first), (8, 0));
        latest.replace(9);
        assert_eq!(*latest.get(), 9);
    }

    #[test]
    fn a_value_that_comes_back_takes_no_more_memory() {
        let latest = SwapCell::new(1);
        let first: *const i32 = latest.get();
        for _ in 0..100 {
            latest.replace(2);
            latest.replace(1);
        }
        assert_eq!(latest.get() as *const i32, first);
        assert_eq!(lock(&latest.all).len(), 2);
    }
}
