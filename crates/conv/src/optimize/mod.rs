//! The pure mathematics from candidates to configurations.
//!
//! - `divide`: one mini-batch under a limit (WR).
//! - `front`: the Pareto front of one kernel.
//! - `allot`: one total for all kernels (WD); `needs` compares the schemes.
//! - `slice`: combines slices along an axis.
//! - `split`: one mini-batch over unequal devices.
//! - `check`: checks every answer independently of the solvers.

pub mod allot;
pub mod check;
mod divide;
mod front;
mod needs;
mod slice;
mod split;

pub use allot::{Allotment, SearchOptions, Speedups, Stop, allot};
pub use divide::{divide, times, undivided};
pub use front::{front, points};
pub use needs::{Needs, needs};
pub use slice::{Piece, slice};
pub use split::check_samples;
pub use split::{Split, split};
