//! The policy optimal against an exhaustive search with copies over a slow link, on steps of 6 to 8 operations: over every
//! order of copies, reruns and releases, each beginning whenever another ends, sharing no code with the planner.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use tightfit_plan::step::{Access, Again, Cost, Residence, Step};
use tightfit_plan::{CostModel, Options, Policy, plan};
use tightfit_units::{Bytes, Error, Nanos};

use crate::small_step::{Extras, UNIT, random, small};

/// Nanoseconds that the link takes for [`UNIT`] bytes.
const COPY: u64 = 1024;

/// A link on which copies take about as long as the operations.
fn slow_link(beside_copies: f64) -> CostModel {
    let rate = UNIT as f64 / COPY as f64 * 1e9;
    let rates = CostModel { offload_rate: rate, prefetch_rate: rate, both_rate: rate, ..CostModel::cpu() };
    CostModel { beside_copies, launch: Nanos(0), ..rates }
}

/// Maps of a step that move, at most.
const MAPS: usize = 4;

/// Moments are counted in this many parts of a nanosecond, so that slower computations end at whole ones.
const PARTS: u64 = 1 << 12;

/// The position in a game. Contents count from 1 and rise with each change in place; 0 means empty.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Position {
    at: usize,
    device: [u8; MAPS],
    host: [u8; MAPS],
    /// Copied back and not used since.
    returned: [bool; MAPS],
    /// The operation that runs, its workspace, and the time it needs alone.
    running: Option<(usize, u64, u64)>,
    /// The map that leaves, and the time left.
    out: Option<(usize, u64)>,
    /// The map that comes back, and the time left.
    back: Option<(usize, u64)>,
}

/// The effect of one operation on maps: the contents that it reads and leaves.
#[derive(Default)]
struct Rule {
    reads: Vec<(usize, u8)>,
    /// The map, its content before if that is read, and after.
    writes: Vec<(usize, u8, u8)>,
    points: Vec<(u64, u64)>,
    reruns: bool,
}

struct Game {
    bytes: Vec<u64>,
    rules: Vec<Rule>,
    /// Bytes of all else at each operation and just before it.
    other: Vec<u64>,
    before: Vec<u64>,
    /// Whether a computation takes twice as long during a copy.
    slows: bool,
}

impl Game {
    fn of(step: &Step, slows: bool) -> Game {
        let maps = step.tensors.iter().filter(|tensor| tensor.residence == Residence::Movable).count();
        let count = step.operations.len();
        let mut content = vec![0_u8; maps];
        let mut rules = Vec::new();
        for operation in &step.operations {
            let mut rule = Rule { reruns: operation.again == Again::Allowed, ..Rule::default() };
            for used in operation.uses.iter().filter(|used| used.tensor.0 < maps) {
                let (map, was) = (used.tensor.0, content[used.tensor.0]);
                match used.access {
                    Access::Read => rule.reads.push((map, was)),
                    Access::Write => rule.writes.push((map, 0, 1)),
                    Access::Add => rule.writes.push((map, was, was + 1)),
                }
            }
            rule.writes.iter().for_each(|(map, _, after)| content[*map] = *after);
            rule.points = match &operation.cost {
                Cost::Fixed(time) => vec![(time.0, 0)],
                Cost::Listed(all) => all.iter().map(|one| (one.time().0, one.workspace().0)).collect(),
                Cost::Choice(_) => unreachable!(),
            };
            rules.push(rule);
        }
        let (mut other, mut before) = (vec![0; count], vec![0; count]);
        for (tensor, of) in step.tensors.iter().enumerate().skip(maps) {
            let uses = |at: &usize| step.operations[*at].uses.iter().any(|used| used.tensor.0 == tensor);
            let (mut first, mut last) = ((0..count).find(uses).unwrap(), (0..count).rfind(uses).unwrap());
            if of.residence == Residence::Resident {
                (first, last) = (0, count - 1);
                before[0] += of.bytes.0;
            }
            (first..=last).for_each(|at| other[at] += of.bytes.0);
            (first + 1..=last).for_each(|at| before[at] += of.bytes.0);
        }
        Game { bytes: step.tensors[..maps].iter().map(|of| of.bytes.0).collect(), rules, other, before, slows }
    }

    fn live(&self, of: &Position) -> u64 {
        let is_there = |map: &usize| of.device[*map] > 0 || of.back.is_some_and(|back| back.0 == *map);
        let maps: u64 = (0..self.bytes.len()).filter(is_there).map(|map| self.bytes[map]).sum();
        let all_else = match of.running {
            Some((run, scratch, _)) if run == of.at => self.other[run] + scratch,
            Some((_, scratch, _)) => self.before[of.at] + scratch,
            None => self.before.get(of.at).copied().unwrap_or(0),
        };
        maps + all_else
    }

    /// The least time within a budget of plans that keep what they copy back until its next use, in parts of a nanosecond.
    fn least_time(&self, budget: u64) -> Option<u64> {
        let mut best: HashMap<Position, u64> = HashMap::from([(Position::default(), 0)]);
        let mut queue = BinaryHeap::from([Reverse((0_u64, Position::default()))]);
        while let Some(Reverse((time, now))) = queue.pop() {
            if now.at == self.rules.len() {
                return Some(time);
            }
            if best[&now] < time {
                continue;
            }
            let mut offer = |time: u64, to: Position| {
                if self.live(&to) > budget {
                    return;
                }
                let known = best.entry(to).or_insert(u64::MAX);
                if time < *known {
                    *known = time;
                    queue.push(Reverse((time, to)));
                }
            };
            let is_busy = |map: usize| {
                let runs = now.running.is_some_and(|(run, ..)| {
                    let rule = &self.rules[run];
                    rule.reads.iter().any(|read| read.0 == map) || rule.writes.iter().any(|write| write.0 == map)
                });
                runs || now.out.is_some_and(|out| out.0 == map) || now.back.is_some_and(|back| back.0 == map)
            };
            let changes = |map: usize| {
                now.running.is_some_and(|(run, ..)| self.rules[run].writes.iter().any(|write| write.0 == map))
            };
            for map in 0..self.bytes.len() {
                let (device, host) = (now.device[map], now.host[map]);
                if device > 0 && !is_busy(map) && !now.returned[map] {
                    let mut to = now;
                    to.device[map] = 0;
                    offer(time, to);
                }
                let copy = self.bytes[map] / UNIT * COPY * PARTS;
                if device > 0 && now.out.is_none() && host != device && !changes(map) {
                    offer(time, Position { out: Some((map, copy)), ..now });
                }
                if device == 0 && now.back.is_none() && host > 0 && !is_busy(map) {
                    let mut to = Position { back: Some((map, copy)), ..now };
                    to.returned[map] = true;
                    offer(time, to);
                }
            }
            if now.running.is_none() {
                let reruns = (0..now.at).filter(|run| self.rules[*run].reruns);
                for run in reruns.chain([now.at]) {
                    let rule = &self.rules[run];
                    let reads = rule.reads.iter().all(|(map, content)| now.device[*map] == *content);
                    let writes = rule.writes.iter().all(|(map, content, _)| {
                        let is_free = run == now.at || !now.returned[*map];
                        !is_busy(*map) && is_free && (*content == 0 || now.device[*map] == *content)
                    });
                    for (alone, scratch) in rule.points.iter().filter(|_| reads && writes) {
                        let mut to = Position { running: Some((run, *scratch, alone * PARTS)), ..now };
                        rule.writes.iter().for_each(|(map, _, after)| to.device[*map] = *after);
                        if run == now.at {
                            let used = rule.reads.iter().map(|read| read.0);
                            used.chain(rule.writes.iter().map(|write| write.0))
                                .for_each(|map| to.returned[map] = false);
                        }
                        offer(time, to);
                    }
                }
            }
            // Advance to the next end of a copy or a computation.
            let copies = now.out.is_some() || now.back.is_some();
            let slower = if self.slows && copies { 2 } else { 1 };
            let ends = [now.running.map(|run| run.2 * slower), now.out.map(|out| out.1), now.back.map(|back| back.1)];
            let Some(passed) = ends.into_iter().flatten().min() else { continue };
            let mut to = now;
            to.running = now.running.map(|(run, scratch, left)| (run, scratch, left - passed / slower));
            to.out = now.out.map(|(map, left)| (map, left - passed));
            to.back = now.back.map(|(map, left)| (map, left - passed));
            if let Some((map, 0)) = to.out {
                (to.out, to.host[map]) = (None, now.device[map]);
            }
            if let Some((map, 0)) = to.back {
                (to.back, to.device[map]) = (None, now.host[map]);
            }
            if let Some((run, _, 0)) = to.running {
                to.running = None;
                to.at += usize::from(run == now.at);
            }
            offer(time + passed, to);
        }
        None
    }
}

#[test]
fn with_copies_the_bound_is_below_the_optimum_and_the_plan_above_it() {
    let mut next = random(41);
    let (mut cases, mut found, mut moved, mut near) = (0, 0, 0, 0);
    for case in 0..32 {
        let extras = Extras { choices: case % 2 == 1, in_place: case % 4 >= 2, resident: case % 8 >= 4 };
        let step = small(3 + usize::from(case % 3 == 0), extras, &mut next);
        let slows = next(2) == 0;
        let (game, costs) = (Game::of(&step, slows), slow_link(if slows { 1.0 } else { 0.0 }));
        let free = plan(&step, &costs, &Options { policy: Policy::Optimal, ..Options::default() }).unwrap();
        let (low, high) = (free.min_feasible.0, free.most_live.0);
        for share in [0, 40, 70] {
            let budget = Bytes((low + (high - low) * share / 100) / UNIT * UNIT);
            let options = Options { policy: Policy::Optimal, budget, ..Options::default() };
            let planned = match plan(&step, &costs, &options) {
                Ok(planned) => planned,
                Err(Error::OverBudget { needed, .. }) => {
                    assert!(needed > budget);
                    continue;
                }
                Err(error) => panic!("{error}"),
            };
            let of = || format!("{extras:?}, slows {slows}: {step:?} in {budget}");
            let optimum = game.least_time(budget.0).unwrap_or_else(|| panic!("no optimum: {}", of()));
            let optimum = optimum as f64 / PARTS as f64;
            let bound = planned.bound.unwrap_or_else(|| panic!("no bound: {}", of()));
            let (bound, time) = (bound.0 as f64, planned.step_time.0 as f64);
            assert!(bound <= optimum + 0.5, "bound {bound} over {optimum}, {}", of());
            // Times of a plan are whole nanoseconds.
            assert!(time + 0.5 >= optimum, "{time} below {optimum}, {}", of());
            cases += 1;
            found += usize::from(time <= optimum * 1.001);
            near += usize::from(bound * 1.05 >= optimum);
            moved += usize::from(planned.offloaded > Bytes::ZERO);
        }
    }
    println!("{found} of {cases} optimal, {moved} with copies, {near} bounds within 5 %");
    assert!(cases > 60 && moved * 4 > cases && found * 10 >= cases * 6, "{found} of {cases}, {moved} with copies");
    assert!(near > 0, "the bounds are far from the optima");
}
