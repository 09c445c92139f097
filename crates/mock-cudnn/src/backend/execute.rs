//! Running a plan with the addresses of a variant pack.

use super::build::{Node, VariantPack};
use super::engine::Config;
use crate::compute::Addresses;
use crate::launch;
use crate::status::Status;

/// Enqueues the plan's work on the handle's stream.
///
/// # Errors
/// [`Status::BAD_PARAM`] if a tensor has no address; [`Status::MISALIGNED_POINTER`] if an address breaks its tensor's
/// promise; what the driver refused.
pub fn execute(handle: usize, config: &Config, pack: &VariantPack) -> Result<(), Status> {
    let node = &config.engine.graph.node;
    let mut addresses = Vec::new();
    for tensor in node.tensors() {
        let (_, address) = pack.data.iter().find(|(uid, _)| *uid == tensor.uid).ok_or(Status::BAD_PARAM)?;
        if *address == 0 {
            return Err(Status::NULL_POINTER);
        }
        if !address.is_multiple_of(tensor.alignment as usize) {
            return Err(Status::MISALIGNED_POINTER);
        }
        addresses.push(*address);
    }
    match (node, addresses.as_slice()) {
        (Node::Convolution(problem), &[x, w, y]) => {
            launch::convolution(handle, problem, config.choice(), Addresses { x, w, y }, pack.workspace)
        }
        (Node::Pointwise(operation), &[x, y]) => operation.launch(handle, [x, 0, y]),
        (Node::Pointwise(operation), &[x, b, y]) => operation.launch(handle, [x, b, y]),
        _ => Err(Status::BAD_PARAM),
    }
}
