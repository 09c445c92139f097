//! The legacy interface: algorithms by number, descriptors that can be read back. The framework's number stays its own word
//! for the convolution; what it costs, and what runs under it, is decided as for a plan.
//!
//! ```text
//! Get.._v7, Find..      each result's workspace and time become those of what will run
//! Get..WorkspaceSize    the workspace of what will run
//! cudnnConvolution..    runs it
//! ```
//!
//! What a program sized by one of these answers and runs undivided all the same is lent the rest (`loan`); above all the
//! fused call (`fused`).

mod decide;
mod descriptors;
mod exports;
mod fused;
mod loan;
mod results;
