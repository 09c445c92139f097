//! Lends workspace to calls that the program sized by our answer to another query.
//!
//! Programs use one answer for more than one call. `cudnnConvolutionBiasActivationForward` has no separate query and is
//! sized by the query of the plain convolution. A small batch runs in the workspace of a large one. A search with
//! `cudnnFind..AlgorithmEx` gets the largest of all answers. If we answered less than cuDNN would have, such a call has too
//! little workspace, and cuDNN would refuse a call that runs without us. So we lend the rest:
//!
//! ```text
//! answered 4 KiB in place of 4 MiB      from now on, 4 KiB or more may stand for up to 4 MiB
//! given 4 KiB, needs 3 MiB          ->  lent 3 MiB
//! given 2 KiB, needs 3 MiB          ->  cuDNN's to refuse, as without us
//! ```
//!
//! Lending keeps the call's algorithm, so its result equals the result without us to the bit, and it takes no more memory
//! than the program itself would have. A smaller algorithm may not support the call, and rounds differently. Dividing the
//! call would also round differently, because each part rounds its sums to the output's type.
//!
//! A device has one block, as large as the largest loan so far. Streams take turns in it and wait for each other by events,
//! never on the host. A graph can be launched at any time, so every capture has a separate block for the life of the
//! process. Allocating it during a capture works because this thread's capture mode is relaxed meanwhile.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::Mutex;

use tightfit_cuda::Host;
use tightfit_cuda::safe::DeviceBuffer;
use tightfit_cuda::sys::DevicePtr;
use tightfit_cuda::sys::cudnn::Handle;

use super::order::Order;
use crate::lock::lock;
use crate::reason::{Reason, failed};

/// An answer smaller than cuDNN's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Substitute {
    reported: usize,
    own: usize,
}

fn add(answers: &mut Vec<Substitute>, new: Substitute) {
    let beats = |one: &Substitute, other: &Substitute| one.reported <= other.reported && one.own >= other.own;
    if !answers.iter().any(|known| beats(known, &new)) {
        answers.retain(|known| !beats(&new, known));
        answers.push(new);
    }
}

fn stands_for(answers: &[Substitute], given: usize) -> Option<usize> {
    let own = answers.iter().filter(|answer| answer.reported <= given).map(|answer| answer.own).max()?;
    (own > given).then_some(own)
}

/// Memory that calls use one after the other.
struct Block {
    buffer: DeviceBuffer,
    address: DevicePtr,
    order: Order,
}

/// By device and capture.
type Blocks = HashMap<(usize, Option<u64>), Block>;

/// The possible loans, and the memory for them.
#[derive(Default)]
pub struct Loans {
    /// Answers that no other answer beats in both numbers.
    substitutes: Mutex<Vec<Substitute>>,
    /// Locked while a call is enqueued, so that no other thread enqueues before the event is recorded.
    blocks: Mutex<Blocks>,
}

impl Loans {
    /// Remembers that `reported` bytes were reported to the program instead of `own`.
    pub fn remember(&self, reported: usize, own: usize) {
        if reported < own {
            add(&mut lock(&self.substitutes), Substitute { reported, own });
        }
    }

    /// The most that a call may need if the program gives this many bytes, or `None` if that is no more than given.
    pub fn at_most(&self, given: usize) -> Option<usize> {
        stands_for(&lock(&self.substitutes), given)
    }

    /// Runs `enqueue` with the address of this many bytes, which nothing else uses until the stream has finished that
    /// work.
    ///
    /// # Errors
    /// The reason why nothing was lent, in which case nothing was run.
    ///
    /// # Safety
    /// The handle is alive, on the device, and used on this thread; `enqueue` enqueues on its stream only.
    pub unsafe fn lend<T>(
        &self,
        host: &Host,
        device: usize,
        handle: Handle,
        bytes: usize,
        enqueue: impl FnOnce(*mut c_void) -> T,
    ) -> Result<T, Reason> {
        let _beside = host.beside_captures().map_err(failed)?;
        // SAFETY: forwarded to the caller.
        let stream = unsafe { host.stream(handle) }.map_err(failed)?;
        // SAFETY: the program keeps its handle's stream alive.
        let lane = unsafe { host.lane(stream) }.map_err(failed)?;
        let mut blocks = lock(&self.blocks);
        let key = (device, lane.capture);
        if blocks.get(&key).is_some_and(|block| block.buffer.len() < bytes) {
            let outgrown = blocks.remove(&key);
            if lane.capture.is_some() {
                // The work recorded so far runs in it.
                std::mem::forget(outgrown);
            }
        }
        let block = match blocks.entry(key) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let (buffer, address) = host.memory(device, bytes).map_err(failed)?;
                entry.insert(Block { buffer, address, order: Order::default() })
            }
        };
        // SAFETY: as above.
        unsafe { block.order.begin(stream, lane, true) }.map_err(failed)?;
        let result = enqueue(block.address.0 as *mut c_void);
        // SAFETY: as above.
        if let Err(error) = unsafe { block.order.end(host, device, stream, lane, true) } {
            // Nobody can wait for the work in it, so it is neither lent again nor freed.
            std::mem::forget(blocks.remove(&key));
            failed(error);
        }
        Ok(result)
    }

    /// Like [`Loans::lend`], for a call that waits for its own work: the memory is returned at once.
    ///
    /// # Errors
    /// As there.
    pub fn lend_once<T>(
        host: &Host,
        device: usize,
        bytes: usize,
        run: impl FnOnce(*mut c_void) -> T,
    ) -> Result<T, Reason> {
        let _beside = host.beside_captures().map_err(failed)?;
        let (buffer, address) = host.memory(device, bytes).map_err(failed)?;
        let result = run(address.0 as *mut c_void);
        drop(buffer);
        Ok(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loan_covers_no_more_than_the_answer_it_replaced() {
        let mut answers = Vec::new();
        assert_eq!(stands_for(&answers, 100), None);
        for (reported, own) in [(40, 400), (10, 100), (50, 300), (10, 90), (0, 7)] {
            add(&mut answers, Substitute { reported, own });
        }
        // (50, 300) and (10, 90) add nothing new.
        assert_eq!(answers.len(), 3, "{answers:?}");
        for (given, expected) in
            [(0, Some(7)), (7, None), (9, None), (10, Some(100)), (39, Some(100)), (40, Some(400)), (400, None)]
        {
            assert_eq!(stands_for(&answers, given), expected, "{given}");
        }
    }
}
