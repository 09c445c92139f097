//! The cost of an operation: a fixed time, or a choice between time and workspace.

use std::sync::Arc;

use crate::{Configuration, Error, Nanos, Problem};

/// Whether a mini-batch may be divided into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Division {
    /// Dividing is allowed.
    Allowed,
    /// Each operation computes the whole mini-batch in one call.
    Forbidden,
}

/// An operation's time without concurrent copies, and its workspace.
#[derive(Clone, Debug, PartialEq)]
pub enum Cost {
    /// A fixed time, without workspace.
    Fixed(Nanos),
    /// A choice of configurations.
    Choice(Box<Front>),
    /// A choice of an operation that is no known convolution, by rising workspace, hence falling time.
    Listed(Arc<[Configuration]>),
}

impl Cost {
    /// The same, with times and choices removed.
    pub(super) fn forgotten(&self) -> Cost {
        match self {
            Cost::Fixed(_) => Cost::Fixed(Nanos::ZERO),
            Cost::Choice(front) => Cost::Choice(Box::new(Front::empty(front.problem))),
            Cost::Listed(_) => Cost::Listed(Arc::default()),
        }
    }
}

/// The configurations of a problem by rising workspace, hence falling time.
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// The problem they compute.
    pub problem: Problem,
    /// Configurations that divide the mini-batch where that pays.
    pub divided: Arc<[Configuration]>,
    /// Configurations that compute the whole mini-batch in one call.
    pub whole: Arc<[Configuration]>,
}

impl Front {
    /// A front without configurations.
    pub fn empty(problem: Problem) -> Front {
        Front { problem, divided: Arc::default(), whole: Arc::default() }
    }

    /// The configurations to choose from; never empty.
    ///
    /// # Errors
    /// [`Error::NotProfiled`] if there are none.
    pub fn choices(&self, division: Division) -> Result<&[Configuration], Error> {
        let choices = match division {
            Division::Allowed => &self.divided,
            Division::Forbidden => &self.whole,
        };
        match choices.is_empty() {
            false => Ok(choices),
            true => Err(Error::NotProfiled { problem: Box::new(self.problem), reasons: Vec::new() }),
        }
    }
}
