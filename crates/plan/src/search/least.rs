//! Searches for the smallest budget, at any time of a step.
//!
//! No plan needs less than the operation with the most bytes at once. If the decisions reach this bound, the smallest budget is exact. A small number
//! of decisions is searched exhaustively.

use tightfit_place::Effort;

use crate::memory::arena::{Draft, Drafter};
use crate::search::decisions::{Choice, Decisions};
use crate::search::decisions::{checkpoints, everything};
use crate::search::local::{Search, Work};
use crate::search::model::Model;
use crate::stop::End;

/// A draft with the smallest arena found.
pub(crate) struct Least {
    pub(crate) draft: Draft,
    pub(super) decisions: Decisions,
}

/// The largest number of combinations that is searched exhaustively.
const MAX_EXHAUSTIVE: u64 = 20_000;

/// Visits of operations that the search may take.
const MAX_VISITS: u64 = 1_500_000;

/// Steps of the binary search between the proven and the found minimum.
const MAX_BISECTIONS: usize = 6;

/// Placing the smallest budget takes at most a quarter of the planning time.
const PLACING_TIME_DIVISOR: usize = 4;

/// The number of decisions kept from the first round.
const MAX_KEPT: usize = 3;

pub(crate) fn least(drafter: &Drafter<'_>) -> Option<Least> {
    let model = Model::of(drafter);
    let (floor, _) = model.floor();
    let mut found: Vec<(u64, Decisions)> = Vec::new();
    // A plan that fits is worth the time, so the search has no deadline.
    let end = drafter.end.untimed();
    let mut work = Work { visits: MAX_VISITS, end };
    let mut search = Search::new(&model, floor, 0);
    for start in starts(&model) {
        let mut decisions = start;
        let mut own = Work { visits: MAX_VISITS / 24, end };
        if search.repair(&mut decisions, &mut own).is_some() {
            found = vec![(floor, decisions)];
            break;
        }
        found.extend(search.evaluate(&decisions, &mut work).map(|outcome| (outcome.peak, decisions)));
    }
    found.extend(all(&model, &mut search, floor, end));
    found.sort_by_key(|found| found.0);
    found.truncate(MAX_KEPT);
    let (mut low, mut high) = (floor, found.first()?.0);
    for _ in 0..MAX_BISECTIONS {
        if high <= low || work.is_spent() {
            break;
        }
        let middle = low + (high - low) / 2;
        let mut search = Search::new(&model, middle, 0);
        let mut better = None;
        for (_, decisions) in &found {
            let mut decisions = decisions.clone();
            let mut own = Work { visits: MAX_VISITS / 24, end };
            if let Some(outcome) = search.repair(&mut decisions, &mut own) {
                better = Some((outcome.peak, decisions));
                break;
            }
        }
        match better {
            Some(better) => {
                high = better.0;
                found.insert(0, better);
            }
            None => low = middle,
        }
    }
    let (peak, decisions) = found.into_iter().next()?;
    let mut search = Search::new(&model, peak, 0);
    search.evaluate(&decisions, &mut work)?;
    let script = search.evaluator().script();
    let draft = drafter.draft_with(&script, &decisions.points, Effort::Draft, drafter.end);
    let draft = drafter.tightened(draft, Effort::Bound, drafter.end.part(PLACING_TIME_DIVISOR));
    Some(Least { draft, decisions })
}

/// Decisions that keep little.
fn starts(model: &Model<'_>) -> Vec<Decisions> {
    let mut kept = everything(model);
    kept.points.fill(0);
    let without = |choice: Choice| {
        let mut decisions = kept.clone();
        for (interval, decision) in
            model.intervals.iter().zip(&mut decisions.intervals).filter(|(interval, _)| !interval.is_tail)
        {
            let may_rerun = !interval.producers.is_empty();
            *decision = if choice == Choice::Move || may_rerun { choice } else { Choice::Move };
        }
        decisions
    };
    let mut starts = vec![without(Choice::Move), without(Choice::Rebuild), without(Choice::Again)];
    for segments in [2, 4, 8, 16] {
        let mut decisions = checkpoints(model, segments);
        decisions.points.fill(0);
        for (interval, decision) in model.intervals.iter().zip(&mut decisions.intervals) {
            if *decision == Choice::Keep && !interval.is_tail {
                *decision = Choice::Move;
            }
        }
        starts.push(decisions);
    }
    starts.push(kept);
    starts
}

/// The best of all combinations of decisions, if their number is small.
fn all(model: &Model<'_>, search: &mut Search<'_, '_>, floor: u64, end: End<'_>) -> Option<(u64, Decisions)> {
    let open: Vec<(usize, Vec<Choice>)> = (0..model.intervals.len())
        .filter(|interval| !model.intervals[*interval].is_tail)
        .map(|interval| {
            let choices = [Choice::Keep, Choice::Move, Choice::Rebuild, Choice::Again];
            (interval, choices.into_iter().filter(|choice| search.is_open(interval, *choice)).collect())
        })
        .collect();
    let count = open.iter().try_fold(1_u64, |count, (_, choices)| count.checked_mul(choices.len() as u64));
    let count = count.filter(|count| *count <= MAX_EXHAUSTIVE)?;
    let mut best: Option<(u64, Decisions)> = None;
    let mut work = Work { visits: u64::MAX, end };
    let mut decisions = everything(model);
    decisions.points.fill(0);
    for mut world in 0..count {
        for (interval, choices) in &open {
            decisions.intervals[*interval] = choices[(world % choices.len() as u64) as usize];
            world /= choices.len() as u64;
        }
        if work.is_spent() {
            break;
        }
        let Some(outcome) = search.evaluate(&decisions, &mut work) else { continue };
        if best.as_ref().is_none_or(|best| outcome.peak < best.0) {
            best = Some((outcome.peak, decisions.clone()));
            if outcome.peak <= floor {
                break;
            }
        }
    }
    best
}
