//! A virtual clock: every time is a function of the calls alone, so that tests replay exactly.
//!
//! ```text
//! host thread   sync(A)            enqueue on B at host time 50
//! stream A      |--- 50 --->|
//! stream B                  |--- 20 --->|     B's work begins at max(B's own time, 50)
//! ```
//! A stream's virtual time advances by the duration of each piece of work; a host thread's by waiting for a stream.

use std::cell::Cell;

thread_local! {
    static HOST: Cell<u64> = const { Cell::new(0) };
}

/// Virtual time of the calling host thread in nanoseconds.
pub fn host_now() -> u64 {
    HOST.get()
}

/// The calling host thread waited for something that happened at `time`.
pub fn host_waited_until(time: u64) {
    HOST.set(HOST.get().max(time));
}
