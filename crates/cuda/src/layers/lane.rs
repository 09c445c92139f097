//! The streams of a session.

/// One of a session's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Prepared work.
    Compute,
    /// Copies to the host.
    Offload,
    /// Copies from the host.
    Prefetch,
    /// Prepared work at the same time as the compute stream's, by the number that [`Session::add_lane`](super::Session::add_lane) gave.
    Beside(usize),
}

impl Lane {
    /// Whether it copies, instead of computing.
    pub(super) fn is_copying(self) -> bool {
        matches!(self, Lane::Offload | Lane::Prefetch)
    }
}
