//! Plans: training or inference of a network in a fixed number of bytes.
//!
//! ```text
//! workload (network, mini-batch, types) -> policy -> schedule -> place (offsets) -> check -> simulate -> plan
//!                                                                              `-> carried out by `tightfit-train`
//! ```
//!
//! Every policy only writes a [`Schedule`]; one checker accepts or refuses it, one simulator gives its time and peak, one
//! engine carries it out on any backend.

mod costs;
mod kernels;
mod options;
mod planned;
mod schedule;
mod simulate;
mod workload;

pub use costs::Costs;
pub use kernels::Kernels;
pub use options::{Algorithms, Options, Policy};
pub use planned::{Accounting, Decision, Fate, Kind, KindBytes, LayerPlan, MapPlan, Plan};
pub use schedule::{
    Access, Action, Block, BlockId, Compute, HostBlock, HostBlockId, Operand, Pass, Role, Schedule, Step, StepId,
    Stream, Tensor,
};
pub use simulate::{Level, Simulation, Span, Stall};
pub use workload::{ALIGNMENT, Parameter, ParameterKind, Workload, channel_stride};
