//! Plans: one training or inference step in a fixed number of bytes.
//!
//! ```text
//! workload (network, mini-batch, types) -> step -> policy -> schedule -> place (offsets) -> simulate -> check -> plan
//!                                                                                               `-> carried out by `tightfit-train`
//! ```
//!
//! A network becomes a [`Step`], which knows no layers, and everything after that knows nothing else. Every policy only
//! writes a [`Schedule`]; one checker accepts or refuses it, one simulator gives its time and peak, one engine carries it
//! out on any backend. What the checker has accepted is [`Checked`], and nothing else leaves this module.

mod assemble;
mod check;
mod clock;
mod cost_model;
mod draft;
mod file;
mod floor;
mod fronts;
mod lives;
mod lower;
mod options;
mod parts;
mod place;
mod planner;
mod policies;
mod result;
mod schedule;
mod script;
mod simulate;
mod skyline;
pub mod step;
mod words;
mod workload;
mod write;

pub use crate::network::ParameterKind;
pub use check::{Budgets, Checked, Violation, check};
pub use cost_model::{CostModel, Direction};
pub use floor::check_budget;
pub use fronts::Fronts;
pub use lower::{LayerPass, Lowered};
pub use options::{Algorithms, Options, Policy};
pub use parts::{NetworkTensor, Pass, Role};
pub use planner::plan;
pub use result::{Accounting, Decision, Fate, Kind, KindBytes, LayerPlan, MapPlan, Plan};
pub use schedule::{
    ALIGNMENT, Action, Block, BlockId, Compute, Holding, HostBlock, HostBlockId, Instruction, InstructionId, Schedule,
    Stream, footprint,
};
pub use simulate::{Level, Simulation, Span, Stall, simulate};
pub use step::{Access, Mode, Step, TensorId};
pub use workload::{Parameter, Workload, channel_stride};
