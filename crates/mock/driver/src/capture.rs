//! The record of a capture: the work, in the order of the calls, and which streams have come together again.
//!
//! ```text
//! origin  |begin  a  record e               wait f  d  end|      graph: a b c d, launched one after another
//! other              wait e  b  c  record f                      joined: `origin` has seen all of `other`
//! ```
//! Every stream of the capture carries how much of each stream it has seen; an event keeps a copy.

use std::cell::Cell;
use std::collections::BTreeMap;

use crate::stream::Work;

/// How many items of each stream have been seen.
pub type Seen = BTreeMap<usize, u64>;

thread_local! {
    /// Which captures concern the thread's unsafe calls, as a capture's mode.
    static THREAD_MODE: Cell<i32> = const { Cell::new(0) };
}

/// Sets the calling thread's mode. Returns the one before.
pub fn exchange_mode(mode: i32) -> i32 {
    THREAD_MODE.replace(mode)
}

/// One capture in progress.
pub struct Capture {
    /// The stream that began it and must end it.
    pub origin: usize,
    /// The thread that began it.
    pub thread: std::thread::ThreadId,
    /// `CU_STREAM_CAPTURE_MODE_...`.
    pub mode: i32,
    /// A forbidden call was made: the end of the capture returns no graph.
    pub invalid: bool,
    streams: BTreeMap<usize, Seen>,
    work: Vec<Work>,
}

impl Capture {
    /// Begins at a stream, in the calling thread.
    pub fn begin(origin: usize, mode: i32) -> Capture {
        let streams = BTreeMap::from([(origin, Seen::new())]);
        Capture { origin, thread: std::thread::current().id(), mode, invalid: false, streams, work: Vec::new() }
    }

    /// Whether a stream takes part.
    pub fn includes(&self, stream: usize) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Whether a potentially unsafe call of the current thread breaks it.
    pub fn forbids_unsafe_calls(&self) -> bool {
        let is_own = self.thread == std::thread::current().id();
        match (THREAD_MODE.get(), self.mode) {
            (2, _) | (_, 2) => false,
            (0, 0) => true,
            _ => is_own,
        }
    }

    /// Records a piece of work of a stream.
    pub fn push(&mut self, stream: usize, work: Work) {
        self.step(stream);
        self.work.push(work);
    }

    fn step(&mut self, stream: usize) {
        *self.streams.entry(stream).or_default().entry(stream).or_default() += 1;
    }

    /// The work that an event recorded in the stream has seen.
    pub fn seen(&self, stream: usize) -> Seen {
        self.streams.get(&stream).cloned().unwrap_or_default()
    }

    /// A stream waits for an event of this capture: it joins, if it did not take part yet.
    pub fn join(&mut self, stream: usize, event: &Seen) {
        let own = self.streams.entry(stream).or_default();
        for (&other, &count) in event {
            let known = own.entry(other).or_default();
            *known = count.max(*known);
        }
        // A wait is something done in the stream, which the origin has yet to see.
        self.step(stream);
    }

    /// Whether the origin has seen all that every other stream did.
    pub fn is_joined(&self) -> bool {
        let origin = self.seen(self.origin);
        self.streams.iter().all(|(stream, seen)| seen.get(stream) <= origin.get(stream))
    }

    /// The work, in a valid order.
    pub fn finish(self) -> Vec<Work> {
        self.work
    }
}
