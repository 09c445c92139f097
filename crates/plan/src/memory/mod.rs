//! Memory models: where the blocks of a step lie.

pub(crate) mod arena;
