//! Records intermediate data that a step overwrites, for tests that compare policies.
//!
//! ```text
//! schedule   compute a: dX   offload x        prefetch x        compute b
//! observed   compute a: dX   offload x        prefetch x        compute b       the same, and after each on its own stream
//!                    keep dX           keep x            keep x                 a copy to a separate place on the host
//! ```
//!
//! No waits are added, so late streams stay late. A wait for an instruction also waits for its copy.

use std::ops::Range;

use tightfit_plan::{
    Access, Action, BlockId, Checked, HostBlock, HostBlockId, InstructionId, Lowered, NetworkTensor, Role, Workload,
};

use crate::{Error, Machine};

/// A schedule that saves every gradient and everything copied on the host.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The schedule to run.
    pub schedule: Checked,
    sights: Vec<SavedTensor>,
}

/// One saved tensor.
#[derive(Clone, Debug)]
struct SavedTensor {
    what: SavedKind,
    tensor: NetworkTensor,
    host: Range<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum SavedKind {
    /// The gradient of a map or of parameters after one pass.
    Gradient,
    /// Data copied to a host block.
    Sent(HostBlockId),
    /// Data copied back from there.
    Fetched(HostBlockId),
}

impl Observation {
    /// Adds the copies to a schedule. The host needs room for all of them at once.
    ///
    /// # Errors
    /// A schedule of this workload causes no error.
    pub fn of(workload: &Workload<'_>, schedule: &Checked) -> Result<Observation, Error> {
        let lowered = workload.lower()?;
        let blocks = |action: &Action| seen(&lowered, action).into_iter().map(|(_, block)| block).collect();
        let (observed, copies) = schedule.with_copies(blocks)?;
        let sights = schedule.instructions.iter().flat_map(|next| seen(&lowered, &next.action)).zip(&copies);
        let sight = |((what, _), (_, host)): ((SavedKind, BlockId), &(InstructionId, HostBlockId))| {
            let HostBlock { tensor, offset, bytes } = observed.host_blocks[host.0];
            let tensor = lowered.tensors[tensor.0];
            // The block's bytes beyond the tensor are undefined.
            SavedTensor { what, tensor, host: offset..offset + bytes.min(workload.bytes(tensor).0) }
        };
        let sights = sights.map(sight).collect();
        Ok(Observation { schedule: observed, sights })
    }

    /// Every gradient of the last step as bytes, in order of computation: of maps after each pass that wrote or added
    /// to them, and of parameters.
    ///
    /// # Errors
    /// [`Error::Step`].
    pub fn gradients(&self, machine: &mut impl Machine) -> Result<Vec<(NetworkTensor, Vec<u8>)>, Error> {
        let gradients = self.sights.iter().filter(|sight| sight.what == SavedKind::Gradient);
        gradients.map(|sight| Ok((sight.tensor, machine.read_host(sight.host.clone())?))).collect()
    }

    /// Compares the data that came back from the host in the last step with the data sent there; returns the number of
    /// copies compared.
    ///
    /// # Errors
    /// [`Error::Step`], which names the tensor if they differ.
    pub fn check_copies(&self, machine: &mut impl Machine) -> Result<usize, Error> {
        let mut compared = 0;
        for (place, fetched) in self.sights.iter().enumerate() {
            let SavedKind::Fetched(host) = fetched.what else { continue };
            let sent = self.sights[..place].iter().rfind(|sight| sight.what == SavedKind::Sent(host));
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

/// The data to save after an instruction.
fn seen(lowered: &Lowered, action: &Action) -> Vec<(SavedKind, BlockId)> {
    match action {
        Action::Compute(compute) => {
            let uses = lowered.step.uses(compute.operation, compute.phase).zip(&compute.blocks);
            let accessed = |used| compute.access(used, lowered.step.tensor(used.tensor));
            let written = uses.filter(|((_, used), _)| accessed(used) != Access::Read);
            let roles = &lowered.passes[compute.operation.0].roles;
            let written: Vec<(Role, BlockId)> = written.map(|((place, _), block)| (roles[place], *block)).collect();
            // Gradients of maps first, regardless of their order in the operation.
            let of_maps = written.iter().filter(|(role, _)| matches!(role, Role::Dx(_)));
            let of_parameters = written.iter().filter(|(role, _)| *role == Role::Dw);
            of_maps.chain(of_parameters).map(|(_, block)| (SavedKind::Gradient, *block)).collect()
        }
        Action::Offload(block, host) => vec![(SavedKind::Sent(*host), *block)],
        Action::Prefetch(host, block) => vec![(SavedKind::Fetched(*host), *block)],
        Action::Allocate(_) | Action::Release(_) | Action::Wait(_) => Vec::new(),
    }
}
