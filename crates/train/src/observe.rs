//! What a step overwrites before it is over, kept for whoever looks: for tests that compare policies.
//!
//! ```text
//! schedule   compute a: dX   offload x        prefetch x        compute b
//! observed   compute a: dX   offload x        prefetch x        compute b       the same, and after each on its own stream
//!                    keep dX           keep x            keep x                 a copy to a place on the host of its own
//! ```
//!
//! Nothing waits that did not wait before, so late streams stay late. Whoever waits for a step waits for its copy as well.

use std::ops::Range;

use tightfit_core::Bytes;
use tightfit_core::plan::{
    ALIGNMENT, Access, Action, BlockId, HostBlock, HostBlockId, Role, Schedule, Step, StepId, Tensor, Workload,
};

use crate::{Error, Machine};

/// A schedule that leaves every gradient and everything copied on the host.
///
/// [`crate::Engine::unchecked`] takes it: the checker refuses copies on the compute stream.
#[derive(Clone, Debug)]
pub struct Observed {
    /// What to run.
    pub schedule: Schedule,
    sights: Vec<Sight>,
}

/// Something kept.
#[derive(Clone, Debug)]
struct Sight {
    what: What,
    tensor: Tensor,
    host: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum What {
    /// The gradient of a map or of parameters, as one pass left it.
    Gradient,
    /// What was copied to a host block.
    Sent(HostBlockId),
    /// What came back from there.
    Fetched(HostBlockId),
}

impl Observed {
    /// The schedule with its copies; all bytes that a step gives or moves are needed on the host at once.
    pub fn of(workload: &Workload<'_>, schedule: &Schedule) -> Observed {
        let mut observed =
            Observed { schedule: Schedule { steps: Vec::new(), ..schedule.clone() }, sights: Vec::new() };
        // By step of the given schedule: the last of those that now stand for it.
        let mut ends = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            let action = match step.action {
                Action::Wait(on) => Action::Wait(ends.get(on.0).copied().unwrap_or(on)),
                ref action => action.clone(),
            };
            observed.schedule.steps.push(Step { stream: step.stream, action });
            for (what, block) in seen(&step.action) {
                observed.keep(workload, step, what, block);
            }
            ends.push(StepId(observed.schedule.steps.len() - 1));
        }
        observed
    }

    /// Appends the copy of a block to a new place.
    fn keep(&mut self, workload: &Workload<'_>, step: &Step, what: What, block: BlockId) {
        let schedule = &mut self.schedule;
        let Some(of) = schedule.blocks.get(block.0) else { return };
        let (tensor, bytes, offset) = (of.tensor, of.bytes, schedule.host_bytes.0.next_multiple_of(ALIGNMENT));
        let place = HostBlockId(schedule.host_blocks.len());
        schedule.host_blocks.push(HostBlock { tensor, offset, bytes });
        schedule.host_bytes = Bytes(offset + bytes);
        schedule.steps.push(Step { stream: step.stream, action: Action::Offload(block, place) });
        // Beyond the tensor a block may hold anything.
        let host = offset..offset + bytes.min(workload.bytes(tensor).0);
        self.sights.push(Sight { what, tensor, host });
    }

    /// Every gradient of the last step as bytes, in the order of computation: of maps after each pass that gave or added
    /// some, and of parameters.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn gradients(&self, machine: &mut impl Machine) -> Result<Vec<(Tensor, Vec<u8>)>, Error> {
        let gradients = self.sights.iter().filter(|sight| sight.what == What::Gradient);
        gradients.map(|sight| Ok((sight.tensor, machine.read_host(sight.host.clone())?))).collect()
    }

    /// Compares what came back from the host in the last step with what had been sent there; gives the number of copies
    /// that were compared.
    ///
    /// # Errors
    /// [`Error::Step`], which names the tensor if they differ.
    pub fn check_copies(&self, machine: &mut impl Machine) -> Result<usize, Error> {
        let mut compared = 0;
        for (place, fetched) in self.sights.iter().enumerate() {
            let What::Fetched(host) = fetched.what else { continue };
            let sent = self.sights[..place].iter().rfind(|sight| sight.what == What::Sent(host));
            let sent = sent.map(|sent| machine.read_host(sent.host.clone())).transpose()?;
            if sent != Some(machine.read_host(fetched.host.clone())?) {
                let (step, what) = (format!("prefetching {:?}", fetched.tensor), "not what was offloaded".to_owned());
                return Err(Error::Step { machine: machine.name(), step, what, source: None });
            }
            compared += 1;
        }
        Ok(compared)
    }
}

/// What there is to see after a step.
fn seen(action: &Action) -> Vec<(What, BlockId)> {
    match action {
        Action::Compute(compute) => {
            let written = compute.operands.iter().filter(|operand| operand.access != Access::Read);
            // Whatever order a schedule lists them in.
            let of_maps = written.clone().filter(|operand| matches!(operand.role, Role::Dx(_)));
            let of_parameters = written.filter(|operand| operand.role == Role::Dw);
            of_maps.chain(of_parameters).map(|operand| (What::Gradient, operand.block)).collect()
        }
        Action::Offload(block, host) => vec![(What::Sent(*host), *block)],
        Action::Prefetch(host, block) => vec![(What::Fetched(*host), *block)],
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => Vec::new(),
    }
}
