//! A configuration with the data to verify it on.

use super::Data;
use crate::backend::{Scale, Task};
use crate::{Configuration, Problem};

/// A kernel to run, and its data.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The kernel at its whole mini-batch.
    pub problem: &'a Problem,
    /// The configuration to verify.
    pub configuration: &'a Configuration,
    /// The undivided configuration to compare with; `None` if nothing fits undivided.
    pub undivided: Option<&'a Configuration>,
    /// The tensors.
    pub data: &'a Data,
    /// Factors of result and output.
    pub scale: Scale,
}

impl<'a> Trial<'a> {
    /// The configuration to verify, as a task to run with others.
    pub(super) fn task(&self) -> Task<'a> {
        let Trial { problem, configuration, data, scale, .. } = *self;
        Task { problem, configuration, tensors: data.tensors(), scale }
    }
}
