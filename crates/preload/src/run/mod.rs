//! Carries decisions out: runs our configuration in the program's workspace, or in its part of the total.

mod device;
mod fused;
mod number;
mod plan;

pub use device::place;
pub use fused::{Resources, run_fused};
pub use number::{CallResult, NumberedCall, run_in_loan, run_number};
pub use plan::{decision_of, run_plan};
