//! The smallest arena of each policy that only moves maps.

use crate::memory::arena::Draft;
use crate::{Algorithms, Policy};

/// The draft of each script with memory-optimal algorithms: the smallest arena that it allows.
pub(crate) struct Smallest {
    pub(crate) none: Draft,
    pub(crate) conv: Draft,
    pub(crate) all: Draft,
    /// All maps offloaded, each fetched on demand.
    pub(crate) on_demand: Draft,
    pub(crate) overlap: Draft,
    pub(crate) baseline: Draft,
}

impl Smallest {
    /// The draft of one of these policies with the smallest arena.
    pub(crate) fn of_policy(&self, policy: Policy) -> &Draft {
        match policy {
            Policy::Baseline => &self.baseline,
            Policy::VdnnAll => &self.all,
            Policy::VdnnConv => &self.conv,
            Policy::VdnnDynamic => least(&[&self.all, &self.conv, &self.none, &self.on_demand]),
            Policy::Overlap => least(&[&self.overlap, &self.none]),
            Policy::Optimal => least(&[&self.overlap, &self.none, &self.all, &self.conv, &self.on_demand]),
        }
    }
}

/// The draft with the smallest arena.
fn least<'d>(drafts: &[&'d Draft]) -> &'d Draft {
    drafts.iter().min_by_key(|draft| draft.peak).copied().unwrap_or(drafts[0])
}

/// The paper's suffix for algorithms.
pub(crate) fn suffix(algorithms: Algorithms) -> &'static str {
    match algorithms {
        Algorithms::Memory => "(m)",
        Algorithms::Performance => "(p)",
        Algorithms::Fit => "(fit)",
    }
}
