//! Policies that only move feature maps: the vDNN paper's, its baseline, and offloading without waits.
//!
//! - `scripts`: what the paper's static policies and its baseline move.
//! - `dynamic`: the paper's dynamic policy.
//! - `smallest`: the smallest arena of each.
//! - `overlap`: as few copies as the budget requires, with one stream for each direction.
//!
//! **Source**: Rhu et al. 2016.

pub(crate) mod dynamic;
pub(crate) mod overlap;
pub(crate) mod scripts;
pub(crate) mod smallest;
