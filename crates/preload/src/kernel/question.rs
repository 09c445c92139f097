//! The question about a convolution, and the decision.

use std::sync::Arc;

use tightfit_conv::backend::Scale;
use tightfit_conv::{Candidate, Configuration, Notes, Problem};
use tightfit_cuda::Chosen;
use tightfit_profile::ComparisonKey;
use tightfit_units::{Bytes, Nanos};

use crate::layer::Layer;
use crate::reason::Reason;
use crate::settings::Terms;

/// The question. Equal questions on equal terms have one answer across all threads and handles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Question {
    /// The device's ordinal.
    pub device: usize,
    /// The convolution at its mini-batch.
    pub problem: Problem,
    /// The framework's choice.
    pub chosen: Chosen,
    /// Permissions of the framework's mode, in addition to every mode's.
    pub admitted: Notes,
    /// Factors, by their bits.
    pub factors: [u32; 2],
    /// The alignment of every address.
    pub base: usize,
}

impl Question {
    /// The factors.
    pub fn scale(&self) -> Scale {
        let [alpha, beta] = self.factors.map(f32::from_bits);
        Scale { alpha, beta }
    }

    /// The terms on which comparisons of its configurations depend.
    pub fn comparison_key(&self) -> ComparisonKey {
        ComparisonKey { problem: self.problem, factors: self.factors, base: self.base }
    }

    /// The framework's choice as the one part of a configuration, without a time.
    pub fn own(&self) -> Candidate {
        let Chosen { algorithm, workspace, .. } = self.chosen.clone();
        Candidate { micro_batch: self.problem.batch(), algorithm, time: Nanos::ZERO, workspace }
    }
}

/// The bits of factors, to compare them by.
pub fn bits(scale: Scale) -> [u32; 2] {
    [scale.alpha, scale.beta].map(f32::to_bits)
}

/// The decision, from which follow the reported workspace and the first choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Run this configuration instead of the framework's choice.
    Ours(Configuration),
    /// Use a part of one total; which part is decided once the kernels of a step are known.
    Shared(TotalOptions),
    /// Run the framework's choice: it fits, and nothing faster was found.
    Kept,
    /// Run the framework's choice, although it may not fit.
    Left(Reason),
}

/// A kernel's options with a part of a total.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TotalOptions {
    /// The configuration for all of the total, as long as it is not divided.
    pub provisional: Arc<Configuration>,
    /// The configurations for a part, by rising workspace; empty if no times are known.
    pub front: Vec<Configuration>,
}

/// A convolution that was decided about.
#[derive(Debug)]
pub struct Planned {
    /// The question.
    pub question: Question,
    /// The terms of the decision.
    pub terms: Terms,
    /// The layer that it was planned for, and the layers that the thread planned it for before.
    pub layers: Vec<Layer>,
    /// The decision.
    pub answer: Answer,
    /// The least workspace to report to the program, if a later choice may need more than the decision.
    pub reported: Option<Bytes>,
    /// Whether a better choice is still to be found between the program's calls.
    pub is_open: bool,
    /// Time of the framework's choice, where it was measured.
    pub framework_time: Option<Nanos>,
}
