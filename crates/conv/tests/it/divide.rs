//! WR and fronts against exhaustive search, against the papers' recurrence over sets, and their laws.

use std::collections::BTreeSet;

use proptest::prelude::*;
use tightfit_conv::optimize::check::{Violation, check_configuration, check_front};
use tightfit_conv::optimize::{divide, front, undivided};
use tightfit_conv::{Algorithm, Candidate, Configuration, DivisionCost, Problem};
use tightfit_units::{Bytes, Error, Nanos};

fn problem(batch: usize) -> Problem {
    format!("forward n{batch} c3 h8 w8 k4 r3 s3 pad1 f32").parse().unwrap()
}

fn candidate(name: &str, micro_batch: usize, time: u64, workspace: u64) -> Candidate {
    Candidate { algorithm: Algorithm::new(name), micro_batch, time: Nanos(time), workspace: Bytes(workspace) }
}

/// Small numbers, so that ties are common.
fn some_candidates() -> impl Strategy<Value = Vec<Candidate>> {
    let one =
        ("[abc]", 1_usize..=7, 1_u64..12, 0_u64..8).prop_map(|(name, size, time, ws)| candidate(&name, size, time, ws));
    proptest::collection::vec(one, 0..9)
}

fn some_cost() -> impl Strategy<Value = DivisionCost> {
    (0_u64..4, 0_u64..4).prop_map(|(time, workspace)| DivisionCost { time: Nanos(time), workspace: Bytes(workspace) })
}

/// Every configuration of the mini-batch, each multiset of candidates once.
fn all(candidates: &[Candidate], batch: usize, cost: DivisionCost) -> Vec<Configuration> {
    fn extend(
        candidates: &[Candidate],
        left: usize,
        parts: &mut Vec<Candidate>,
        cost: DivisionCost,
        found: &mut Vec<Configuration>,
    ) {
        if left == 0 {
            found.push(Configuration::new(parts.clone(), cost));
        } else if let Some((first, others)) = candidates.split_first() {
            if first.micro_batch <= left {
                parts.push(first.clone());
                extend(candidates, left - first.micro_batch, parts, cost, found);
                parts.pop();
            }
            extend(others, left, parts, cost, found);
        }
    }
    let mut found = Vec::new();
    extend(candidates, batch, &mut Vec::new(), cost, &mut found);
    found
}

/// The quantities that WR minimizes, in order.
fn value(configuration: &Configuration) -> (Nanos, usize, Bytes) {
    (configuration.time(), configuration.parts().len(), configuration.workspace())
}

type Points = BTreeSet<(Bytes, Nanos)>;

/// The points that no other beats.
fn undominated(points: &Points) -> Points {
    let beaten = |p: &(Bytes, Nanos)| points.iter().any(|q| q != p && q.0 <= p.0 && q.1 <= p.1);
    points.iter().filter(|p| !beaten(p)).copied().collect()
}

/// The papers' recurrence: the set of a batch is the pruned union, over the first micro-batch, of its points joined with the set of the remaining
/// samples.
fn recurrence(candidates: &[Candidate], batch: usize) -> Points {
    let mut sets: Vec<Points> = vec![Points::from([(Bytes(0), Nanos(0))])];
    for samples in 1..=batch {
        let mut union = Points::new();
        for c in candidates.iter().filter(|c| c.micro_batch <= samples) {
            let rest = &sets[samples - c.micro_batch];
            union.extend(rest.iter().map(|&(workspace, time)| (workspace.max(c.workspace), time + c.time)));
        }
        sets.push(undominated(&union));
    }
    sets.swap_remove(batch)
}

proptest! {
    #[test]
    fn divide_equals_exhaustive_search(candidates in some_candidates(), batch in 1_usize..=7, limit in 0_u64..12, cost in some_cost()) {
        let (problem, limit) = (problem(batch), Bytes(limit));
        let every = all(&candidates, batch, cost);
        let best = every.iter().filter(|c| c.workspace() <= limit).min_by_key(|c| value(c));
        match divide(&problem, &candidates, limit, cost) {
            Ok(found) => {
                prop_assert_eq!(check_configuration(&problem, &candidates, limit, cost, &found), []);
                prop_assert_eq!(Some(value(&found)), best.map(value));
            }
            Err(Error::OverLimit { needed, .. }) => {
                prop_assert_eq!(best, None);
                prop_assert_eq!(Some(needed), every.iter().map(Configuration::workspace).min());
            }
            Err(Error::NotProfiled { .. }) => prop_assert!(every.is_empty()),
            Err(other) => return Err(TestCaseError::fail(other.to_string())),
        }
    }

    #[test]
    fn front_equals_exhaustive_search(candidates in some_candidates(), batch in 1_usize..=7, limit in 0_u64..12, cost in some_cost()) {
        let (problem, limit) = (problem(batch), Bytes(limit));
        let fitting: Vec<_> = all(&candidates, batch, cost).into_iter().filter(|c| c.workspace() <= limit).collect();
        let expected = undominated(&fitting.iter().map(|c| (c.workspace(), c.time())).collect());
        let found = front(&problem, &candidates, limit, cost).unwrap_or_default();
        prop_assert_eq!(check_front(&problem, &candidates, limit, cost, &found), []);
        let points: Points = found.iter().map(|c| (c.workspace(), c.time())).collect();
        prop_assert_eq!(points, expected);
        for point in &found {
            let equal = fitting.iter().filter(|c| (c.workspace(), c.time()) == (point.workspace(), point.time()));
            prop_assert_eq!(Some(point.parts().len()), equal.map(|c| c.parts().len()).min());
        }
    }

    #[test]
    fn front_equals_the_recurrence_over_sets(candidates in some_candidates(), batch in 1_usize..=24) {
        let found = front(&problem(batch), &candidates, Bytes::UNLIMITED, DivisionCost::default()).unwrap_or_default();
        let points: Points = found.iter().map(|c| (c.workspace(), c.time())).collect();
        prop_assert_eq!(points, recurrence(&candidates, batch));
    }

    #[test]
    fn order_changes_nothing(candidates in some_candidates().prop_shuffle(), batch in 1_usize..=24, limit in 0_u64..12, cost in some_cost()) {
        let problem = problem(batch);
        let mut sorted = candidates.clone();
        sorted.sort();
        let text = |result: Result<Vec<Configuration>, Error>| format!("{result:?}");
        let one = |candidates: &[Candidate]| divide(&problem, candidates, Bytes(limit), cost).map(|found| vec![found]);
        prop_assert_eq!(text(one(&candidates)), text(one(&sorted)));
        let fronts = |candidates: &[Candidate]| front(&problem, candidates, Bytes(limit), cost);
        prop_assert_eq!(text(fronts(&candidates)), text(fronts(&sorted)));
    }

    #[test]
    fn more_limit_and_more_candidates_are_never_slower(candidates in some_candidates(), more in some_candidates(), batch in 1_usize..=24, cost in some_cost()) {
        let problem = problem(batch);
        let time = |candidates: &[Candidate], limit| divide(&problem, candidates, Bytes(limit), cost).map_or(Nanos(u64::MAX), |c| c.time());
        let superset = [candidates.clone(), more].concat();
        for limit in 0..12 {
            prop_assert!(time(&candidates, limit + 1) <= time(&candidates, limit));
            prop_assert!(time(&superset, limit) <= time(&candidates, limit));
        }
    }
}

#[test]
fn ties_take_fewest_micro_batches_and_dividing_must_pay() {
    let candidates = [candidate("a", 4, 8, 3), candidate("a", 2, 4, 1), candidate("a", 1, 2, 1)];
    let found = divide(&problem(4), &candidates, Bytes(9), DivisionCost::default()).unwrap();
    assert_eq!(found.to_string(), "4 a");
    let found = divide(&problem(4), &candidates, Bytes(2), DivisionCost::default()).unwrap();
    assert_eq!(found.to_string(), "2 x 2 a");
    let cost = DivisionCost { time: Nanos(1), workspace: Bytes(1) };
    assert!(matches!(divide(&problem(4), &candidates, Bytes(1), cost), Err(Error::OverLimit { needed: Bytes(2), .. })));
    assert_eq!(undivided(&problem(4), &candidates, Bytes(2)), None);
}

#[test]
fn the_checker_sees_each_fault() {
    let free = DivisionCost::default();
    let candidates = [candidate("a", 4, 8, 3), candidate("a", 2, 5, 1), candidate("b", 4, 12, 1)];
    let (p, whole, half) = (problem(4), candidates[0].clone(), candidates[1].clone());
    let check = |parts: &[Candidate], limit, cost| {
        check_configuration(&p, &candidates, Bytes(limit), free, &Configuration::new(parts.to_vec(), cost))
    };
    assert_eq!(check(std::slice::from_ref(&whole), 3, free), []);
    assert_eq!(check(&[candidate("a", 4, 7, 3)], 3, free), [Violation::NotACandidate { part: 0 }]);
    assert_eq!(check(std::slice::from_ref(&half), 3, free), [Violation::Samples { found: 2, expected: 4 }]);
    assert_eq!(
        check(std::slice::from_ref(&whole), 2, free),
        [Violation::OverLimit { used: Bytes(3), limit: Bytes(2) }]
    );
    let cost = DivisionCost { time: Nanos(1), workspace: Bytes(2) };
    assert_eq!(
        check(&[half.clone(), half.clone()], 3, cost),
        [
            Violation::Cost { found: cost, expected: free },
            Violation::Workspace { stated: Bytes(3), actual: Bytes(1) },
            Violation::Time { stated: Nanos(11), actual: Nanos(10) },
        ]
    );

    let good = front(&p, &candidates, Bytes(9), free).unwrap();
    let check = |front: &[Configuration]| check_front(&p, &candidates, Bytes(9), free, front);
    assert_eq!(good.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2 x 2 a", "4 a"]);
    assert_eq!(check(&good), []);
    assert_eq!(check(&[good[1].clone(), good[0].clone()]), [Violation::Order { point: 0 }]);
    assert_eq!(check(&[good[0].clone(), good[0].clone(), good[1].clone()]), [Violation::Dominated { point: 1, by: 0 }]);
    assert_eq!(check(&good[..1]), [Violation::Missed { candidate: 0 }]);
    let beaten = Configuration::new(vec![candidates[2].clone()], free);
    assert_eq!(check(&[good[0].clone(), beaten, good[1].clone()]), [Violation::Dominated { point: 1, by: 0 }]);
}
