//! An evaluation that rewinds no further than necessary equals one from the beginning.

use tightfit_conv::Types;
use tightfit_network::Network;

use super::*;
use crate::memory::arena::Drafter;
use crate::search::model::Model;
use crate::{CostModel, Fronts, Mode, Options, Stop, Workload};

/// Pseudo-random numbers below a bound, with a fixed seed.
fn random() -> impl FnMut(usize) -> usize {
    let mut state = 9_u64;
    move |below| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) as usize % below
    }
}

/// Changes a few decisions.
fn change(decisions: &mut Decisions, model: &Model<'_>, next: &mut impl FnMut(usize) -> usize) {
    for _ in 0..1 + next(3) {
        let interval = next(model.intervals.len());
        let of = &model.intervals[interval];
        decisions.intervals[interval] = match next(4) {
            0 if !of.is_tail => Choice::Move,
            1 if of.is_tail || !of.producers.is_empty() => Choice::Rebuild,
            2 if of.is_tail || !of.producers.is_empty() => Choice::Again,
            _ => Choice::Keep,
        };
        let at = next(model.points.len());
        decisions.points[at] = next(model.points[at].len());
    }
}

/// Calls `test` with evaluations of small steps and of one with branches, on a fast and on a slow link.
fn with_models(mut test: impl FnMut(&Model<'_>, u64)) {
    for (name, rate) in [("alexnet", 1.0), ("resnet18", 1.0), ("resnet18", 0.05), ("densenet121", 1.0)] {
        let network = Network::open(name).unwrap();
        let h200 = CostModel::h200();
        let costs = CostModel {
            offload_rate: h200.offload_rate * rate,
            prefetch_rate: h200.prefetch_rate * rate,
            both_rate: h200.both_rate * rate,
            ..h200
        };
        let workload = Workload::new(&network, 16, Types::F32, Mode::Training).unwrap();
        let step = workload.step(&Fronts::assumed(&workload, &costs).unwrap(), &costs).unwrap();
        let drafter = Drafter::new(&step, &costs, Options::default(), Stop::Never).unwrap();
        let live = drafter.live().into_iter().max().unwrap();
        test(&Model::of(&drafter), live / 2);
    }
}

#[test]
fn an_incremental_evaluation_equals_a_fresh_one() {
    let mut next = random();
    let (mut feasible, mut all) = (0, 0);
    with_models(|model, limit| {
        let mut evaluator = Evaluator::new(model, limit);
        let mut decisions = everything(model);
        for _ in 0..150 {
            let before = decisions.clone();
            change(&mut decisions, model, &mut next);
            let mut fresh = Evaluator::new(model, limit);
            let (one, other) = (evaluator.evaluate(&decisions), fresh.evaluate(&decisions));
            assert_eq!(one, other);
            assert_eq!(evaluator.live, fresh.live);
            all += 1;
            match one {
                Some(_) => {
                    feasible += 1;
                    assert_eq!(evaluator.script(), fresh.script());
                }
                None => decisions = before,
            }
        }
    });
    assert!(feasible * 2 > all, "{feasible} of {all}");
}

#[test]
fn an_evaluation_ends_early_only_where_the_outcome_is_not_wanted() {
    let mut next = random();
    let (mut wanted, mut early) = (0, 0);
    with_models(|model, limit| {
        let mut evaluator = Evaluator::new(model, limit);
        let mut decisions = everything(model);
        let mut now = evaluator.evaluate(&decisions).unwrap();
        for _ in 0..150 {
            let mut changed = decisions.clone();
            change(&mut changed, model, &mut next);
            let Some(fresh) = Evaluator::new(model, limit).evaluate(&changed) else { continue };
            match evaluator.evaluate_within(&changed, Cutoff::before(&now)) {
                Some(outcome) => assert_eq!(outcome, fresh),
                None => {
                    early += 1;
                    assert!(fresh.rank() > now.rank(), "{fresh:?} is better than {now:?}");
                }
            }
            if fresh.rank() < now.rank() {
                wanted += 1;
                (decisions, now) = (changed, fresh);
            }
        }
    });
    assert!(wanted > 20 && early > 20, "{wanted} wanted, {early} ended early");
}
