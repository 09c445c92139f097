//! Locks that outlive panics.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, even if a thread panicked while it held the lock: what is locked here is valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
