//! The policy optimal against an exhaustive search on steps of up to 10 operations: over every order of reruns and
//! releases, sharing no code with the planner.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tightfit_plan::step::{Access, Again, Cost, Operation, Residence, Stage, Step};
use tightfit_plan::{Bounded, CostModel, Options, Policy, Stop, plan, sweep};
use tightfit_units::{Bytes, Error, Nanos};

use crate::small_step::{Extras, random, small};

/// The same step as a long one: operations that use nothing and take no time come before every other.
fn long(step: &Step, idle: usize) -> Step {
    let mut step = step.clone();
    let idle_before = |operation: &Operation| Operation {
        name: "idle".to_owned(),
        uses: Vec::new(),
        cost: Cost::Fixed(Nanos::ZERO),
        again: Again::Never,
        ..operation.clone()
    };
    let longer = |operation: Operation| {
        let mut all = vec![idle_before(&operation); idle];
        all.push(operation);
        all
    };
    step.operations = step.operations.into_iter().flat_map(longer).collect();
    step
}

/// The reads and writes of every operation as sets of maps, and the bytes of everything else at it and just before it.
struct Game {
    bytes: Vec<u64>,
    reads: Vec<u32>,
    writes: Vec<u32>,
    other: Vec<u64>,
    before: Vec<u64>,
    times: Vec<u64>,
    reruns: Vec<bool>,
    /// The first operation before which something may run again.
    again_from: usize,
}

impl Game {
    fn of(step: &Step) -> Game {
        let maps = step.tensors.iter().filter(|tensor| tensor.residence == Residence::Movable).count();
        let bytes: Vec<u64> = step.tensors.iter().map(|tensor| tensor.bytes.0).collect();
        let count = step.operations.len();
        let set = |at: usize, writes: bool| {
            let uses = step.operations[at].uses.iter();
            let own = uses.filter(|used| used.tensor.0 < maps && (used.access != Access::Read) == writes);
            own.fold(0_u32, |set, used| set | 1 << used.tensor.0)
        };
        let (mut other, mut before) = (vec![0; count], vec![0; count]);
        for (tensor, bytes) in bytes.iter().enumerate().skip(maps) {
            let uses = |at: &usize| step.operations[*at].uses.iter().any(|used| used.tensor.0 == tensor);
            let (first, last) = ((0..count).find(uses).unwrap(), (0..count).rfind(uses).unwrap());
            (first..=last).for_each(|at| other[at] += bytes);
            (first + 1..=last).for_each(|at| before[at] += bytes);
        }
        let time = |operation: &Operation| match operation.cost {
            Cost::Fixed(time) => time.0,
            _ => unreachable!(),
        };
        Game {
            bytes,
            reads: (0..count).map(|at| set(at, false)).collect(),
            writes: (0..count).map(|at| set(at, true)).collect(),
            other,
            before,
            times: step.operations.iter().map(time).collect(),
            reruns: step.operations.iter().map(|operation| operation.again == Again::Allowed).collect(),
            again_from: 0,
        }
    }

    /// The game without recomputation for operations of the forward pass.
    fn forward_once(step: &Step) -> Game {
        let forward = step.operations.iter().filter(|operation| operation.stage == Stage::Forward).count();
        Game { again_from: forward, ..Game::of(step) }
    }

    fn size(&self, set: u32) -> u64 {
        self.bytes.iter().enumerate().filter(|(map, _)| set >> map & 1 == 1).map(|(_, bytes)| bytes).sum()
    }

    /// The least time within a budget, by reruns and releases alone; with `hosted`, written maps come back for nothing.
    fn least_time(&self, budget: u64, hosted: bool) -> Option<u64> {
        let count = self.times.len();
        let mut best: HashMap<(usize, u32), u64> = HashMap::from([((0, 0), 0)]);
        let mut queue = BinaryHeap::from([Reverse((0_u64, 0_usize, 0_u32))]);
        while let Some(Reverse((time, at, there))) = queue.pop() {
            if at == count {
                return Some(time);
            }
            if best.get(&(at, there)).is_some_and(|best| *best < time) {
                continue;
            }
            let mut offer = |time: u64, at: usize, there: u32| {
                let known = best.entry((at, there)).or_insert(u64::MAX);
                if time < *known {
                    *known = time;
                    queue.push(Reverse((time, at, there)));
                }
            };
            for map in 0..self.bytes.len().min(31) {
                if there >> map & 1 == 1 {
                    offer(time, at, there & !(1 << map));
                }
                let was_written = self.writes[..at].iter().any(|writes| writes >> map & 1 == 1);
                let more = there | 1 << map;
                if hosted && was_written && self.size(more) + self.before[at] <= budget {
                    offer(time, at, more);
                }
            }
            let reruns = if at >= self.again_from { 0..at } else { 0..0 };
            for run in reruns.filter(|run| self.reruns[*run] && self.reads[*run] & !there == 0) {
                let after = there | self.writes[run];
                if self.size(after) + self.before[at] <= budget {
                    offer(time + self.times[run], at, after);
                }
            }
            let after = there | self.writes[at];
            if self.reads[at] & !there == 0 && self.size(after) + self.other[at] <= budget {
                offer(time + self.times[at], at + 1, after);
            }
        }
        None
    }

    /// The least budget of any plan.
    fn least_budget(&self, hosted: bool) -> u64 {
        let all: u64 = self.bytes.iter().sum();
        (1..=all / 256).map(|units| units * 256).find(|budget| self.least_time(*budget, hosted).is_some()).unwrap()
    }
}

/// A link on which any copy takes longer than every rerun together.
fn no_link() -> CostModel {
    let slow = 1e3;
    CostModel { offload_rate: slow, prefetch_rate: slow, both_rate: slow, launch: Nanos(0), ..CostModel::cpu() }
}

#[test]
fn the_bound_is_below_the_optimum_and_the_optimum_is_mostly_found() {
    let mut next = random(5);
    let (mut cases, mut found, mut missed) = (0, 0, 0);
    for _ in 0..60 {
        let forward = 3 + next(3) as usize;
        let step = small(forward, Extras::default(), &mut next);
        let game = Game::of(&step);
        let free = plan(&step, &no_link(), &Options { policy: Policy::Overlap, ..Options::default() }).unwrap();
        let (low, high) = (game.least_budget(false), free.most_live.0);
        for share in [0, 30, 60] {
            let budget = Bytes((low + (high - low) * share / 100) / 256 * 256);
            let options = Options { policy: Policy::Optimal, budget, ..Options::default() };
            let optimum = game.least_time(budget.0, false);
            match (plan(&step, &no_link(), &options), optimum) {
                (Ok(plan), Some(optimum)) => {
                    cases += 1;
                    let bound = plan.bound.unwrap().0;
                    assert!(bound <= optimum, "bound {bound} over {optimum}: {step:?} in {budget}");
                    assert!(plan.step_time.0 >= optimum, "{} below {optimum}: {step:?} in {budget}", plan.step_time);
                    found += usize::from(plan.step_time.0 == optimum);
                }
                // Only copies make it fit.
                (Ok(plan), None) => assert!(plan.offloaded > Bytes::ZERO, "{step:?} in {budget}"),
                (Err(Error::OverBudget { needed, .. }), optimum) => {
                    assert!(needed > budget);
                    missed += usize::from(optimum.is_some());
                }
                (Err(error), _) => panic!("{error}"),
            }
        }
    }
    println!("{found} of {cases} optimal, {missed} missed");
    assert!(cases > 60 && found * 10 >= cases * 9 && missed * 20 <= cases, "{found} of {cases}, {missed} missed");
}

#[test]
fn the_bound_of_plans_that_run_the_forward_pass_once_is_below_their_optimum() {
    let mut next = random(4);
    let (mut cases, mut dearer, mut exact) = (0, 0, 0);
    for _ in 0..60 {
        let forward = 4 + next(4) as usize;
        let small = small(forward, Extras::default(), &mut next);
        let step = long(&small, 25);
        let (any, once) = (Game::of(&small), Game::forward_once(&small));
        let free = plan(&step, &no_link(), &Options { policy: Policy::Overlap, ..Options::default() }).unwrap();
        let (low, high) = (any.least_budget(false), free.most_live.0);
        for share in [0, 20, 40] {
            let budget = Bytes((low + (high - low) * share / 100) / 256 * 256);
            let Some(optimum) = once.least_time(budget.0, false) else { continue };
            let Ok(plan) = plan(&step, &no_link(), &Options { budget, ..Options::default() }) else { continue };
            if plan.bounded == Bounded::Any || plan.recomputed == Nanos::ZERO {
                continue;
            }
            cases += 1;
            let bound = plan.bound.unwrap().0;
            let holds = |bound: u64| bound <= optimum;
            assert!(holds(bound), "bound {bound} over {optimum}: {small:?} in {budget}");
            dearer += usize::from(any.least_time(budget.0, false).is_some_and(|any| any < optimum));
            // Prices that converge leave it a few nanoseconds below.
            exact += usize::from(!holds(bound + 10));
        }
    }
    println!("{cases} cases, {dearer} faster with reruns going forward, {exact} bounds are optima");
    assert!(cases > 60 && dearer > 0, "{dearer} of {cases} cases tell the class from all plans");
    assert!(exact > 0, "no bound would be caught if it were 10 ns higher");
}

#[test]
fn the_least_budget_is_exact_on_small_steps() {
    let mut next = random(11);
    let (mut exact, mut cases) = (0, 0);
    for _ in 0..60 {
        let forward = 2 + next(4) as usize;
        let step = small(forward, Extras::default(), &mut next);
        let least = Game::of(&step).least_budget(true);
        let options = Options { policy: Policy::Optimal, ..Options::default() };
        let free = plan(&step, &CostModel::cpu(), &options).unwrap();
        assert!(free.proven.unwrap().0 <= least, "{} proven, {least} suffice: {step:?}", free.proven.unwrap());
        assert!(free.min_feasible.0 >= least, "{} below {least}: {step:?}", free.min_feasible);
        exact += usize::from(free.min_feasible.0 == least);
        cases += 1;
        let of = |budget| plan(&step, &CostModel::cpu(), &Options { budget, ..options });
        assert!(of(free.min_feasible).unwrap().peak <= free.min_feasible);
        match of(Bytes(free.min_feasible.0 - 1)) {
            Err(Error::OverBudget { needed, least, .. }) => {
                assert_eq!((needed, least), (free.min_feasible, free.least));
            }
            other => panic!("{other:?}"),
        }
    }
    println!("{exact} of {cases} exact");
    assert!(exact * 20 >= cases * 19, "{exact} of {cases}");
}

#[test]
fn a_larger_budget_of_a_sweep_is_never_slower() {
    let mut next = random(3);
    for _ in 0..10 {
        let step = small(5, Extras::default(), &mut next);
        let options = Options { policy: Policy::Optimal, ..Options::default() };
        let free = plan(&step, &CostModel::cpu(), &options).unwrap();
        let range = free.most_live.0 - free.min_feasible.0;
        let budgets: Vec<Bytes> = (0..=8).map(|part| Bytes(free.min_feasible.0 + range * part / 8)).collect();
        let plans = sweep(&step, &CostModel::cpu(), &options, &budgets, Stop::Never).unwrap();
        assert!(plans.len() <= budgets.len() && plans.iter().all(|(_, plan)| plan.is_ok()));
        let times: Vec<Nanos> =
            plans.iter().filter_map(|(_, plan)| plan.as_ref().ok()).map(|of| of.step_time).collect();
        assert!(times.is_sorted_by(|smaller, larger| smaller >= larger), "{times:?}");
        let fits = |(budget, plan): &(Bytes, Result<tightfit_plan::Plan, Error>)| {
            plan.as_ref().map_or(true, |plan| plan.peak <= *budget && plan.bound.unwrap() <= plan.step_time)
        };
        assert!(plans.iter().all(fits));
    }
}
