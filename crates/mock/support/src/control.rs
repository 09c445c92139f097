//! The requests of tests to a library, and the one way into each of its functions: counted, failed where a test asked
//! for it, and never a panic across the C boundary.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::{Mutex, OnceLock};

use crate::injection::{Injection, lock};

/// Answers of a library's functions: any integer, because tests ask for unknown ones too.
pub trait Status: Copy {
    /// The answer of a call that did its work.
    const SUCCESS: Self;
    /// The answer of a call in which the mock panicked.
    const PANICKED: Self;
    /// The status of a number.
    fn of(code: c_int) -> Self;
}

/// Settings of a library for tests, in addition to failures; `()` for nothing.
pub trait Settings: Send + 'static {
    /// The settings that the environment asks for.
    fn from_environment() -> Self;

    /// Counts in addition to calls and live objects; `None` for other names.
    fn count(&self, _kind: &str) -> Option<u64> {
        None
    }
}

impl Settings for () {
    fn from_environment() {}
}

/// The value of an environment variable; `None` if it is not set or does not parse.
pub fn variable<T: FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

struct State<T> {
    injection: Injection,
    settings: T,
}

/// The failures, counts and settings of one library.
pub struct Control<T> {
    /// The variable that plans failures.
    failures: &'static str,
    state: OnceLock<Mutex<State<T>>>,
}

impl<T: Settings> Control<T> {
    /// Reads the environment at the first use; `failures` names the variable that plans failures.
    pub const fn new(failures: &'static str) -> Control<T> {
        Control { failures, state: OnceLock::new() }
    }

    fn read(&self) -> State<T> {
        let injection = variable::<String>(self.failures).map(|text| Injection::parse(&text)).unwrap_or_default();
        State { injection, settings: T::from_environment() }
    }

    fn state(&self) -> &Mutex<State<T>> {
        self.state.get_or_init(|| Mutex::new(self.read()))
    }

    /// Back to the environment's settings, with all counts zero.
    pub fn reset(&self) {
        *lock(self.state()) = self.read();
    }

    /// Reads or changes the settings.
    pub fn settings<R>(&self, use_them: impl FnOnce(&mut T) -> R) -> R {
        use_them(&mut lock(self.state()).settings)
    }

    /// Makes the `nth` call of a function from now on answer `status`.
    pub fn fail(&self, name: &str, nth: u64, status: c_int) {
        lock(self.state()).injection.fail(name, nth, status);
    }

    /// Calls of a function since the last reset.
    pub fn calls(&self, name: &str) -> u64 {
        lock(self.state()).injection.calls(name)
    }

    /// A count of the settings, by its name.
    pub fn count(&self, kind: &str) -> Option<u64> {
        lock(self.state()).settings.count(kind)
    }

    /// Counts a call. Returns the status that a test asked it to answer with.
    pub fn on_call<S: Status>(&self, name: &'static str) -> Option<S> {
        lock(self.state()).injection.on_call(name).map(S::of)
    }

    /// Answers a call. One that was asked to fail does nothing.
    pub fn call<S: Status>(&self, name: &'static str, body: impl FnOnce() -> Result<(), S>) -> S {
        self.on_call(name).unwrap_or_else(|| guarded(body))
    }

    /// Answers a call that gives something back. One that was asked to fail does its work all the same: an object that is
    /// still alive at the end was forgotten by the program.
    pub fn release<S: Status>(&self, name: &'static str, body: impl FnOnce() -> Result<(), S>) -> S {
        let injected = self.on_call(name);
        let answer = guarded(body);
        injected.unwrap_or(answer)
    }
}

/// Runs the body of a function; a panic is a status.
pub fn guarded<S: Status>(body: impl FnOnce() -> Result<(), S>) -> S {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => S::SUCCESS,
        Ok(Err(status)) => status,
        Err(_) => S::PANICKED,
    }
}
