//! Counting calls by name, and failing the ones that a test asks for.
//!
//! ```text
//! fail("cuMemAlloc_v2", 2, 2)      calls:  cuMemAlloc  cuStreamCreate  cuMemAlloc  cuMemAlloc
//!                                  answer: real        real            2           real
//! ```

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks, whether or not a thread panicked while holding the lock: every value here is valid between any two statements.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One failure to come.
struct Failure {
    /// The function, or none for any.
    name: Option<String>,
    /// Matching calls until it happens, this one included.
    left: u64,
    status: i32,
}

/// The calls so far and the failures to come.
#[derive(Default)]
pub struct Injection {
    calls: BTreeMap<&'static str, u64>,
    failures: Vec<Failure>,
}

impl Injection {
    /// Reads failures in the form `NAME:NTH:STATUS,NAME:NTH:STATUS`; `*` names any function. Parts it cannot read are ignored.
    pub fn parse(text: &str) -> Injection {
        let mut injection = Injection::default();
        for part in text.split(',') {
            let mut fields = part.trim().split(':');
            if let (Some(name), Some(Ok(nth)), Some(Ok(status))) =
                (fields.next(), fields.next().map(str::parse), fields.next().map(str::parse))
            {
                injection.fail(name, nth, status);
            }
        }
        injection
    }

    /// Makes the `nth` call (from 1) of `name` from now on answer `status`; `*` or an empty name means any function.
    pub fn fail(&mut self, name: &str, nth: u64, status: i32) {
        let name = (!name.is_empty() && name != "*").then(|| name.to_owned());
        self.failures.push(Failure { name, left: nth.max(1), status });
    }

    /// Counts a call. Returns the status it must answer with, if it is one that fails.
    pub fn on_call(&mut self, name: &'static str) -> Option<i32> {
        *self.calls.entry(name).or_default() += 1;
        let mut answer = None;
        self.failures.retain_mut(|failure| {
            if failure.name.as_deref().is_some_and(|n| n != name) {
                return true;
            }
            failure.left -= 1;
            if failure.left == 0 {
                answer = Some(failure.status);
            }
            failure.left > 0
        });
        answer
    }

    /// Calls of a function so far; of all functions for `*` or an empty name.
    pub fn calls(&self, name: &str) -> u64 {
        if name.is_empty() || name == "*" {
            self.calls.values().sum()
        } else {
            self.calls.get(name).copied().unwrap_or(0)
        }
    }
}
