//! A kernel gets a place at its first call. Unnamed kernels have their names from it.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use tightfit_conv::{Operation, Problem};

use crate::lock::lock;

/// The kernels and the convolutions of the process that were called, by order of first call.
#[derive(Debug, Default)]
pub(super) struct Order {
    kernels: AtomicUsize,
    /// Each as its forward operation.
    convolutions: Mutex<HashMap<Problem, usize>>,
}

/// A place in that order, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FirstCall {
    kernel: usize,
    /// The same for all operations of a convolution, and for all of the framework's choices for them.
    pub(super) convolution: usize,
}

impl Order {
    /// The place of a kernel that is called for the first time.
    pub(super) fn next(&self, problem: &Problem) -> FirstCall {
        let mut convolutions = lock(&self.convolutions);
        let next = convolutions.len();
        let convolution = *convolutions.entry(problem.with_operation(Operation::Forward)).or_insert(next);
        FirstCall { kernel: self.kernels.fetch_add(1, Ordering::Relaxed), convolution }
    }
}
