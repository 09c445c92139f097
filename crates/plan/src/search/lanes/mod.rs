//! Branches side by side: moves the branches between a fork and a join to separate streams, if that is faster and fits.
//!
//! ```text
//! one lane     fork | 1x1 | 3x3 . . . . . | 5x5 . . | pool | join        what the planner found
//! compute      fork | 3x3 . . . . . . . |            join
//! lane 2            | 5x5 . . . . . . . |                   waits for the fork; the join waits for it
//! lane 3            | 1x1 . | pool . . .|
//! ```
//!
//! The plan with one lane comes first. Then each section of its schedule (the branches of one fork, going forward or backward) is rewritten, placed
//! and simulated. The plan is unchanged if nothing is gained. Lanes that run at the same time conflict, so placement gives the blocks of each lane
//! separate bytes until the join.
//!
//! `branches` finds forks and joins, `section` assigns branches to streams, and `rewrite` moves the instructions.

mod branches;
mod rewrite;
mod section;

use tightfit_place::Effort;
use tightfit_units::Nanos;

use crate::attempts::PolicyResult;
use crate::memory::arena::{Draft, Drafter};
use crate::{Policy, simulate};
use branches::Branches;
use rewrite::rewritten;
use section::{Section, sections};

/// A plan with lanes must be faster by over this much.
const MIN_GAIN_PERCENT: u64 = 1;

/// Moves branches of a plan to lanes, if the options allow it and it is faster.
pub(crate) fn side_by_side(drafter: &Drafter<'_>, outcome: &mut PolicyResult) {
    let options = &drafter.options;
    if !options.lanes || options.policy != Policy::Optimal || drafter.costs.side_by_side <= 1.0 {
        return;
    }
    let Some(draft) = fastest(drafter, &outcome.draft) else { return };
    outcome.draft = drafter.tightened(draft, Effort::Plan, drafter.end);
    outcome.attempts.iter_mut().for_each(|attempt| attempt.taken = false);
    let mut attempt = outcome.draft.attempt("lanes", options);
    attempt.taken = true;
    outcome.attempts.push(attempt);
}

/// The draft with as many sections side by side as fit and are faster; `None` if it is hardly faster.
fn fastest(drafter: &Drafter<'_>, draft: &Draft) -> Option<Draft> {
    let time = |draft: &Draft| simulate(drafter.step, &draft.schedule, drafter.costs).time;
    let mut sections = sections(drafter, &draft.schedule, &Branches::of(drafter.step));
    let alone = time(draft);
    let attempt = |sections: &[&Section], effort: Effort| {
        let tried = drafter.place(rewritten(drafter.step, &draft.schedule, sections), effort, drafter.end);
        tried.fits(&drafter.options).then(|| (time(&tried), tried))
    };
    let mut best: Option<(Nanos, Draft)> = None;
    let all: Vec<&Section> = sections.iter().collect();
    if !all.is_empty() {
        best = attempt(&all, Effort::Plan).filter(|(time, _)| *time < alone);
    }
    if best.is_none() {
        // Sections with the largest savings come first.
        sections.sort_by_key(|section| std::cmp::Reverse(section.saves));
        let mut taken: Vec<&Section> = Vec::new();
        for section in sections.iter().take_while(|_| !drafter.end.is_over()) {
            taken.push(section);
            let tried = attempt(&taken, Effort::Draft);
            match tried.filter(|(time, _)| *time < best.as_ref().map_or(alone, |(best, _)| *best)) {
                Some(faster) => best = Some(faster),
                None => _ = taken.pop(),
            }
        }
    }
    best.filter(|(time, _)| time.0 + alone.0 * MIN_GAIN_PERCENT / 100 < alone.0).map(|(_, draft)| draft)
}
