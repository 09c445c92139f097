//! Decides about the program's plans and algorithm numbers.
//!
//! The decision is made before any workspace is reported, so that every query and the execution agree:
//!
//! ```text
//! ENGINECFG_WORKSPACE_SIZE  --\
//! EXECUTION_PLAN finalized  ---+--> consider --> answer --> a kernel: the reported workspace, and the choice that runs
//! an algorithm's number     --/             \--> left: the program's own
//! ```

mod answer;
mod descriptors;
mod number;
mod plan;
mod settle;

pub use answer::{device, set_up};
pub use descriptors::{Descriptor, Descriptors};
pub use number::{Action, Request};
pub use plan::{decide_configuration, decide_plan, graph_of};
pub use settle::settle;
