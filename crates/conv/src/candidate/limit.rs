//! Limits on the workspace of a network's kernels.

use tightfit_units::Bytes;

/// A limit on the workspace of a network's kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// A limit for each kernel alone (WR).
    PerKernel(Bytes),
    /// One total, divided among the kernels (WD).
    Total(Bytes),
    /// One workspace that all kernels share, one after another.
    One(Bytes),
}

impl Limit {
    /// The limit itself: the most that any one kernel may use.
    pub fn bytes(self) -> Bytes {
        let (Limit::PerKernel(bytes) | Limit::Total(bytes) | Limit::One(bytes)) = self;
        bytes
    }

    /// The limit in bytes; `None` for unlimited.
    pub fn finite(self) -> Option<Bytes> {
        Some(self.bytes()).filter(|bytes| *bytes != Bytes::UNLIMITED)
    }

    /// The total workspace of kernels that need `workspaces`: their sum if each kernel holds its own, the largest if
    /// all share one.
    pub fn combine(self, workspaces: impl Iterator<Item = Bytes>) -> Bytes {
        match self {
            Limit::PerKernel(_) | Limit::Total(_) => workspaces.sum(),
            Limit::One(_) => workspaces.max().unwrap_or_default(),
        }
    }

    /// The limits for which `fit` looks for sizes: the limit itself, or M, M/2, M/4, .. for a total M, because each kernel's share is not known yet.
    pub fn ladder(self) -> Vec<Bytes> {
        match self {
            Limit::PerKernel(bytes) | Limit::One(bytes) => vec![bytes],
            // A kernel worth dividing always gets more than a thousandth of the total.
            Limit::Total(bytes) => (0..=10).map(|halvings| Bytes(bytes.0 >> halvings)).collect(),
        }
    }
}
