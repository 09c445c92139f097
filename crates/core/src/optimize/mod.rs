//! From measurements to configurations: divide one mini-batch under a limit (WR), find the front of one kernel, allot
//! one total to all kernels (WD), split a mini-batch over unequal devices, and check every answer with code that shares
//! nothing with what found it.

pub mod allot;
pub mod check;
mod choose;
mod configuration;
mod divide;
mod fit;
mod front;
mod mixed;
mod needs;
mod policy;
mod split;
mod step;
mod survey;

pub use allot::{Allotment, SearchOptions, Speedups, Stop, allot};
pub use choose::{Chosen, choose};
pub use configuration::{Candidate, Configuration, DivisionCost};
pub use divide::{divide, times, undivided};
pub use front::{front, points};
pub use mixed::{DeviceShare, MixedSplit, split_network};
pub use needs::{Needs, needs};
pub use policy::{Candidates, Limit, Policy, candidates};
pub use split::{Split, split};
pub use step::{StepOptions, step_name, step_times, training_bytes};
pub use survey::{Progress, Scope, Silent, Survey, survey};
