//! Memory models: where the blocks of a step lie.
//!
//! - `arena`: the trainer's; all blocks of a schedule are known and get fixed offsets before the first step.
//! - `caching`: PyTorch's allocator, which places each block when a program asks for it.
//!
//! They have no trait in common: an arena places all blocks together, a caching allocator one after another, without a view of the next.

pub(crate) mod arena;
pub(crate) mod caching;
