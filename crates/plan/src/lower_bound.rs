//! A lower bound on the time of a class of plans.

use tightfit_units::Nanos;

use crate::{Bounded, InParts};

/// A lower bound on the time of a step under a budget, with the plans that it covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LowerBound {
    pub(crate) time: Nanos,
    pub(crate) bounded: Bounded,
    /// The stretch that these plans compute in parts; `None` for whole mini-batches.
    pub(crate) in_parts: Option<InParts>,
}

impl LowerBound {
    /// A bound for plans with whole mini-batches.
    pub(crate) fn whole(time: Nanos, bounded: Bounded) -> LowerBound {
        LowerBound { time, bounded, in_parts: None }
    }

    /// Whether it holds for a plan with these parts and this time. A faster plan is not of the covered class.
    pub(crate) fn covers(&self, in_parts: Option<&InParts>, time: Nanos) -> bool {
        self.in_parts.as_ref() == in_parts && self.time <= time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_covers_plans_of_its_own_parts_that_are_no_faster() {
        let parts = |parts| InParts { first: "conv1".to_owned(), last: "conv2".to_owned(), parts };
        let (two, four) = (parts(2), parts(4));
        let bound = LowerBound { in_parts: Some(two.clone()), ..LowerBound::whole(Nanos(100), Bounded::Any) };
        assert!(bound.covers(Some(&two), Nanos(100)) && bound.covers(Some(&two), Nanos(101)));
        assert!(!bound.covers(Some(&two), Nanos(99)), "a faster one");
        assert!(!bound.covers(Some(&four), Nanos(100)) && !bound.covers(None, Nanos(100)), "other parts");
        assert!(LowerBound::whole(Nanos(100), Bounded::Any).covers(None, Nanos(100)));
    }
}
