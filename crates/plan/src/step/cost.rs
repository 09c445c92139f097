//! The cost of an operation: a fixed time, or a choice between time and workspace.

use std::sync::Arc;

use tightfit_conv::optimize::front;
use tightfit_conv::{Candidate, Configuration, DivisionCost, Problem};
use tightfit_units::{Bytes, Error, Nanos};

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
    /// The configurations of an operation that is not a known convolution, by rising workspace and falling time.
    Listed(Arc<[Configuration]>),
}

impl Cost {
    /// The time for the whole mini-batch, with a configuration if the operation has a choice.
    pub(crate) fn time(&self, configuration: Option<&Configuration>) -> Nanos {
        self.time_of(configuration, |whole| whole)
    }

    /// The time for some samples: `part` of each whole-mini-batch time, plus the time of their configuration.
    pub(crate) fn time_of(&self, configuration: Option<&Configuration>, part: impl Fn(Nanos) -> Nanos) -> Nanos {
        let chosen = configuration.map_or(Nanos::ZERO, Configuration::time);
        match self {
            Cost::Fixed(time) => part(*time),
            Cost::Choice(front) => chosen + part(front.besides),
            Cost::Listed(_) => chosen,
        }
    }

    /// The cost without times and choices.
    pub(super) fn forgotten(&self) -> Cost {
        match self {
            Cost::Fixed(_) => Cost::Fixed(Nanos::ZERO),
            Cost::Choice(front) => Cost::Choice(Box::new(Front::empty(front.problem))),
            Cost::Listed(_) => Cost::Listed(Arc::default()),
        }
    }
}

/// The configurations of a problem by rising workspace and falling time.
#[derive(Clone, Debug, PartialEq)]
pub struct Front {
    /// The problem they compute.
    pub problem: Problem,
    /// Configurations that divide the mini-batch if that pays off.
    pub divided: Arc<[Configuration]>,
    /// Configurations that compute the whole mini-batch in one call.
    pub whole: Arc<[Configuration]>,
    /// The candidates that make up configurations, also for smaller mini-batches than the problem's.
    pub candidates: Arc<[Candidate]>,
    /// The cost of dividing.
    pub cost: DivisionCost,
    /// The time of the operation's work other than the convolution, such as its bias, with any configuration.
    pub besides: Nanos,
}

impl Front {
    /// A front without configurations.
    pub fn empty(problem: Problem) -> Front {
        Front {
            problem,
            divided: Arc::default(),
            whole: Arc::default(),
            candidates: Arc::default(),
            cost: DivisionCost::default(),
            besides: Nanos::ZERO,
        }
    }

    /// The front of measured candidates.
    ///
    /// - Cost: one [`front`].
    ///
    /// # Errors
    /// [`Error::NotProfiled`] if their sizes do not add up to the mini-batch.
    pub fn of(problem: Problem, candidates: Arc<[Candidate]>, cost: DivisionCost) -> Result<Front, Error> {
        let divided = front(&problem, &candidates, Bytes::UNLIMITED, cost)?;
        let is_whole = |one: &&Candidate| one.micro_batch == problem.batch() && one.calls() == 1;
        let whole: Vec<Candidate> = candidates.iter().filter(is_whole).cloned().collect();
        // A problem that only runs divided has no undivided front; plans without division then report it.
        let whole = front(&problem, &whole, Bytes::UNLIMITED, DivisionCost::default()).unwrap_or_default();
        Ok(Front { problem, divided: divided.into(), whole: whole.into(), candidates, cost, besides: Nanos::ZERO })
    }

    /// The front of the same convolution for `samples` samples, without `besides`; `None` if no measured sizes add up to them.
    pub(crate) fn of_samples(&self, samples: usize) -> Option<Front> {
        let problem = self.problem.with_batch(samples).ok()?;
        Front::of(problem, Arc::clone(&self.candidates), self.cost).ok()
    }

    /// Whether candidates add up to `samples`, so that [`Front::of_samples`] has a front.
    pub(crate) fn adds_up_to(&self, samples: usize) -> bool {
        let mut sizes: Vec<usize> = self.candidates.iter().map(|candidate| candidate.micro_batch).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut reached = vec![false; samples + 1];
        reached[0] = true;
        for total in 1..=samples {
            reached[total] = sizes.iter().take_while(|size| **size <= total).any(|size| reached[total - size]);
        }
        reached[samples]
    }

    /// The configurations to choose from; never empty.
    ///
    /// # Errors
    /// [`Error::NotProfiled`] if no configurations exist.
    pub fn choices(&self, division: Division) -> Result<&[Configuration], Error> {
        let choices = match division {
            Division::Allowed => &self.divided,
            Division::Forbidden => &self.whole,
        };
        match choices.is_empty() {
            false => Ok(choices),
            true => Err(Error::NotProfiled {
                problem: self.problem.to_string(),
                batch: self.problem.batch(),
                reasons: Vec::new(),
            }),
        }
    }
}
