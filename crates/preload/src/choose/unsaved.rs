//! Results that are not in the cache yet. A training program must not wait for another process that writes to the
//! cache. So a result that cannot be written at once is written with the next one, or when the process ends.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::Duration;

use tightfit_conv::{Device, Measurement, Problem};
use tightfit_profile::{Cache, Comparison, ComparisonKey, Decision, DecisionKey};
use tightfit_units::Error;

use crate::lock::lock;
use crate::log::trace;

/// The longest wait for the cache: while the program trains, and when it ends.
pub(super) const IN_TRAINING: Duration = Duration::from_millis(20);
const AT_EXIT: Duration = Duration::from_secs(10);

/// The results to be written.
pub(super) enum Entry {
    Decision(DecisionKey, Decision),
    /// Of one shape.
    Measured(Problem, Vec<Measurement>),
    Compared(ComparisonKey, Vec<Comparison>),
}

impl Entry {
    fn write(&self, cache: &Cache, device: &Device) -> Result<(), Error> {
        match self {
            Entry::Decision(key, decision) => cache.keep_decision(device, key, decision),
            Entry::Measured(problem, new) => cache.keep_new(device, problem, new),
            Entry::Compared(key, new) => cache.keep_comparisons(device, key, new),
        }
    }
}

/// By the time of their coming.
#[derive(Default)]
pub(super) struct Unsaved(Mutex<VecDeque<(Device, Entry)>>);

impl Unsaved {
    /// Writes earlier results and then this one, if the cache can be written now.
    pub fn write(&self, cache: &Cache, device: &Device, entry: Entry) {
        lock(&self.0).push_back((device.clone(), entry));
        // If the file is locked now, they are written with the next results.
        let _ = self.write_all(cache);
    }

    /// Writes the rest, and waits for the cache if necessary.
    pub fn end(&self, cache: &Cache) {
        cache.set_patience(AT_EXIT);
        if let Err(locked) = self.write_all(cache) {
            trace!("could not save results: {}", locked.chain());
        }
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        lock(&self.0).is_empty()
    }

    /// Writes the rest.
    ///
    /// # Errors
    /// Another process holds the cache, so the remaining results stay unsaved.
    fn write_all(&self, cache: &Cache) -> Result<(), Error> {
        let mut left = lock(&self.0);
        while let Some((device, entry)) = left.front() {
            match entry.write(cache, device) {
                Err(error) if Cache::is_locked(&error) => return Err(error),
                Err(error) => trace!("could not save results: {}", error.chain()),
                Ok(()) => {}
            }
            left.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::Connection;
    use tightfit_conv::{Algorithm, Notes};
    use tightfit_units::{Bytes, Nanos};

    use super::*;

    #[test]
    fn a_write_that_another_process_delays_happens_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache.db");
        let (cache, unsaved) = (Cache::open(&path).unwrap(), Unsaved::default());
        cache.set_patience(IN_TRAINING);
        let problem: Problem = "forward n4 c3 h8 w8 k4 r3 s3 f32".parse().unwrap();
        let device = Device { backend: "cuda".into(), name: "a".into(), library: "1".into(), threads: 0 };
        let measured = |algorithm: &str| {
            let measurement = Measurement {
                notes: Notes(0),
                ..Measurement::once(Algorithm::new(algorithm), 4, Nanos(5), Bytes::ZERO)
            };
            Entry::Measured(problem, vec![measurement])
        };
        let saved = || cache.measurements(&device, &problem).unwrap().len();
        let other = Connection::open(&path).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        unsaved.write(&cache, &device, measured("a"));
        unsaved.write(&cache, &device, measured("b"));
        assert_eq!(saved(), 0);
        other.execute_batch("ROLLBACK").unwrap();
        unsaved.write(&cache, &device, measured("c"));
        assert_eq!(saved(), 3);
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        unsaved.write(&cache, &device, measured("d"));
        other.execute_batch("ROLLBACK").unwrap();
        unsaved.end(&cache);
        assert_eq!(saved(), 4);
    }
}
