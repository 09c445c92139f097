//! WD against exhaustive search, under every setting of the speed-ups and under tiny limits.

use std::time::Duration;

use proptest::prelude::*;
use tightfit_conv::optimize::check::{Violation, check_allotment};
use tightfit_conv::optimize::{SearchOptions, Speedups, Stop, allot, front, points};
use tightfit_conv::{Algorithm, Candidate, DivisionCost, Problem};
use tightfit_units::{Bytes, Error, Nanos};

type Front = Vec<(Bytes, Nanos)>;

fn some_front(sizes: std::ops::Range<usize>, most: u64) -> impl Strategy<Value = Front> {
    proptest::collection::vec((0..most, 1..most).prop_map(|(w, t)| (Bytes(w), Nanos(t))), sizes)
}

/// Kernels that repeat a few fronts, as networks do.
fn some_kernels(kernels: std::ops::Range<usize>, most: u64) -> impl Strategy<Value = Vec<Front>> {
    proptest::collection::vec(some_front(1..6, most), 1..4)
        .prop_flat_map(move |fronts| proptest::collection::vec(proptest::sample::select(fronts), kernels.clone()))
}

fn all_speedups() -> impl Iterator<Item = Speedups> {
    (0..64).map(|bits: u32| {
        let [group, exchange, fix, bound, dominance, beam] = std::array::from_fn(|bit| bits >> bit & 1 == 1);
        Speedups { group, exchange, fix, bound, dominance, beam }
    })
}

/// Unlimited, so that no test depends on the clock.
fn options(speedups: Speedups) -> SearchOptions {
    SearchOptions { states: 1 << 24, time: Duration::from_secs(3600), speedups }
}

/// The least time of any choice within the total, all tried.
fn exhaustive(fronts: &[Front], total: u64) -> Option<u64> {
    let Some((first, others)) = fronts.split_first() else { return Some(0) };
    let fitting = first.iter().filter(|(workspace, _)| workspace.0 <= total);
    fitting.filter_map(|(workspace, time)| Some(time.0 + exhaustive(others, total - workspace.0)?)).min()
}

proptest! {
    #[test]
    fn equals_exhaustive_search_under_every_setting(kernels in some_kernels(1..7, 30), total in 0_u64..120) {
        let best = exhaustive(&kernels, total);
        for speedups in all_speedups() {
            match allot(&kernels, Bytes(total), &options(speedups)) {
                Ok(found) => {
                    prop_assert_eq!(check_allotment(&kernels, Bytes(total), &found), [], "{:?}", speedups);
                    prop_assert_eq!((Some(found.time.0), found.stop), (best, Stop::Proven), "{:?}", speedups);
                }
                Err(Error::OverTotal { needed, .. }) => {
                    let least: u64 = kernels.iter().map(|f| f.iter().map(|p| p.0.0).min().unwrap()).sum();
                    prop_assert_eq!((needed.0, best), (least, None));
                }
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            }
        }
    }

    #[test]
    fn settings_agree_where_search_is_needed(kernels in some_kernels(20..40, 100_000), share in 5_u64..80) {
        let largest: u64 = kernels.iter().map(|f| f.iter().map(|p| p.0.0).max().unwrap()).sum();
        let least: u64 = kernels.iter().map(|f| f.iter().map(|p| p.0.0).min().unwrap()).sum();
        let total = Bytes(least + (largest - least) * share / 100);
        let best = allot(&kernels, total, &options(Speedups::default())).unwrap();
        prop_assert_eq!(best.stop, Stop::Proven);
        // Without bounds and dominance the sums would not end.
        for speedups in all_speedups().filter(|s| s.bound && s.dominance) {
            let found = allot(&kernels, total, &options(speedups)).unwrap();
            prop_assert_eq!(check_allotment(&kernels, total, &found), []);
            prop_assert_eq!(found.time, best.time, "{:?}", speedups);
        }
    }

    /// All points save nearly the same time per byte, so no bound separates them early and the beams leave sums out.
    #[test]
    fn narrow_searches_claim_no_more_than_they_know(
        noise in proptest::collection::vec((1_u64..100_000, 0_u64..200), 56), percent in 20_u64..70,
    ) {
        let point = |&(w, noise): &(u64, u64)| (Bytes(w), Nanos(1_000_000 - 5 * w + noise));
        let kernels: Vec<Front> =
            noise.chunks(4).map(|c| c.iter().map(point).chain([(Bytes(0), Nanos(1_000_000))]).collect()).collect();
        let total = Bytes(1_000 * 14 * percent);
        let full = allot(&kernels, total, &options(Speedups { beam: false, ..Speedups::default() })).unwrap();
        let beams = allot(&kernels, total, &options(Speedups::default())).unwrap();
        prop_assert_eq!((beams.time, beams.stop), (full.time, Stop::Proven));
    }

    #[test]
    fn limits_keep_a_valid_answer_and_a_true_bound(kernels in some_kernels(1..7, 30), slack in 0_u64..60, states in 0_usize..40, bits in 0_usize..64) {
        let least: u64 = kernels.iter().map(|f| f.iter().map(|p| p.0.0).min().unwrap()).sum();
        let total = least + slack;
        let best = exhaustive(&kernels, total).unwrap();
        let speedups = all_speedups().nth(bits).unwrap();
        for time in [Duration::ZERO, Duration::from_secs(3600)] {
            let found = allot(&kernels, Bytes(total), &SearchOptions { states, time, speedups }).unwrap();
            prop_assert_eq!(check_allotment(&kernels, Bytes(total), &found), []);
            prop_assert!(found.bound.0 <= best && best <= found.time.0, "{found:?}, best {best}");
            prop_assert!(found.stop != Stop::Proven || found.time.0 == best);
        }
    }

    /// The papers' proof that fronts lose nothing: allotting over them is as fast as over all configurations.
    #[test]
    fn fronts_lose_nothing(sets in proptest::collection::vec(proptest::collection::vec((1_usize..=4, 1_u64..12, 0_u64..8), 1..5), 1..4), total in 0_u64..24) {
        let problem: Problem = "forward n4 c3 h8 w8 k4 r3 s3 pad1 f32".parse().unwrap();
        let (mut pruned, mut every) = (Vec::new(), Vec::new());
        for set in sets {
            let make = |&(micro_batch, time, workspace): &(usize, u64, u64)| Candidate {
                algorithm: Algorithm::new("a"), micro_batch, time: Nanos(time), workspace: Bytes(workspace),
            };
            let candidates: Vec<_> = set.iter().map(make).collect();
            every.push(sums(&candidates, 4));
            pruned.push(front(&problem, &candidates, Bytes::UNLIMITED, DivisionCost::default()).map_or(Vec::new(), |f| points(&f)));
        }
        let found = allot(&pruned, Bytes(total), &options(Speedups::default())).ok();
        prop_assert_eq!(found.map(|found| found.time.0), exhaustive(&every, total));
    }
}

/// The (workspace, time) of every sequence of candidates that adds up to `left`.
fn sums(candidates: &[Candidate], left: usize) -> Front {
    if left == 0 {
        return vec![(Bytes(0), Nanos(0))];
    }
    let fitting = candidates.iter().filter(|c| c.micro_batch <= left);
    fitting
        .flat_map(|c| sums(candidates, left - c.micro_batch).into_iter().map(|(w, t)| (w.max(c.workspace), t + c.time)))
        .collect()
}

#[test]
fn extremes_are_answered() {
    let default = SearchOptions::default();
    let none = allot(&[], Bytes(0), &default).unwrap();
    assert_eq!((none.time, none.gap()), (Nanos(0), 0.0));
    assert!(matches!(allot(&[vec![]], Bytes(9), &default), Err(Error::OverTotal { needed: Bytes::UNLIMITED, .. })));
    assert!(matches!(allot(&[vec![]], Bytes::UNLIMITED, &default), Err(Error::OverTotal { .. })));
    let huge =
        vec![(Bytes(0), Nanos(u64::MAX)), (Bytes(u64::MAX / 2), Nanos(u64::MAX / 2)), (Bytes::UNLIMITED, Nanos(0))];
    for total in [Bytes(0), Bytes(u64::MAX / 2), Bytes::UNLIMITED] {
        let kernels = vec![huge.clone(); 5];
        let found = allot(&kernels, total, &default).unwrap();
        assert!(found.workspace <= total);
    }
}

#[test]
fn the_checker_sees_each_fault() {
    let kernels =
        vec![vec![(Bytes(0), Nanos(9)), (Bytes(5), Nanos(4))], vec![(Bytes(1), Nanos(20)), (Bytes(4), Nanos(10))]];
    let good = allot(&kernels, Bytes(6), &SearchOptions::default()).unwrap();
    assert_eq!((good.choice.as_slice(), good.time, good.workspace), ([0, 1].as_slice(), Nanos(19), Bytes(4)));
    let check = |edit: &dyn Fn(&mut tightfit_conv::optimize::Allotment)| {
        let mut broken = good.clone();
        edit(&mut broken);
        check_allotment(&kernels, Bytes(6), &broken)
    };
    assert_eq!(check(&|_| ()), []);
    assert_eq!(check(&|a| a.choice.truncate(1)), [Violation::Count { found: 1, expected: 2 }]);
    assert_eq!(check(&|a| a.choice[1] = 2), [Violation::NoSuchPoint { kernel: 1, point: 2 }]);
    assert_eq!(check(&|a| a.time = Nanos(18))[0], Violation::Time { stated: Nanos(18), actual: Nanos(19) });
    assert_eq!(check(&|a| a.workspace = Bytes(3)), [Violation::Workspace { stated: Bytes(3), actual: Bytes(4) }]);
    assert_eq!(check(&|a| a.bound = Nanos(18)), [Violation::Bound { bound: Nanos(18), time: Nanos(19) }]);
    assert_eq!(check(&|a| (a.bound, a.stop) = (Nanos(18), Stop::TimeLimit)), []);
    assert!(check(&|a| a.choice[0] = 1).contains(&Violation::OverLimit { used: Bytes(9), limit: Bytes(6) }));
    assert!(check(&|a| a.choice[1] = 0).contains(&Violation::Improvable { kernel: 1, point: 1 }));
}
