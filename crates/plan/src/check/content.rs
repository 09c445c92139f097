//! Block contents, and whether each operation of the step reads the right ones.
//!
//! ```text
//! map         samples 0..4 by conv; conv computes 4..8     then 0..8 by conv: each sample on its own
//! dW          conv adds samples 0..4; conv adds 4..8       then conv over 0..8: the sum is whole
//! norm        its sums of samples 0..4; of 4..8            then norm by its sums for 4..8, and for 0..4
//! ```
//!
//! A computation reads and writes a tensor with samples only for its own samples. It reads any other tensor whole, after every sample has been added
//! to it.

use std::ops::Range;

use crate::step::{Access, OperationId, Phase, Rerun, Residence, Step, TensorId, Use};
use crate::{BlockId, Compute, InstructionId};

use crate::check::Violation;
use crate::check::samples::Samples;

/// The content that a tensor must have: the same for all of its samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Wanted {
    /// Whether it builds on the content left by the previous step.
    kept: bool,
    /// The operation that wrote it and the operations that added to it, in order of their indices.
    by: Vec<OperationId>,
}

impl Wanted {
    fn access(&mut self, access: Access, by: OperationId) {
        match access {
            Access::Read => {}
            Access::Write => *self = Wanted { kept: false, by: vec![by] },
            Access::Add => {
                if let Err(place) = self.by.binary_search(&by) {
                    self.by.insert(place, by);
                }
            }
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    /// The samples that build on the content left by the previous step.
    kept: Samples,
    /// The operations that wrote it or added to it, by index, each with the samples it did so for.
    by: Vec<(OperationId, Samples)>,
}

impl Content {
    /// The content of a resident block at the beginning of a step.
    pub(super) fn kept(batch: usize) -> Content {
        Content { kept: Samples::of(0..batch), by: Vec::new() }
    }

    /// Whether nothing was ever written.
    pub(super) fn is_nothing(&self) -> bool {
        self.kept.is_empty() && self.by.is_empty()
    }

    /// Whether nothing was ever written for these samples.
    pub(super) fn has_nothing_of(&self, samples: &Range<usize>) -> bool {
        !self.kept.meets(samples) && !self.by.iter().any(|(_, own)| own.meets(samples))
    }

    /// Whether the content of all these samples is the wanted content.
    fn is(&self, wanted: &Wanted, samples: &Range<usize>) -> bool {
        let agrees = |own: &Samples, is_wanted| if is_wanted { own.covers(samples) } else { !own.meets(samples) };
        let place = |by: &OperationId| self.by.binary_search_by_key(by, |(own, _)| *own);
        agrees(&self.kept, wanted.kept)
            && self.by.iter().all(|(own, of)| agrees(of, wanted.by.binary_search(own).is_ok()))
            && wanted.by.iter().all(|by| place(by).is_ok())
    }

    /// Whether it is the sum that an operation computed over other samples, without these.
    fn is_sum_of(&self, operation: OperationId, samples: &Range<usize>) -> bool {
        self.kept.is_empty() && matches!(self.by.as_slice(), [(by, own)] if *by == operation && !own.meets(samples))
    }

    /// Records an access that computed `samples`. It concerns only their bytes if `apart`, otherwise all bytes.
    fn access(&mut self, access: Access, by: OperationId, samples: &Range<usize>, apart: bool) {
        match access {
            Access::Read => return,
            Access::Write if apart => {
                self.kept.remove(samples);
                self.by.iter_mut().for_each(|(_, own)| own.remove(samples));
                self.by.retain(|(_, own)| !own.is_empty());
            }
            Access::Write => *self = Content::default(),
            Access::Add => {}
        }
        match self.by.binary_search_by_key(&by, |(own, _)| *own) {
            Ok(place) => self.by[place].1.insert(samples),
            Err(place) => self.by.insert(place, (by, Samples::of(samples.clone()))),
        }
    }
}

/// The contents that the step's operations must read, and which operations have run.
pub(super) struct Progress {
    /// For each operation and use: the content it reads; `None` if it overwrites.
    reads: Vec<Vec<Wanted>>,
    /// For each operation and use: the content it leaves.
    leaves: Vec<Vec<Wanted>>,
    /// For each tensor: its content at the end of the step.
    results: Vec<Option<Wanted>>,
    /// For each operation: the samples that it has computed.
    done: Vec<Samples>,
    /// For each operation: the samples whose sums it has computed in a separate phase.
    summed: Vec<Samples>,
    batch: usize,
}

impl Progress {
    /// Walks the operations in order.
    pub(super) fn of(step: &Step) -> Progress {
        let start = |residence| Wanted { kept: residence == Residence::Resident, by: Vec::new() };
        let mut held: Vec<Wanted> = step.tensors.iter().map(|tensor| start(tensor.residence)).collect();
        let mut reads = Vec::with_capacity(step.operations.len());
        let mut leaves = Vec::with_capacity(step.operations.len());
        for (id, operation) in step.iter() {
            reads.push(operation.uses.iter().map(|used| held[used.tensor.0].clone()).collect());
            operation.uses.iter().for_each(|used| held[used.tensor.0].access(used.access, id));
            leaves.push(operation.uses.iter().map(|used| held[used.tensor.0].clone()).collect());
        }
        let results = step.tensors.iter().zip(held).map(|(tensor, held)| tensor.is_result.then_some(held)).collect();
        let none = vec![Samples::default(); step.operations.len()];
        Progress { reads, leaves, results, done: none.clone(), summed: none, batch: step.batch }
    }

    /// Runs an operation: checks the contents it reads and updates those it writes.
    pub(super) fn compute(
        &mut self,
        step: &Step,
        compute: &Compute,
        contents: &mut [Content],
        at: InstructionId,
    ) -> Vec<Violation> {
        let (operation, samples) = (compute.operation, &compute.samples);
        let mut found = Vec::new();
        let done = match compute.phase {
            Phase::Whole | Phase::Apply => &mut self.done[operation.0],
            Phase::Sums => &mut self.summed[operation.0],
        };
        // A rerun needs a first run, and a first run happens once.
        let is_next = if compute.again { done.covers(samples) } else { !done.meets(samples) };
        if !is_next {
            found.push(Violation::RunTwice { operation, at });
        }
        done.insert(samples);
        let uses: Vec<(usize, &Use)> = step.uses(operation, compute.phase).collect();
        for (&(place, used), block) in uses.iter().zip(&compute.blocks) {
            let access = compute.access(used, step.tensor(used.tensor));
            // An operand that a rerun only reads must hold the output of the first run. An operand that only this phase reads must hold the output of
            // earlier phases.
            let is_left = compute.phase == Phase::Apply && access == Access::Read && used.access != Access::Read;
            let is_kept = compute.again && used.rerun == Rerun::ReadOnly;
            let wanted = if is_kept || is_left { &self.leaves } else { &self.reads };
            let (content, wanted) = (&contents[block.0], &wanted[operation.0][place]);
            let tensor = step.tensor(used.tensor);
            let reach = compute.reach(tensor, self.batch);
            let is_right = match access {
                Access::Write => true,
                // It must contain the sums of earlier parts of this operation, but not this part's.
                Access::Add if used.access == Access::Write => content.is_sum_of(operation, samples),
                Access::Read | Access::Add => content.is(wanted, &reach),
            };
            // Empty blocks have been rejected already.
            if !is_right && !content.has_nothing_of(&reach) {
                found.push(Violation::WrongContent { operation, operand: place, at });
            }
        }
        for ((_, used), BlockId(block)) in uses.iter().zip(&compute.blocks) {
            let tensor = step.tensor(used.tensor);
            let has_samples = tensor.sample_bytes.is_some();
            // If an operand has no samples and is not a sum, it changes once for the whole mini-batch.
            let counted = if has_samples || step.is_sum(used) { samples.clone() } else { 0..self.batch };
            contents[*block].access(compute.access(used, tensor), operation, &counted, has_samples);
        }
        found
    }

    /// Whether these samples have the content that a tensor must have after the step.
    pub(super) fn is_result(&self, tensor: TensorId, content: &Content, samples: &Range<usize>) -> bool {
        self.results.get(tensor.0).and_then(Option::as_ref).is_some_and(|wanted| content.is(wanted, samples))
    }

    /// The operations that did not run for every sample.
    pub(super) fn missing(&self) -> impl Iterator<Item = Violation> + '_ {
        let all = 0..self.batch;
        // If any sums run in a separate phase, all must.
        let is_missing = move |(done, summed): (&Samples, &Samples)| {
            !done.covers(&all) || !(summed.is_empty() || summed.covers(&all))
        };
        let operations = self.done.iter().zip(&self.summed).enumerate();
        let missing = operations.filter(move |(_, of)| is_missing(*of));
        missing.map(|(place, _)| Violation::Missing { operation: OperationId(place) })
    }
}
