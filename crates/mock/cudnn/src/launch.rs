//! One convolution onto a stream: hold the memory, fill the workspace, compute, look whether the workspace is untouched.
//!
//! ```text
//! workspace   |p p p p p p ... p p p|     a pattern of this execution, over all bytes of the answer
//!             too small: illegal address     written by another stream meanwhile: launch failed
//! ```

use std::any::Any;
use std::ffi::c_int;
use std::sync::Weak;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use crate::compute::{Addresses, convolve};
use crate::control;
use crate::method::{Choice, index_of};
use crate::problem::Problem;
use crate::status::Status;
use tightfit_mock_support::driver::{self, HeldRange, ILLEGAL_ADDRESS, LAUNCH_FAILED, Work};

/// Code that must be alive when compiled kernels of a plan run, wherever they were recorded.
pub type Code = Weak<dyn Any + Send + Sync>;

/// Enqueues a convolution on a stream, or into a graph. Nothing is read or written before the stream gets there.
///
/// # Errors
/// [`Status::NULL_POINTER`], [`Status::MISALIGNED_POINTER`] for a workspace not aligned to 16 bytes, or what the driver
/// refused.
pub fn convolution(
    stream: usize,
    problem: &Problem,
    choice: Choice,
    addresses: Addresses,
    workspace: usize,
    code: Option<Code>,
) -> Result<(), Status> {
    let needed = choice.workspace(problem) as usize;
    if [addresses.x, addresses.w, addresses.y].contains(&0) || (needed > 0 && workspace == 0) {
        return Err(Status::NULL_POINTER);
    }
    if needed > 0 && !workspace.is_multiple_of(16) {
        return Err(Status::MISALIGNED_POINTER);
    }
    let spoiled = control::on_execution(index_of(choice.method), problem.geometry.pre != problem.geometry.post);
    let (nanos, problem) = (choice.nanos(problem), problem.clone());
    let work: Work = Box::new(move || {
        if code.as_ref().is_some_and(|code| code.strong_count() == 0) {
            return LAUNCH_FAILED;
        }
        let run = || run(&problem, choice, addresses, (workspace, needed), spoiled);
        run().err().unwrap_or(0)
    });
    Ok(driver::enqueue(stream, nanos, work)?)
}

fn run(
    problem: &Problem,
    choice: Choice,
    addresses: Addresses,
    (workspace, needed): (usize, usize),
    spoiled: bool,
) -> Result<(), c_int> {
    static EXECUTION: AtomicU8 = AtomicU8::new(0);
    let tensors = [(&problem.x, addresses.x), (&problem.w, addresses.w), (&problem.y, addresses.y)];
    let mut held = Vec::new();
    for (tensor, address) in tensors {
        held.push(HeldRange::range(address, tensor.extent())?);
    }
    let scratch = if needed > 0 { Some(Scratch::hold(workspace, needed)?) } else { None };
    let pattern = EXECUTION.fetch_add(1, Ordering::Relaxed) % 251;
    scratch.iter().for_each(|s| s.fill(pattern));
    // SAFETY: all three ranges are alive and held; that nobody else writes them meanwhile is the program's duty, as on any
    // device.
    unsafe { convolve(problem, &choice.numerics(), addresses) };
    if spoiled {
        let ([.., output], tensor) = (addresses.by_role(problem.operation), problem.output());
        // SAFETY: the output's first element is within its held range.
        unsafe {
            let value = tensor.data_type.read(output as *const u8, 0);
            tensor.data_type.write(output as *mut u8, 0, value + 1.0 + value.abs());
        }
    }
    if scratch.is_some_and(|s| !s.holds(pattern)) { Err(LAUNCH_FAILED) } else { Ok(()) }
}

/// A workspace while it is used. Atomic words, because a program's mistake may have two streams use it at once.
struct Scratch {
    words: *const AtomicU64,
    len: usize,
    _held: HeldRange,
}

impl Scratch {
    /// Workspaces are multiples of 256 bytes and aligned to 16, so words fill them exactly.
    fn hold(address: usize, bytes: usize) -> Result<Scratch, c_int> {
        if !bytes.is_multiple_of(8) || !address.is_multiple_of(8) {
            return Err(ILLEGAL_ADDRESS);
        }
        Ok(Scratch { words: address as *const AtomicU64, len: bytes / 8, _held: HeldRange::range(address, bytes)? })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the range is held as long as `self`, aligned, and accessed as atomics by everybody here.
        unsafe { std::slice::from_raw_parts(self.words, self.len) }
    }

    fn fill(&self, pattern: u8) {
        let word = u64::from_ne_bytes([pattern; 8]);
        self.words().iter().for_each(|w| w.store(word, Ordering::Relaxed));
    }

    fn holds(&self, pattern: u8) -> bool {
        let word = u64::from_ne_bytes([pattern; 8]);
        self.words().iter().all(|w| w.load(Ordering::Relaxed) == word)
    }
}
