//! Plans: training or inference of a network in a fixed number of bytes.
//!
//! ```text
//! workload (network, mini-batch, types) -> policy -> schedule -> place (offsets) -> check -> simulate -> plan
//!                                                                              `-> carried out by `tightfit-train`
//! ```
//!
//! Every policy only writes a [`Schedule`]; one checker accepts or refuses it, one simulator gives its time and peak, one
//! engine carries it out on any backend.

mod check;
mod clock;
mod costs;
mod draft;
mod facts;
mod file;
mod floor;
mod kernels;
mod lives;
mod options;
mod place;
mod planned;
mod planner;
mod policies;
mod program;
mod schedule;
mod script;
mod simulate;
mod skyline;
mod words;
mod workload;
mod write;

pub use check::{Budgets, Violation, check};
pub use costs::Costs;
pub use floor::check_budget;
pub use kernels::Kernels;
pub use options::{Algorithms, Options, Policy};
pub use planned::{Accounting, Decision, Fate, Kind, KindBytes, LayerPlan, MapPlan, Plan};
pub use planner::plan;
pub use schedule::{
    Access, Action, Block, BlockId, Compute, HostBlock, HostBlockId, Operand, Pass, Role, Schedule, Step, StepId,
    Stream, Tensor,
};
pub use simulate::{Level, Simulation, Span, Stall, simulate};
pub use workload::{ALIGNMENT, Parameter, ParameterKind, Workload, channel_stride};
