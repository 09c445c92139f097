//! The problems, sizes and limits that a survey measures.

use std::collections::HashMap;

use tightfit_conv::Problem;
use tightfit_units::Bytes;

use super::{Divide, Sizes};

/// The sizes and limits to measure.
#[derive(Clone, Debug, PartialEq)]
pub struct Scope {
    /// The allowed micro-batch sizes.
    pub sizes: Sizes,
    /// Along what to divide.
    pub divide: Divide,
    /// Limits for which to find good candidates; see [`Limit::ladder`](tightfit_conv::candidate::Limit::ladder).
    pub limits: Vec<Bytes>,
    /// Smaller mini-batches of a problem for which to find candidates as well; see `part_sizes` of the planner.
    /// Used only if the allowed sizes are [`Sizes::Fit`] or [`Sizes::PowerOfTwo`].
    pub parts: HashMap<Problem, Vec<usize>>,
    /// Also measure every algorithm on the whole mini-batch within this limit, so that "undivided" is the best possible
    /// and dividing never loses to it.
    pub baseline: Option<Bytes>,
    /// Use only deterministic algorithms.
    pub deterministic: bool,
    /// Use only algorithms in the numerical class of the best undivided one.
    pub exact_class: bool,
}

impl Scope {
    /// The allowed micro-batch sizes, if the mini-batch may be divided.
    pub(super) fn micro_batches(&self) -> Sizes {
        self.divide.micro_batches(self.sizes)
    }

    /// Whether spatial axes may be divided.
    pub(super) fn slices(&self) -> bool {
        self.divide.slices(self.sizes)
    }

    /// A scope with all algorithms, divided along batch and space, and no baseline.
    pub fn new(sizes: Sizes, limits: Vec<Bytes>) -> Scope {
        Scope {
            sizes,
            divide: Divide::default(),
            limits,
            parts: HashMap::new(),
            baseline: None,
            deterministic: false,
            exact_class: false,
        }
    }
}
