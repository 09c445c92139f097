//! A policy's decisions: which tensors to copy, and between which computations.
//!
//! ```text
//! computations    conv1        conv2         ..   conv2 backward          conv1 backward
//! script              offload a|    leave a       prefetch a |   arrive a
//! ```

use crate::step::{OperationId, TensorId};

/// A decision about one tensor, or a rerun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Move {
    /// Start the copy to the host.
    Offload(TensorId),
    /// Wait for that copy, if any, and release the device bytes.
    Leave(TensorId),
    /// Allocate device bytes and start the copy back.
    Prefetch(TensorId),
    /// Wait for the copy back.
    Arrive(TensorId),
    /// Run an operation again.
    Rerun(OperationId),
}

/// All decisions, by position in the step.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Script {
    /// Whether maps and saved data are allocated at the beginning of the step and released at its end.
    pub(crate) network_wide: bool,
    /// Whether copies in both directions share one stream.
    pub(crate) one_stream: bool,
    /// Whether the script has a release for each movable tensor; otherwise a tensor leaves after its last use.
    pub(crate) releases: bool,
    before: Vec<Vec<Move>>,
    after: Vec<Vec<Move>>,
}

impl Script {
    /// A script without moves, for a step of this many computations: everything stays until its last use.
    pub(crate) fn new(operations: usize) -> Script {
        Script {
            network_wide: false,
            one_stream: true,
            releases: false,
            before: vec![Vec::new(); operations],
            after: vec![Vec::new(); operations],
        }
    }

    /// A script without moves that keeps everything except gradient maps and workspaces for the whole step.
    pub(crate) fn network_wide(operations: usize) -> Script {
        Script { network_wide: true, ..Script::new(operations) }
    }

    /// A script without moves whose copies will run on one stream per direction.
    pub(crate) fn two_copy_streams(operations: usize) -> Script {
        Script { one_stream: false, ..Script::new(operations) }
    }

    /// A script with a release for each movable tensor.
    pub(crate) fn with_releases(operations: usize) -> Script {
        Script { releases: true, ..Script::two_copy_streams(operations) }
    }

    /// Adds a decision just before a computation.
    pub(crate) fn before(&mut self, at: usize, decision: Move) {
        self.before[at].push(decision);
    }

    /// Adds a decision just after a computation.
    pub(crate) fn after(&mut self, at: usize, decision: Move) {
        self.after[at].push(decision);
    }

    /// The decisions just before a computation, in order.
    pub(crate) fn moves_before(&self, at: usize) -> &[Move] {
        &self.before[at]
    }

    /// The decisions just after a computation, in order.
    pub(crate) fn moves_after(&self, at: usize) -> &[Move] {
        &self.after[at]
    }
}
