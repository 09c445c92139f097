//! The uses and the time of a run of an operation over some samples.
//!
//! ```text
//! independent samples     conv 0..4 | conv 4..8                                    in one phase
//! sums over samples       sums 0..4 | sums 4..8 | apply 4..8 | apply 0..4          all sums before the first sample
//! ```

use serde::{Deserialize, Serialize};
use tightfit_units::Nanos;

use crate::step::{Access, Cost, Operation, OperationId, Stage, Step, Use};

/// The share of an operation's work that a run does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// All of it.
    #[default]
    Whole,
    /// Only the sums over samples, of an operation with [`Operation::sums`].
    Sums,
    /// The rest of its outputs, from the sums over all samples. The first of its runs over parts also changes outputs without samples, such as
    /// running statistics.
    Apply,
}

impl Phase {
    /// Whether all of an operation's work is done at once.
    pub(crate) fn is_whole(&self) -> bool {
        *self == Phase::Whole
    }

    /// The access of a run in this phase to a tensor that the whole operation accesses as `whole`; `adds` as in [`Compute::adds`](crate::Compute::adds).
    pub(crate) fn access(self, whole: Access, has_samples: bool, adds: bool) -> Access {
        match (self, whole) {
            _ if has_samples => whole,
            // The sums are complete.
            (Phase::Apply, Access::Write) => Access::Read,
            // The first run has changed it.
            (Phase::Apply, Access::Add) if adds => Access::Read,
            (_, Access::Write) if adds => Access::Add,
            _ => whole,
        }
    }
}

impl Operation {
    /// The time of a phase for the whole mini-batch. Each phase is a separate launch.
    pub(crate) fn time_of_phase(&self, phase: Phase, whole: Nanos, launch: Nanos) -> Nanos {
        let sums = self.sums.unwrap_or(Nanos::ZERO);
        match phase {
            Phase::Whole => whole,
            Phase::Sums => sums,
            Phase::Apply => Nanos(whole.0.saturating_sub(sums.0)) + launch,
        }
    }
}

impl Step {
    /// Whether an operation may compute some samples of the mini-batch and others later, all of its work at once.
    ///
    /// Its samples must be independent. Its outputs must have samples, or be gradients of weights, which add up.
    ///
    /// # Panics
    /// If the step has no such operation.
    pub fn may_divide(&self, id: OperationId) -> bool {
        let operation = self.operation(id);
        let adds_up =
            |used: &Use| used.access == Access::Write && self.tensor(used.tensor).kind == super::Kind::WeightGradients;
        operation.independent_samples
            && operation.stage != Stage::Update
            && operation.uses.iter().any(|used| self.has_samples(used))
            && operation.uses.iter().all(|used| used.access == Access::Read || self.has_samples(used) || adds_up(used))
    }

    /// Whether an operation may compute some samples of the mini-batch and others later in two phases, all sums before the
    /// first sample.
    ///
    /// It must have sums, and an output with samples. Any other output is updated once per mini-batch, and reruns only read it.
    ///
    /// # Panics
    /// If the step has no such operation.
    pub fn may_divide_after_sums(&self, id: OperationId) -> bool {
        let operation = self.operation(id);
        let is_sound = |used: &Use| match used.access {
            Access::Read | Access::Write => true,
            Access::Add => self.has_samples(used) || used.access_in_rerun() == Access::Read,
        };
        operation.sums.is_some()
            && operation.stage != Stage::Update
            && matches!(operation.cost, Cost::Fixed(_))
            && operation.uses.iter().any(|used| self.is_sum(used))
            && operation.uses.iter().any(|used| used.access != Access::Read && self.has_samples(used))
            && operation.uses.iter().all(is_sound)
    }

    pub(crate) fn has_samples(&self, used: &Use) -> bool {
        self.tensor(used.tensor).sample_bytes.is_some()
    }

    /// Whether a use overwrites a tensor without samples. For an operation in parts, this is a sum over samples.
    pub(crate) fn is_sum(&self, used: &Use) -> bool {
        used.access == Access::Write && !self.has_samples(used)
    }

    /// The uses of a phase of an operation, with their positions among all uses. [`Compute::blocks`](crate::Compute::blocks) has one block for each, in order. A sums phase
    /// only reads operands and writes its sums.
    ///
    /// # Panics
    /// If the step has no such operation.
    pub fn uses(&self, id: OperationId, phase: Phase) -> impl Iterator<Item = (usize, &Use)> {
        let is_used = move |used: &Use| phase != Phase::Sums || used.access == Access::Read || self.is_sum(used);
        self.operation(id).uses.iter().enumerate().filter(move |(_, used)| is_used(used))
    }

    /// The time for some samples of work that takes `whole` for the mini-batch.
    pub(crate) fn part_of(&self, whole: Nanos, samples: usize, launch: Nanos) -> Nanos {
        let fixed = whole.min(launch);
        let shared = u128::from((whole - fixed).0) * samples as u128;
        fixed + Nanos(u64::try_from(shared.div_ceil(self.batch.max(1) as u128)).unwrap_or(u64::MAX))
    }
}

/// The numbers of parts to try for a mini-batch.
pub(crate) fn part_numbers(batch: usize) -> impl Iterator<Item = usize> {
    [2, 4, 8, 16].into_iter().filter(move |parts| *parts <= batch)
}

/// The numbers of samples of a mini-batch's parts, falling.
pub(crate) fn part_sizes(batch: usize) -> Vec<usize> {
    let mut sizes: Vec<usize> = part_numbers(batch).flat_map(|parts| [batch.div_ceil(parts), batch / parts]).collect();
    sizes.sort_unstable_by_key(|size| std::cmp::Reverse(*size));
    sizes.dedup();
    sizes
}
