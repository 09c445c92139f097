//! The least penalty of clauses of two literals, bounded from below by a minimum cut.
//!
//! ```text
//! clause  (not a) or b, penalty w         arcs  a -> b  and  not b -> not a, each of capacity w
//! literal a costs w if it is true         arcs  a -> sink  and  source -> not a
//! ```
//!
//! Every assignment is a cut of twice its penalty: the literals that hold are on the side of the source. So half of the minimum cut is a lower bound
//! on the penalty. All numbers are integers, so the bound is exact.
//!
//! **Source**: roof duality, Hammer, Hansen and Simeone 1984; as a cut, Boros and Hammer 2002; [`Flow`] for the cut.

use crate::flow::Flow;

/// A variable or its opposite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Literal(u32);

impl Literal {
    pub(super) fn of(variable: usize) -> Literal {
        Literal(2 * variable as u32)
    }
}

impl std::ops::Not for Literal {
    type Output = Literal;

    fn not(self) -> Literal {
        Literal(self.0 ^ 1)
    }
}

/// The capacity of hard constraints; larger than any useful sum of penalties.
pub(super) const HARD: i128 = 1 << 110;

/// Clauses and costs, with the flow that bounds them.
#[derive(Debug)]
pub(super) struct Clauses {
    flow: Flow,
    source: u32,
    sink: u32,
}

impl Clauses {
    pub(super) fn new(variables: usize) -> Clauses {
        let nodes = 2 * variables + 2;
        let (source, sink) = (nodes as u32 - 2, nodes as u32 - 1);
        Clauses { flow: Flow::new(nodes, source, sink), source, sink }
    }

    /// Adds a penalty for violating both of two literals.
    pub(super) fn either(&mut self, one: Literal, other: Literal, penalty: i128) {
        self.flow.arc((!one).0, other.0, penalty);
        self.flow.arc((!other).0, one.0, penalty);
    }

    /// Adds a penalty if the first literal holds and the second does not.
    pub(super) fn implies(&mut self, one: Literal, other: Literal, penalty: i128) {
        self.either(!one, other, penalty);
    }

    /// Adds a cost of any sign for a literal that holds. Returns the constant to add to the sum of all penalties: a negative cost counts as its
    /// opposite for the opposite literal.
    pub(super) fn cost(&mut self, literal: Literal, cost: i128) -> i128 {
        if cost < 0 {
            return cost + self.cost(!literal, -cost);
        }
        self.flow.arc(literal.0, self.sink, cost);
        self.flow.arc(self.source, (!literal).0, cost);
        0
    }

    /// Twice a lower bound on the penalty of every assignment.
    pub(super) fn least_twice(&mut self) -> i128 {
        self.flow.fill()
    }

    /// After [`Clauses::least_twice`]: whether a literal holds or not; `None` if both are optimal.
    pub(super) fn value(&self, literal: Literal) -> Option<bool> {
        match (self.flow.is_near(literal.0), self.flow.is_near((!literal).0)) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random numbers below a bound, with a fixed seed.
    fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 7_u64;
        move |below| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        }
    }

    #[test]
    fn half_the_cut_is_never_above_the_least_penalty_and_often_equal() {
        let mut next = random();
        let mut equal = 0;
        for _ in 0..300 {
            let literal = |next: &mut dyn FnMut(u64) -> u64| {
                let of = Literal::of(next(6) as usize);
                if next(2) == 0 { of } else { !of }
            };
            let (mut pairs, mut costs) = (Vec::new(), Vec::new());
            for _ in 0..next(9) {
                pairs.push((literal(&mut next), literal(&mut next), i128::from(next(20))));
            }
            for _ in 0..6 {
                costs.push((literal(&mut next), i128::from(next(20)) - 5));
            }
            let mut clauses = Clauses::new(6);
            let mut offset = 0;
            pairs.iter().for_each(|(one, other, penalty)| clauses.either(*one, *other, *penalty));
            costs.iter().for_each(|(literal, cost)| offset += clauses.cost(*literal, *cost));
            let bound = clauses.least_twice() + 2 * offset;
            let holds = |literal: Literal, world: u32| (world >> (literal.0 / 2) & 1 == 1) != (literal.0 % 2 == 1);
            let penalty = |world: u32| -> i128 {
                let broken = pairs.iter().filter(|(one, other, _)| !holds(*one, world) && !holds(*other, world));
                let paid = costs.iter().filter(|(literal, _)| holds(*literal, world));
                broken.map(|of| of.2).sum::<i128>() + paid.map(|of| of.1).sum::<i128>()
            };
            let least = (0..1 << 6).map(penalty).min().unwrap();
            assert!(bound <= 2 * least, "{bound} over twice {least}: {pairs:?} {costs:?}");
            equal += usize::from(bound == 2 * least);
        }
        assert!(equal > 200, "{equal} of 300 are exact");
    }
}
