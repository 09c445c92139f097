//! From measurements to configurations: divide one mini-batch under a limit (WR), find the front of one kernel, allot
//! one total to all kernels (WD), split a mini-batch over unequal devices, and check every answer with code that shares
//! nothing with what found it.

pub mod allot;
pub mod check;
mod configuration;
mod divide;
mod fit;
mod front;
mod policy;
mod split;
mod survey;

pub use allot::{Allotment, SearchOptions, Speedups, Stop, allot};
pub use configuration::{Candidate, Configuration, DivisionCost};
pub use divide::{divide, one_workspace, undivided};
pub use front::{front, points};
pub use policy::{Candidates, Limit, Policy, candidates};
pub use split::{Split, split};
pub use survey::{Progress, Scope, Silent, Survey, survey};
