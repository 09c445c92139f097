//! Checks that algorithms compute slices correctly. Engines of some versions fail where the padding before and after
//! differs, or where tensors are views of larger ones. So before one is timed on such a slice, it computes a small slice of
//! the same kind, on a separate thread, handle and stream. The data are whole numbers between guards. An engine that passes
//! is kept in the cache as a measurement of the small slice.
//!
//! ```text
//! the program's threads    call | slices of fft? | call | not known yet | call | yes: timed
//! thread of proofs                    small slice, compared with 64-bit arithmetic
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tightfit_conv::backend::{Backend, Effort};
use tightfit_conv::problem::{Axis, Convolution};
use tightfit_conv::{Algorithm, Device, Measurement, Problem};
use tightfit_cuda::{CudaBackend, Host};
use tightfit_units::Error;

use crate::lock::lock;
use crate::log::trace;
use crate::worker::{Work, Worker};

/// Extents, samples and channels of a small slice, where the real one is larger.
const SLICE_EXTENT: usize = 8;
const SLICE_SAMPLES: usize = 2;
const SLICE_CHANNELS: usize = 64;
/// The longest wait for a result.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// How long plans wait for proofs, in the whole process.
const MAX_WAIT_OF_PLANS: Duration = Duration::from_secs(3);
/// The longest wait of the program's end for a computation.
const MAX_WAIT_AT_EXIT: Duration = Duration::from_secs(2);
/// The number of attempts if the device or its memory fails, since that proves nothing about the algorithm.
const MAX_ATTEMPTS: u32 = 3;

/// A device's ordinal, a small slice and an algorithm.
type Key = (usize, Problem, Algorithm);

/// The state of a proof.
enum Proof {
    /// Since then it is being found out.
    Asked(Instant),
    /// The number of attempts that failed for other reasons.
    Failed(u32),
    /// Whether the algorithm is right.
    Known(bool),
}

/// Facts that both threads know.
#[derive(Default)]
struct Known {
    proofs: HashMap<Key, Proof>,
    /// Passed, and not in the cache yet; with the device.
    new: Vec<(Device, (Problem, Measurement))>,
}

/// The proofs of a process.
pub struct Proofs {
    known: Arc<Mutex<Known>>,
    worker: Worker<(Key, u32)>,
    waited: Mutex<Duration>,
}

impl Default for Proofs {
    fn default() -> Proofs {
        Proofs { known: Arc::default(), worker: Worker::new("tightfit-prove"), waited: Mutex::default() }
    }
}

/// Whom to ask about the kernel that is about to be executed.
#[derive(Clone, Copy)]
pub struct Prover<'a> {
    /// The proofs of the process.
    pub proofs: &'a Proofs,
    /// The device.
    pub device: usize,
    /// Driver and cuDNN.
    pub host: &'a Arc<Host>,
    /// The cache's entry for a problem.
    pub cached: &'a (dyn Fn(&Problem) -> Vec<Measurement> + Sync),
}

impl Prover<'_> {
    /// Whether an algorithm computes slices like this one right. If that is not known yet, starts a proof and returns
    /// `None`.
    pub fn is_right(&self, slice: &Problem, algorithm: &Algorithm) -> Option<bool> {
        let key = (self.device, small(slice), algorithm.clone());
        match lock(&self.proofs.known).proofs.get(&key) {
            Some(Proof::Known(is_right)) => return Some(*is_right),
            Some(Proof::Asked(since)) => return (since.elapsed() > MAX_WAIT).then_some(false),
            Some(Proof::Failed(_)) | None => {}
        }
        let cached = (self.cached)(&key.1);
        let is_cached = cached.iter().any(|known| known.micro_batch == key.1.batch() && known.algorithm == *algorithm);
        if is_cached {
            lock(&self.proofs.known).proofs.insert(key, Proof::Known(true));
            return Some(true);
        }
        self.proofs.ask(self.host, key);
        None
    }

    /// As [`Prover::is_right`], waiting for the answer while plans may wait.
    pub fn is_soon_right(&self, slice: &Problem, algorithm: &Algorithm) -> bool {
        let begun = Instant::now();
        let before = *lock(&self.proofs.waited);
        let answer = loop {
            match self.is_right(slice, algorithm) {
                None if before + begun.elapsed() < MAX_WAIT_OF_PLANS => std::thread::sleep(Duration::from_millis(1)),
                answer => break answer,
            }
        };
        *lock(&self.proofs.waited) += begun.elapsed();
        answer == Some(true)
    }
}

impl Proofs {
    /// The proofs since the last call, for the cache.
    pub fn take_new(&self) -> Vec<(Device, (Problem, Measurement))> {
        std::mem::take(&mut lock(&self.known).new)
    }

    /// Ends the proofs: the thread gives its memory back when it is done.
    pub fn end(&self) {
        self.worker.end();
    }

    /// The program ends: waits a little for the device's work.
    pub fn finish(&self) {
        self.worker.finish(MAX_WAIT_AT_EXIT);
    }

    /// Asks the thread. Without one, nothing is right.
    fn ask(&self, host: &Arc<Host>, key: Key) {
        let mut known = lock(&self.known);
        let attempts = match known.proofs.get(&key) {
            // By another thread of the program.
            Some(Proof::Asked(_) | Proof::Known(_)) => return,
            Some(Proof::Failed(attempts)) => *attempts,
            None => 0,
        };
        let proving = || Proving { host: host.clone(), known: self.known.clone(), backends: HashMap::new() };
        let is_asked = self.worker.hand_over((key.clone(), attempts + 1), proving);
        let proof = if is_asked { Proof::Asked(Instant::now()) } else { Proof::Known(false) };
        known.proofs.insert(key, proof);
    }
}

/// The tools of the thread.
struct Proving {
    host: Arc<Host>,
    known: Arc<Mutex<Known>>,
    backends: HashMap<usize, CudaBackend>,
}

impl Work<(Key, u32)> for Proving {
    /// Answers a question at its nth attempt.
    fn work(&mut self, (key, attempt): (Key, u32)) {
        let (device, slice, algorithm) = &key;
        let proven = measure(&self.host, &mut self.backends, *device, slice, algorithm);
        if let Err(why) = &proven {
            trace!("{algorithm} on slices like {slice}: {}", why.chain());
        }
        let mut known = lock(&self.known);
        let proof = match proven {
            Ok((device, measurement)) => {
                known.new.push((device, (*slice, measurement)));
                Proof::Known(true)
            }
            Err(Error::Refused { .. }) => Proof::Known(false),
            Err(_) if attempt < MAX_ATTEMPTS => Proof::Failed(attempt),
            Err(_) => Proof::Known(false),
        };
        known.proofs.insert(key, proof);
    }

    fn end(mut self) {
        let _beside = self.host.beside_captures();
        for backend in self.backends.values_mut() {
            if let Err(error) = backend.release() {
                trace!("memory of proofs: {error}");
            }
        }
        // Destroying a handle waits for the device, which would break the program's captures.
        std::mem::forget(std::mem::take(&mut self.backends));
    }
}

/// Computes a small slice, compares it, and times it; with the terms for which the measurement is valid.
///
/// # Errors
/// [`Error::Refused`] if the algorithm cannot be used; what failed otherwise.
fn measure(
    host: &Host,
    backends: &mut HashMap<usize, CudaBackend>,
    device: usize,
    slice: &Problem,
    algorithm: &Algorithm,
) -> Result<(Device, Measurement), Error> {
    let _beside = host.beside_captures()?;
    let backend = match backends.entry(device) {
        Entry::Occupied(open) => open.into_mut(),
        Entry::Vacant(new) => new.insert(host.backend(device)?),
    };
    let effort = Effort { least: 1, most: 1, ..Effort::default() };
    let measurement = backend.measure(slice, algorithm, &effort)?;
    Ok((backend.device().clone(), measurement))
}

/// A small slice of the same kind: the same extents of filters, strides and padding, views along the same axes. Kernels of a
/// network share a few.
fn small(slice: &Problem) -> Problem {
    let convolution = slice.convolution();
    let axes: Vec<Axis> = convolution.axes().iter().map(|axis| axis.cut(SLICE_EXTENT)).collect();
    let groups = convolution.groups();
    let most = if groups == 1 { SLICE_CHANNELS } else { usize::MAX };
    let (channels, filters) = (convolution.channels().min(most), convolution.filters().min(most));
    let shrunk = || {
        let own = Convolution::new(channels, filters, groups, &axes)?;
        let batch = slice.batch().min(SLICE_SAMPLES);
        let problem = Problem::new(own, slice.operation(), batch, slice.types(), slice.layout())?;
        // One position more, where the real one has any.
        let within = |own: [usize; 3], of: [usize; 3], whole: [usize; 3]| {
            std::array::from_fn(|axis| own[axis] + usize::from(whole[axis] > of[axis]))
        };
        problem.within(
            within(own.inputs(), convolution.inputs(), slice.input_in()),
            within(own.outputs(), convolution.outputs(), slice.output_in()),
        )
    };
    shrunk().unwrap_or(*slice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_slice_is_of_the_same_kind() {
        let small = |line: &str| small(&line.parse().unwrap()).to_string();
        for (slice, expected) in [
            (
                "forward n1 c128 d9 h128 w128 k32 t3 r3 s3 pad1:0x1x1 bf16 xd32 yd32",
                "forward n1 c64 d9 h8 w8 k32 t3 r3 s3 pad1:0x1x1 bf16 xd10 yd9",
            ),
            ("forward n8 c64 h5 w5 k32 r3 s3 f32 xh9 yh9", "forward n2 c64 h5 w5 k32 r3 s3 f32 xh6 yh4"),
        ] {
            assert_eq!(small(slice), expected);
        }
    }
}
