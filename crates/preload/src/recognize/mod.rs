//! Turns descriptors into a convolution of the project, or into the reason why it is left unchanged.
//!
//! ```text
//! backend descriptors    attributes -> graph -.
//! legacy descriptors     numbers -------------'--> Tensor, Window -> Computation
//! ```

mod attributes;
mod computation;
mod graph;
#[cfg(test)]
pub mod samples;

pub use attributes::Addresses;
pub use computation::{Computation, Tensor, Window};
pub use graph::{Graph, Link, link};
