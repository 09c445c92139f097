//! What a policy decides: which tensors are copied, and between which computations.
//!
//! ```text
//! computations    conv1        conv2         ..   conv2 backward          conv1 backward
//! script              offload a|    leave a       prefetch a |   arrive a
//! ```

use super::step::TensorId;

/// A decision about one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Move {
    /// Starts its copy to the host.
    Offload(TensorId),
    /// Waits for that copy and gives the device bytes back.
    Leave(TensorId),
    /// Takes bytes on the device and starts the copy back.
    Prefetch(TensorId),
    /// Waits for that copy.
    Arrive(TensorId),
}

/// All decisions, by place of computation in the step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Script {
    /// Maps and what else operations save are allocated at the beginning of the step and released at its end.
    pub(super) network_wide: bool,
    /// Copies of both directions run on one stream.
    pub(super) one_stream: bool,
    before: Vec<Vec<Move>>,
    after: Vec<Vec<Move>>,
}

impl Script {
    /// Nothing moves, in a step of this many computations.
    pub(super) fn new(operations: usize) -> Script {
        Script {
            network_wide: false,
            one_stream: true,
            before: vec![Vec::new(); operations],
            after: vec![Vec::new(); operations],
        }
    }

    /// Nothing moves, and everything that comes and goes but gradient maps and workspaces is there for the whole step.
    pub(super) fn network_wide(operations: usize) -> Script {
        Script { network_wide: true, ..Script::new(operations) }
    }

    /// Nothing moves yet; copies of each direction will run on a stream of their own.
    pub(super) fn two_copy_streams(operations: usize) -> Script {
        Script { one_stream: false, ..Script::new(operations) }
    }

    /// Decides something for just before a computation.
    pub(super) fn before(&mut self, at: usize, decision: Move) {
        self.before[at].push(decision);
    }

    /// Decides something for just after a computation.
    pub(super) fn after(&mut self, at: usize, decision: Move) {
        self.after[at].push(decision);
    }

    /// What happens just before a computation, in order.
    pub(super) fn moves_before(&self, at: usize) -> &[Move] {
        &self.before[at]
    }

    /// What happens just after a computation, in order.
    pub(super) fn moves_after(&self, at: usize) -> &[Move] {
        &self.after[at]
    }
}
