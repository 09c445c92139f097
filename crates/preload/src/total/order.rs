//! Which stream waits for which, so that no two use the same memory at once.
//!
//! ```text
//! stream 1   |-- segment --|        |-- all of it --|
//! stream 2   |-- segment --|        ^               '--> |-- segment --|     first after it: waits
//!                          '--------'  waits for every stream's last use
//! ```

use std::collections::{HashMap, HashSet};

use tightfit_cuda::safe::Event;
use tightfit_cuda::sys::driver::Stream;
use tightfit_cuda::{CudaError, Host};

/// The last use of the memory by each stream, and the last by one alone.
#[derive(Default)]
pub struct Order {
    last: HashMap<usize, Event>,
    /// The stream that had all of it last, and those that have waited for it since.
    alone: Option<(usize, HashSet<usize>)>,
}

impl Order {
    /// Holds the stream until it may use its part, or all of it.
    ///
    /// # Errors
    /// [`CudaError::Driver`].
    ///
    /// # Safety
    /// The stream is alive.
    pub unsafe fn begin(&mut self, stream: Stream, is_exclusive: bool) -> Result<(), CudaError> {
        let own = stream.0 as usize;
        if is_exclusive {
            for event in self.last.iter().filter(|(other, _)| **other != own).map(|(_, event)| event) {
                // SAFETY: forwarded to the caller.
                unsafe { event.hold(stream) }?;
            }
        } else if let Some((other, passed)) = &mut self.alone
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
    /// The stream is alive.
    pub unsafe fn end(
        &mut self,
        host: &Host,
        device: usize,
        stream: Stream,
        is_exclusive: bool,
    ) -> Result<(), CudaError> {
        let own = stream.0 as usize;
        let event = match self.last.entry(own) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => entry.insert(host.event(device)?),
        };
        // SAFETY: forwarded to the caller.
        unsafe { event.record_on(stream) }?;
        if is_exclusive {
            self.alone = Some((own, HashSet::new()));
        }
        Ok(())
    }
}
