//! Networks as steps: sizes, passes and tensors of a network, the time of each pass, and the check of the result.
//!
//! ```text
//! network, mini-batch, types -> workload -> lower -> verify -> estimate (times, with the fronts of convolutions) -> step
//! ```

pub(crate) mod estimate;
pub(crate) mod fronts;
pub(crate) mod lower;
pub(crate) mod order;
pub(crate) mod prepared;
pub(crate) mod terms;
pub(crate) mod verify;
pub(crate) mod words;
pub(crate) mod workload;
