//! Plans of other programs' steps, as they are carried out from outside: saved tensors are kept, copied to the host and back, or
//! made again when the backward pass asks for them, while whoever runs the step sees nothing of it.
//!
//! ```text
//! step       operations and tensors of a step file, and who reads and writes what
//! rerun      how a list of operations runs again: copies, results, and what goes behind each
//! simulate   bytes at every operation, and time
//! allocator  what a caching allocator reserves, with the gaps between its blocks
//! greedy     decisions by a greedy search
//! anneal     decisions for which the allocator has room
//! ```
//!
//! The planner of [`crate::plan`] decides for the same steps, and knows nothing of how a program carries them out.

mod allocator;
mod anneal;
mod greedy;
mod rerun;
mod simulate;
mod step;

pub use allocator::{Reserved, Sizes, There};
pub use anneal::{Limits, with_room};
pub use greedy::greedy;
pub use rerun::{Call, Impossible};
pub use simulate::Outcome;
pub use step::EagerStep;
