//! Plain loops compiled for the vectors that this processor has: the build itself assumes the oldest of its family.
//!
//! [`vectorized`] keeps one copy of the loops inside it for each instruction set and picks one as it runs. Functions
//! called in there take part only where they are inlined, so those with loops say `#[inline(always)]`.

/// Runs `work` with the widest vectors there are; worth it from about a microsecond of work on.
#[inline(always)]
pub fn vectorized<R>(work: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(work)
}
