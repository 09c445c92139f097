//! Running a plan with the addresses of a variant pack.

use std::sync::Arc;

use super::built::VariantPack;
use super::engine::{COMPILES, Config};
use super::graph::Node;
use crate::compute::Addresses;
use crate::launch::{self, Code};
use crate::status::Status;
use crate::tensor::Tensor;

/// Enqueues the plan's work on a stream, or into a graph.
///
/// # Errors
/// [`Status::BAD_PARAM`] if a tensor has no address; [`Status::MISALIGNED_POINTER`] if an address breaks its tensor's
/// promise; what the driver refused.
pub fn execute(stream: usize, config: &Arc<Config>, pack: &VariantPack) -> Result<(), Status> {
    let address = |tensor: &Tensor| {
        let (_, address) = *pack.data.iter().find(|(uid, _)| *uid == tensor.uid).ok_or(Status::BAD_PARAM)?;
        match address {
            0 => Err(Status::NULL_POINTER),
            _ if !address.is_multiple_of(tensor.alignment as usize) => Err(Status::MISALIGNED_POINTER),
            _ => Ok(address),
        }
    };
    let graph = &config.engine.graph;
    if let Node::Convolution(problem) = &graph.node {
        let addresses = Addresses { x: address(&problem.x)?, w: address(&problem.w)?, y: address(&problem.y)? };
        let is_compiled = config.engine.behavior_notes().contains(&COMPILES);
        let code: Option<Code> = is_compiled.then(|| Arc::<Config>::downgrade(config) as Code);
        launch::convolution(stream, problem, config.choice(), addresses, pack.workspace, code)?;
    }
    match graph.pointwise() {
        Some(operation) => {
            let b = operation.b.as_ref().map_or(Ok(0), address)?;
            operation.launch(stream, [address(&operation.x)?, b, address(&operation.y)?])
        }
        None => Ok(()),
    }
}
