//! One process at a time measures beside a cache file, and one thread on a device; the others wait for what it finds.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use tightfit_core::profile::Cache;

use crate::log::tell;

/// How long to wait for another process or thread. Longer could be forever: the other may wait, within a collective
/// operation, for work that this one has yet to enqueue.
const PATIENCE: Duration = Duration::from_secs(10);

/// `O_NONBLOCK` and `O_NOFOLLOW` of Linux on x86-64: a pipe is not waited for, and what a link leads to is not touched.
const WITHOUT_WAITING: i32 = 0o4000 | 0o400_000;

/// The right to measure, among the processes that share a cache file. The lock goes with the file.
pub(super) struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for it, though not for long. None where there can be none, as where something else has the name of the lock's file:
    /// then every process measures for itself.
    ///
    /// # Errors
    /// A sentence, if another process kept it.
    pub fn take(cache: &Cache) -> Result<Option<Turn>, String> {
        let mut name = cache.path().as_os_str().to_owned();
        name.push(".turn");
        let lock = match open(name.as_ref()) {
            Ok(lock) => lock,
            Err(error) => {
                tell!("{}: {error}; measuring without a turn", Path::new(&name).display());
                return Ok(None);
            }
        };
        let attempt = || match lock.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => None,
            // Where files cannot be locked, every process measures for itself.
            Ok(()) | Err(std::fs::TryLockError::Error(_)) => Some(()),
        };
        within(PATIENCE, attempt).ok_or_else(|| kept_by("another process"))?;
        Ok(Some(Turn { _lock: lock }))
    }
}

/// Opens a file to lock, made if there is none, and leaves what is in it.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(WITHOUT_WAITING);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("is not a regular file")) }
}

/// Exclusive use of what one thread at a time measures with.
///
/// # Errors
/// A sentence, if another thread kept it.
pub(super) fn own<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, String> {
    let attempt = || match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    within(PATIENCE, attempt).ok_or_else(|| kept_by("another thread"))
}

fn kept_by(whom: &str) -> String {
    format!("{whom} has been measuring for {} s", PATIENCE.as_secs())
}

/// What `attempt` gives in the end; none if it gives nothing for so long.
fn within<T>(patience: Duration, mut attempt: impl FnMut() -> Option<T>) -> Option<T> {
    let started = Instant::now();
    loop {
        if let Some(taken) = attempt() {
            return Some(taken);
        }
        if started.elapsed() >= patience {
            return None;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_keeps_is_waited_for_and_then_given_up() {
        let mutex = Mutex::new(());
        let kept = mutex.lock().unwrap();
        assert!(within(Duration::from_millis(20), || mutex.try_lock().ok()).is_none());
        drop(kept);
        assert!(own(&mutex).is_ok());
        let mut attempts = 0;
        let third = || {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        };
        assert_eq!(within(Duration::from_secs(60), third), Some(3));
    }
}
