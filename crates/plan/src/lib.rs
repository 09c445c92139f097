//! Plans: one training or inference step in a fixed number of bytes.
//!
//! ```text
//! workload (network, mini-batch, types) -> step
//!   -> policy -> script -> schedule -> place (offsets) -> simulate -> check -> plan -> carried out by `tightfit-train`
//! ```
//!
//! ```
//! use tightfit_conv::Types;
//! use tightfit_network::built_in;
//! use tightfit_plan::{CostModel, Fronts, Mode, Options, Policy, Workload, plan};
//!
//! let (network, costs) = (built_in("lenet")?, CostModel::h200());
//! let workload = Workload::new(&network, 64, Types::F32, Mode::Training)?;
//! let step = workload.step(&Fronts::assumed(&workload, &costs)?, &costs)?;
//! let plain = plan(&step, &costs, &Options { policy: Policy::Baseline, ..Options::default() })?;
//! let tight = plan(&step, &costs, &Options { budget: plain.min_feasible, ..Options::default() })?;
//! assert!(tight.peak <= plain.min_feasible && tight.peak <= plain.peak);
//! # Ok::<(), tightfit_units::Error>(())
//! ```
//!
//! A network becomes a [`Step`], which has no notion of layers. All later stages work on the step alone. A policy only writes a script. One writer
//! turns it into a [`Schedule`], one search places it in memory, one simulator computes its time and peak, one checker accepts or rejects it, and one
//! engine runs it on any backend. The only schedules that leave this crate are [`Checked`] ones.
//!
//! Each folder imports only from folders above it:
//!
//! - `step`: a step as data, the rates of devices, and step files. `schedule`: instructions, scripts, writing a schedule, and parts of a mini-batch.
//! - `lowering`: networks as steps, with times and configurations of convolutions.
//! - `simulate` and `check`: what a schedule does, twice, by code that shares nothing. `result` has what is known of a plan; `file` reads and writes it.
//! - `memory`: the places of blocks. `vdnn` and `search` are policies; `attempts` keeps the attempts of one.
//! - `planner`: the entry points: one budget, several budgets, the sizes to measure, the least budget.
//! - [`eager`]: plans of other programs' steps, which are carried out from outside. [`flow`]: least cuts.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod attempts;
mod check;
pub mod eager;
mod file;
pub mod flow;
mod lowering;
mod memory;
mod options;
mod planner;
mod result;
mod schedule;
mod search;
mod simulate;
pub mod step;
mod stop;
mod threads;
mod vdnn;

pub use check::{Budgets, Checked, Violation, check};
pub use lowering::fronts::Fronts;
pub use lowering::order::Order;
pub use lowering::prepared::{ASSUMED_RATES, Prepared};
pub use lowering::terms::{LayerPass, Lowered, NetworkTensor, Role};
pub use lowering::workload::{Parameter, Workload, channel_stride};
pub use options::{Algorithms, Options, Policy};
pub use planner::floor::check_budget;
pub use planner::scope::{limits, part_sizes};
pub use planner::sweep::{Rivals, Swept, checkpoints, rivals, sweep};
pub use planner::{plain, plan, plan_until};
pub use result::{Accounting, Attempt, Bounded, InParts, LayerPlan, MapPlan, MapTreatment, Plan};
pub use schedule::treatment::{Rebuilding, TensorDecision, Treatment, decisions};
pub use schedule::{
    Action, Block, BlockId, Compute, Holding, HostBlock, HostBlockId, Instruction, InstructionId, Schedule, Stream,
};
pub use simulate::{Level, Simulation, Span, Stall, simulate};
pub use step::{ALIGNMENT, Access, Mode, Step, TensorId, footprint};
pub use step::{CostModel, Direction, Figure, Kind, KindBytes, MACHINES, NamedMachine, Pass};
pub use stop::Stop;
pub use tightfit_network::ParameterKind;
