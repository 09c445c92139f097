//! A schedule that has passed the checker: the only kind that leaves the planner and the only kind that engines accept.

use std::ops::Deref;
use std::sync::Arc;

use tightfit_units::{Bytes, Error};

use crate::check::{Budgets, check};
use crate::step::{OperationId, Phase, Step};
use crate::{Action, BlockId, Holding, HostBlock, HostBlockId, Instruction, InstructionId, Schedule, footprint};

/// A schedule that has passed [`check`], with the step it was checked against.
///
/// ```
/// use tightfit_plan::{Budgets, Checked, CostModel, Fronts, Mode, Options, Workload, plan};
/// use tightfit_conv::Types;
/// use tightfit_network::Network;
/// let network = Network::open("lenet")?;
/// let (workload, costs) = (Workload::new(&network, 8, Types::F32, Mode::Training)?, CostModel::cpu());
/// let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
/// let mut schedule = plan(&step, &costs, &Options::default())?.schedule.into_schedule();
/// assert!(Checked::new(&step, schedule.clone(), Budgets::default()).is_ok());
/// schedule.instructions.pop();
/// assert!(Checked::new(&step, schedule, Budgets::default()).is_err());
/// # Ok::<(), tightfit_units::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    schedule: Schedule,
    /// Without costs: they do not affect correctness.
    step: Arc<Step>,
}

impl Checked {
    /// Checks a schedule.
    ///
    /// - Cost: one [`check`].
    ///
    /// # Errors
    /// [`Error::Unsound`] with the first violation; the errors of [`Step::check`].
    pub fn new(step: &Step, schedule: Schedule, budgets: Budgets) -> Result<Checked, Error> {
        step.check()?;
        if (schedule.batch, schedule.types) != (step.batch, step.types) {
            let (batch, types) = (schedule.batch, schedule.types);
            return Err(Error::Unsound {
                what: format!("{}: the schedule is for {batch} samples in {types}", step.name),
            });
        }
        match check(step, &schedule, budgets).first() {
            Some(violation) => Err(Error::Unsound { what: format!("{}: {violation}", step.name) }),
            None => Ok(Checked { schedule, step: Arc::new(step.without_costs()) }),
        }
    }

    /// Accepts a schedule unchecked, to test how a machine handles an invalid one.
    #[cfg(feature = "test-util")]
    pub fn assume(step: &Step, schedule: Schedule) -> Checked {
        Checked { schedule, step: Arc::new(step.without_costs()) }
    }

    /// The step it was checked against, without costs.
    pub fn step(&self) -> &Step {
        &self.step
    }

    /// Describes an instruction that takes time; `None` for one that takes none.
    pub fn describe(&self, action: &Action) -> Option<String> {
        let block = |block: BlockId| self.step.describe(self.blocks[block.0].holds);
        match action {
            Action::Compute(compute) => {
                let again = if compute.again { " again" } else { "" };
                let phase = match compute.phase {
                    Phase::Whole => "",
                    Phase::Sums => ", its sums",
                    Phase::Apply => ", by its sums",
                };
                let OperationId(place) = compute.operation;
                let (group, name) = (self.step.group_name(compute.operation), &self.step.operations[place].name);
                let samples = match &compute.samples {
                    samples if samples.len() < self.batch => format!(" of samples {}..{}", samples.start, samples.end),
                    _ => String::new(),
                };
                Some(format!("{group} {name}{phase}{again}{samples}"))
            }
            Action::Offload(from, _) => Some(format!("offload {}", block(*from))),
            Action::Prefetch(_, to) => Some(format!("prefetch {}", block(*to))),
            Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => None,
        }
    }

    /// Unwraps the schedule, which may then be modified.
    pub fn into_schedule(self) -> Schedule {
        self.schedule
    }

    /// Adds copies of blocks to the host: for each action, the blocks that `which` returns, copied right after the
    /// action, on the same stream, to separate host bytes. Also returns, in order, each copy's action (its position in
    /// the original schedule) and host block.
    ///
    /// The result is still sound, although [`check`] rejects copies on the compute stream: a copy only reads blocks
    /// that the preceding action on its stream has just accessed, nothing else uses its host bytes, and any wait for
    /// that action becomes a wait for the copy.
    ///
    /// # Errors
    /// [`Error::Unsound`] if `which` returns a block that the action does not access.
    pub fn with_copies(
        &self,
        which: impl Fn(&Action) -> Vec<BlockId>,
    ) -> Result<(Checked, Vec<(InstructionId, HostBlockId)>), Error> {
        let mut schedule = Schedule { instructions: Vec::new(), ..self.schedule.clone() };
        let mut copies = Vec::new();
        // For each original instruction: the last of the instructions that replace it.
        let mut ends: Vec<InstructionId> = Vec::with_capacity(self.instructions.len());
        for (place, instruction) in self.instructions.iter().enumerate() {
            let stream = instruction.stream;
            let action = match instruction.action {
                Action::Wait(on) => Action::Wait(ends[on.0]),
                ref action => action.clone(),
            };
            schedule.instructions.push(Instruction { stream, action });
            for block in which(&instruction.action) {
                let Some(&Holding::Tensor(tensor)) = self.blocks.get(block.0).map(|block| &block.holds) else {
                    return Err(Error::Unsound { what: format!("block {} holds no tensor", block.0) });
                };
                if !instruction.action.touches(block) {
                    let what = format!("instruction {place} does not touch block {}", block.0);
                    return Err(Error::Unsound { what });
                }
                let host = HostBlockId(schedule.host_blocks.len());
                let (bytes, offset) = (self.blocks[block.0].bytes, footprint(schedule.host_bytes.0));
                schedule.host_blocks.push(HostBlock { tensor, offset, bytes });
                schedule.host_bytes = Bytes(offset + bytes);
                schedule.instructions.push(Instruction { stream, action: Action::Offload(block, host) });
                copies.push((InstructionId(place), host));
            }
            ends.push(InstructionId(schedule.instructions.len() - 1));
        }
        Ok((Checked { schedule, step: Arc::clone(&self.step) }, copies))
    }
}

impl Deref for Checked {
    type Target = Schedule;

    fn deref(&self) -> &Schedule {
        &self.schedule
    }
}
