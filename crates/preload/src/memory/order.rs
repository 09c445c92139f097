//! Orders the streams so that no two use the same memory at once.
//!
//! ```text
//! stream 1   |-- segment --|        |-- all of it --|
//! stream 2   |-- segment --|        ^               '--> |-- segment --|     first after it: waits
//!                          '--------'  waits for every stream's last use
//! ```
//!
//! Streams of one capture wait for each other by edges of its graph. A graph and other work have no such edges: an event of
//! a capture means nothing outside it.

use std::collections::{HashMap, HashSet};

use tightfit_cuda::safe::Event;
use tightfit_cuda::sys::driver::Stream;
use tightfit_cuda::{CudaError, Host, Lane};

/// The last use of the memory by each lane, and the last exclusive use. Lanes of a capture stay, because there is no
/// notice of its end.
#[derive(Default)]
pub struct Order {
    last: HashMap<Lane, Event>,
    /// By capture: the lane that last used all of it, and the lanes that have waited for it since.
    alone: HashMap<Option<u64>, (Lane, HashSet<Lane>)>,
}

impl Order {
    /// Holds the stream until it may use its part, or all of it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, and `own` is its lane now.
    pub unsafe fn begin(&mut self, stream: Stream, own: Lane, is_exclusive: bool) -> Result<(), CudaError> {
        if is_exclusive {
            let others = self.last.iter().filter(|(other, _)| **other != own && other.capture == own.capture);
            for (_, event) in others {
                // SAFETY: forwarded to the caller.
                unsafe { event.hold(stream) }?;
            }
        } else if let Some((other, passed)) = self.alone.get_mut(&own.capture)
            && *other != own
            && passed.insert(own)
            && let Some(event) = self.last.get(other)
        {
            // SAFETY: forwarded to the caller.
            unsafe { event.hold(stream) }?;
        }
        Ok(())
    }

    /// The stream's use has been enqueued.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive, and `own` is its lane now.
    pub unsafe fn end(
        &mut self,
        host: &Host,
        device: usize,
        stream: Stream,
        own: Lane,
        is_exclusive: bool,
    ) -> Result<(), CudaError> {
        let event = match self.last.entry(own) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(host.event(device)?),
        };
        // SAFETY: forwarded to the caller.
        unsafe { event.record_on(stream) }?;
        if is_exclusive {
            self.alone.insert(own.capture, (own, HashSet::new()));
        }
        Ok(())
    }
}
