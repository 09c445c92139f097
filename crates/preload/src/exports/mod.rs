//! The functions of cuDNN that do more than forward. They differ from cuDNN's only in their choices and reports, which the
//! layers below decide.
//!
//! ```text
//! backend interface     backend     descriptors shadowed; plans decided about when they are finalized, run when executed
//! legacy interface      numbered    numbered algorithms, descriptors that can be read back
//!                       lists       Get.._v7, Find..: each result has the workspace and time of the choice that will run
//!                       fused       bias and activation in the same call
//! ```
//!
//! `limits` has additional functions, for programs that know this library.
//!
//! In the legacy interface the framework keeps its own algorithm number. The algorithm that runs for it and the reported
//! workspace are decided as for a plan. A call may be sized by one of these answers and still run undivided, above all the
//! fused call. It borrows the rest of its workspace.

mod backend;
mod fused;
mod limits;
mod lists;
mod numbered;
