//! Searches plans for recorded steps of other programs. A plan is carried out from outside: saved tensors are kept, copied to the host and back, or
//! recomputed when the backward pass asks for them, and the program does not notice.
//!
//! ```text
//! step       the operations and tensors of a step file, and their reads and writes
//! rerun      the calls of a rerun: copies, results, releases
//! simulate   the bytes at every operation, and the time
//! reserved   the memory that PyTorch's allocator reserves, with fragmentation
//! greedy     a greedy search for decisions
//! anneal     a search for decisions that fit in the allocator
//! ```
//!
//! [`plan`](crate::plan()) plans the same steps, but does not model how a program carries a plan out.

mod anneal;
mod greedy;
mod rerun;
mod reserved;
mod simulate;
mod step;

pub use crate::memory::caching::{InitialReservation, Sizes};
pub use anneal::{Limits, with_room};
pub use greedy::greedy;
pub use rerun::Call;
pub use reserved::Reserved;
pub use simulate::Prediction;
pub use step::{EagerStep, Impossible};
