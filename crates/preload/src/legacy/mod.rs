//! The legacy interface: numbered algorithms and descriptors that can be read back. The framework keeps its own
//! algorithm number; what runs for it, and what workspace it reports, is decided as for a plan.
//!
//! ```text
//! Get.._v7, Find..      each result's workspace and time become those of what will run
//! Get..WorkspaceSize    the workspace of what will run
//! cudnnConvolution..    runs it
//! ```
//!
//! A call that the program sized by one of these answers but that runs undivided, above all the fused call (`fused`),
//! borrows the rest of its workspace (`loan`).

mod decide;
mod descriptors;
mod exports;
mod fused;
mod loan;
mod results;
