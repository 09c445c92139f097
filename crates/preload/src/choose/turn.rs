//! Lets one process at a time measure for a cache file, and one thread per device; the others wait for its results.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use tightfit_profile::Cache;

use crate::log::trace;

/// How long to wait for another process or thread. Waiting longer could deadlock: the other may be in a collective
/// operation that needs work which this one has yet to enqueue.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// `O_NONBLOCK` and `O_NOFOLLOW` of Linux on x86-64, so that opening neither waits for a pipe nor follows a link.
const WITHOUT_WAITING: i32 = 0o4000 | 0o400_000;

/// A process's turn to measure, among the processes that share a cache file. Closing the file releases the lock.
pub(super) struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits briefly for the turn. None without a lock file, for example because something else has its name: then
    /// every process measures for itself.
    ///
    /// # Errors
    /// A sentence, if another process still holds it.
    pub fn take(cache: &Cache) -> Result<Option<Turn>, String> {
        let mut name = cache.path().as_os_str().to_owned();
        name.push(".turn");
        let lock = match open(name.as_ref()) {
            Ok(lock) => lock,
            Err(error) => {
                trace!("{}: {error}; measuring without a lock", Path::new(&name).display());
                return Ok(None);
            }
        };
        let attempt = || match lock.try_lock() {
            Err(std::fs::TryLockError::WouldBlock) => None,
            // If files cannot be locked, every process measures for itself.
            Ok(()) | Err(std::fs::TryLockError::Error(_)) => Some(()),
        };
        within(MAX_WAIT, attempt).ok_or_else(|| timed_out("another process"))?;
        Ok(Some(Turn { _lock: lock }))
    }
}

/// Opens or creates a file to lock, and keeps its content.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).custom_flags(WITHOUT_WAITING);
    let file = options.open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(std::io::Error::other("is not a regular file")) }
}

/// Waits for exclusive use of something that only one thread at a time may measure with.
///
/// # Errors
/// A sentence, if another thread still holds it.
pub(super) fn wait_for<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>, String> {
    let attempt = || match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    within(MAX_WAIT, attempt).ok_or_else(|| timed_out("another thread"))
}

fn timed_out(whom: &str) -> String {
    format!("{whom} has been measuring for {} s", MAX_WAIT.as_secs())
}

/// Repeats `attempt` until it succeeds, or `None` if that takes longer than `patience`.
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
    fn a_held_lock_is_waited_for_until_the_timeout() {
        let mutex = Mutex::new(());
        let kept = mutex.lock().unwrap();
        assert!(within(Duration::from_millis(20), || mutex.try_lock().ok()).is_none());
        drop(kept);
        assert!(wait_for(&mutex).is_ok());
        let mut attempts = 0;
        let third = || {
            attempts += 1;
            (attempts == 3).then_some(attempts)
        };
        assert_eq!(within(Duration::from_secs(60), third), Some(3));
    }
}
