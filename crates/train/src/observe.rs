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

use tightfit_core::plan::{
    Access, Action, BlockId, Checked, HostBlock, HostBlockId, InstructionId, Lowered, NetworkTensor, Role, Workload,
};

use crate::{Error, Machine};

/// A schedule that leaves every gradient and everything copied on the host.
#[derive(Clone, Debug)]
pub struct Observation {
    /// What to run.
    pub schedule: Checked,
    sights: Vec<Sight>,
}

/// Something kept.
#[derive(Clone, Debug)]
struct Sight {
    what: What,
    tensor: NetworkTensor,
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

impl Observation {
    /// The schedule with its copies; all bytes that a step gives or moves are needed on the host at once.
    ///
    /// # Errors
    /// None for a schedule of this workload.
    pub fn of(workload: &Workload<'_>, schedule: &Checked) -> Result<Observation, Error> {
        let lowered = workload.lower()?;
        let blocks = |action: &Action| seen(&lowered, action).into_iter().map(|(_, block)| block).collect();
        let (observed, copies) = schedule.with_copies(blocks)?;
        let sights = schedule.instructions.iter().flat_map(|of| seen(&lowered, &of.action)).zip(&copies);
        let sight = |((what, _), (_, host)): ((What, BlockId), &(InstructionId, HostBlockId))| {
            let HostBlock { tensor, offset, bytes } = observed.host_blocks[host.0];
            let tensor = lowered.tensors[tensor.0];
            // Beyond the tensor a block may hold anything.
            Sight { what, tensor, host: offset..offset + bytes.min(workload.bytes(tensor).0) }
        };
        let sights = sights.map(sight).collect();
        Ok(Observation { schedule: observed, sights })
    }

    /// Every gradient of the last step as bytes, in the order of computation: of maps after each pass that gave or added
    /// some, and of parameters.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn gradients(&self, machine: &mut impl Machine) -> Result<Vec<(NetworkTensor, Vec<u8>)>, Error> {
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
fn seen(lowered: &Lowered, action: &Action) -> Vec<(What, BlockId)> {
    match action {
        Action::Compute(compute) => {
            let uses = lowered.step.operation(compute.operation).uses.iter().zip(&compute.blocks);
            let operands = lowered.passes[compute.operation.0].roles.iter().zip(uses);
            let written = operands.filter(|(_, (used, _))| used.access != Access::Read);
            // Those of maps first, whatever order the operation has them in.
            let of_maps = written.clone().filter(|(role, _)| matches!(role, Role::Dx(_)));
            let of_parameters = written.filter(|(role, _)| **role == Role::Dw);
            of_maps.chain(of_parameters).map(|(_, (_, block))| (What::Gradient, *block)).collect()
        }
        Action::Offload(block, host) => vec![(What::Sent(*host), *block)],
        Action::Prefetch(host, block) => vec![(What::Fetched(*host), *block)],
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => Vec::new(),
    }
}
