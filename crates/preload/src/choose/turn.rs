//! One process at a time measures beside a cache file; the others wait for what it finds.

use std::fs::File;
use std::time::{Duration, Instant};

use tightfit_core::profile::Cache;

/// How long to wait for another process. Longer could be forever: the other may wait, within a collective operation, for
/// work that this process has yet to enqueue.
const PATIENCE: Duration = Duration::from_secs(10);

/// The right to measure, among the processes that share a cache file. The lock goes with the file.
pub(super) struct Turn {
    _lock: File,
}

impl Turn {
    /// Waits for it, though not for long.
    ///
    /// # Errors
    /// A sentence, if another process kept it.
    pub fn take(cache: &Cache) -> Result<Turn, String> {
        let path = cache.path().with_extension("turn");
        let lock = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let started = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Turn { _lock: lock }),
                Err(std::fs::TryLockError::WouldBlock) if started.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(std::fs::TryLockError::WouldBlock) => {
                    return Err(format!("another process has been measuring for {} s", PATIENCE.as_secs()));
                }
                // Where files cannot be locked, every process measures for itself.
                Err(std::fs::TryLockError::Error(_)) => return Ok(Turn { _lock: lock }),
            }
        }
    }
}
