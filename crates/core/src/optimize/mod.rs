//! From measurements to configurations: divide one mini-batch under a limit (WR), find the front of one kernel, allot
//! one total to all kernels (WD), and check every answer with code that shares nothing with what found it.

mod configuration;
mod fit;
mod policy;
mod survey;

pub use configuration::{Candidate, Configuration, DivisionCost};
pub use policy::{Candidates, Limit, Policy, candidates};
pub use survey::{Progress, Scope, Silent, Survey, survey};
