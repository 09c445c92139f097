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
//! - Input: `workload` and `lower` (networks), `step` (the form of a step, and its files), `cost_model`, `machines` and `cards` (times), `fronts`
//!   (configurations of convolutions), `options`, `scope` (the sizes to measure).
//! - Planning: `planner` and `sweep` are the entry points; `policies` write a `script`, `write` makes a `schedule`, `draft` places it with `lives`
//!   and `clock`; `parts` and `lanes` rewrite steps and schedules.
//! - Output: `simulate`, `check` and `assemble` make a `result`; `file` and `decisions` write it.
//! - [`eager`]: plans of other programs' steps, which are carried out from outside. [`flow`]: least cuts.
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod assemble;
mod cards;
mod check;
mod clock;
mod cost_model;
mod decisions;
mod draft;
pub mod eager;
mod file;
mod floor;
pub mod flow;
mod fronts;
mod lanes;
mod lives;
mod lower;
mod lower_bound;
mod machines;
mod network_terms;
mod options;
mod order;
mod parts;
mod planner;
mod policies;
mod prepared;
mod result;
mod schedule;
mod scope;
mod script;
mod simulate;
pub mod step;
mod stop;
mod sweep;
mod threads;
mod words;
mod workload;
mod write;

pub use check::{Budgets, Checked, Violation, check};
pub use cost_model::{CostModel, Direction};
pub use decisions::{Rebuilding, TensorDecision, Treatment, decisions};
pub use floor::check_budget;
pub use fronts::Fronts;
pub use lower::{LayerPass, Lowered};
pub use machines::{Figure, MACHINES, NamedMachine};
pub use network_terms::{NetworkTensor, Pass, Role};
pub use options::{Algorithms, Options, Policy};
pub use order::Order;
pub use planner::{plain, plan, plan_until};
pub use prepared::{ASSUMED_RATES, Prepared};
pub use result::{Accounting, Attempt, Bounded, InParts, Kind, KindBytes, LayerPlan, MapPlan, MapTreatment, Plan};
pub use schedule::{
    ALIGNMENT, Action, Block, BlockId, Compute, Holding, HostBlock, HostBlockId, Instruction, InstructionId, Schedule,
    Stream, footprint,
};
pub use scope::{limits, part_sizes};
pub use simulate::{Level, Simulation, Span, Stall, simulate};
pub use step::{Access, Mode, Step, TensorId};
pub use stop::Stop;
pub use sweep::{Rivals, Swept, checkpoints, rivals, sweep, sweep_until};
pub use tightfit_network::ParameterKind;
pub use workload::{Parameter, Workload, channel_stride};
