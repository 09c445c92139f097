//! What an operation costs: one time, or a choice between time and workspace.

use std::sync::Arc;

use crate::{Configuration, Error, Nanos, Problem};

/// Whether a mini-batch may be divided into micro-batches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Division {
    /// It may.
    Allowed,
    /// Each operation computes the whole mini-batch at once.
    Forbidden,
}

/// How long an operation takes while nothing is copied, and in how much workspace.
#[derive(Clone, Debug, PartialEq)]
pub enum Cost {
    /// A time, without workspace.
    Fixed(Nanos),
    /// One of several configurations.
    Choice(Box<Front>),
}

impl Cost {
    /// The same without times and choices.
    pub(super) fn forgotten(&self) -> Cost {
        match self {
            Cost::Fixed(_) => Cost::Fixed(Nanos::ZERO),
            Cost::Choice(front) => Cost::Choice(Box::new(Front::empty(front.problem))),
        }
    }
}

/// The configurations of a problem by rising workspace, hence falling time.
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// What they compute.
    pub problem: Problem,
    /// With the mini-batch divided where that pays.
    pub divided: Arc<[Configuration]>,
    /// On the whole mini-batch.
    pub whole: Arc<[Configuration]>,
}

impl Front {
    /// A front of which nothing is known.
    pub fn empty(problem: Problem) -> Front {
        Front { problem, divided: Arc::default(), whole: Arc::default() }
    }

    /// The configurations to choose from; never none.
    ///
    /// # Errors
    /// [`Error::NotProfiled`] if there is none.
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
