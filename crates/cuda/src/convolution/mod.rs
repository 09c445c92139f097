//! From a problem to a call: lists cuDNN's algorithms for it by name, and prepares each to run.
//!
//! ```text
//! problem --+-- legacy    numbers 0..7 of cudnnConvolution*        legacy:fft-tiling
//!           +-- engines   graph -> heuristics -> configurations    engine28:k2=4,k3=0
//!                              name -> engine + knobs -> workspace -> plan
//! ```
//!
//! A name holds all it takes to build the same call at any batch size, so nothing but names goes into the cache on disk.

mod elementwise;
mod engines;
mod faults;
mod geometry;
mod graph;
mod legacy;
mod name;
mod packing;
mod prepared;

pub(crate) use elementwise::Elementwise;
pub(crate) use engines::{Proposal, Search, proposal, proposals};
pub(crate) use faults::{fault, listed};
pub(crate) use geometry::{Geometry, MOST_ALIGNMENT, alignments, data_type};
pub(crate) use graph::{Graph, Output};
pub(crate) use legacy::{legacy_names, legacy_notes, prepare as prepare_legacy};
pub(crate) use name::{Engine, Family, Name};
pub(crate) use prepared::{Fixed, Launch, Memory, PreparedAlgorithm, tensor_bytes};
