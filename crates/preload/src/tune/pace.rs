//! The delay that measuring may cause: none before the second step, a quarter of a second per step, and the budget in all.
//!
//! ```text
//! steps, as far as known    |  40 executions  |  40 executions  | 12 |  40 executions  |
//! held up                    250 ms            250 ms                 250 ms             at least 40 executions apart
//! ```
//!
//! The program does not mark the beginning of a step. Each step is held up at most once, because a whole step passes between two delays. Several
//! ranks wait for each other in every step. With several ranks, up to a quarter less than a step passes between two delays. So all ranks drift back
//! to the assumed beginning of a step, and are held up at the same time.
//!
//! A program is taken to be in its first step until it has met no new convolution during twice as many executions as it has
//! convolutions.

use std::collections::VecDeque;
use std::time::Duration;

use tightfit_profile::survey::TuneBudget;

use crate::ranks;

/// The most that measuring may hold up one step, host and device together.
pub(super) const MAX_DELAY_PER_STEP: Duration = Duration::from_millis(250);
/// Time that does not count in a step.
pub(super) const IGNORED_DELAY: Duration = Duration::from_millis(10);
/// With several ranks, the share of a step that must pass between two delays.
const APART_IN_RANKS: f64 = 0.75;
/// The share of the budget for finding candidates; the rest is for comparing them with the running choice.
const SEARCH_SHARE: f64 = 0.7;

/// Keeps the pace.
pub(super) struct Pace {
    /// Whether this is one of several ranks.
    is_rank: bool,
    /// Convolutions met.
    met: u64,
    /// Executions in all, and since the last new convolution.
    executions: u64,
    since_new: u64,
    /// The time by which this step was held up.
    in_step: Duration,
    /// The times by which the last executions were held up, each with its number.
    lately: VecDeque<(u64, Duration)>,
    spent: Duration,
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new(ranks::are_in_job())
    }
}

impl Pace {
    /// The pace of a process, which may be one of several ranks.
    fn new(is_rank: bool) -> Pace {
        Pace {
            is_rank,
            met: 0,
            executions: 0,
            since_new: 0,
            in_step: Duration::ZERO,
            lately: VecDeque::new(),
            spent: Duration::ZERO,
        }
    }

    /// Notes the execution of a convolution, which may be new. A step of this number of executions may end with it.
    pub fn on_execution(&mut self, is_new: bool, step: u64, is_end_of_step: bool) {
        self.executions += 1;
        self.since_new += 1;
        if is_new {
            self.met += 1;
            self.since_new = 0;
        }
        if is_end_of_step {
            self.in_step = Duration::ZERO;
        }
        let apart = if self.is_rank { (APART_IN_RANKS * step as f64) as u64 } else { step };
        while self.lately.front().is_some_and(|(at, _)| at + apart <= self.executions) {
            self.lately.pop_front();
        }
    }

    /// The time by which the step was held up.
    fn held_up(&self) -> Duration {
        self.in_step.max(self.lately.iter().map(|(_, time)| *time).sum())
    }

    /// Executions so far.
    pub fn executions(&self) -> u64 {
        self.executions
    }

    /// Adds the time by which an execution was held up.
    fn hold_up(&mut self, at: u64, time: Duration) {
        self.in_step += time;
        let place = self.lately.partition_point(|(known, _)| *known < at);
        match self.lately.get_mut(place) {
            Some((known, so_far)) if *known == at => *so_far += time,
            _ => self.lately.insert(place, (at, time)),
        }
    }

    /// Whether the program is past its first step.
    pub fn is_steady(&self) -> bool {
        self.since_new >= 2 * self.met
    }

    /// Records time spent.
    pub fn spend(&mut self, time: Duration) {
        self.hold_up(self.executions, time);
        self.spent += time;
    }

    /// Corrects the time by which host work at an execution has held up the device.
    pub fn correct(&mut self, at: u64, host: Duration, device: Duration) {
        self.hold_up(at, device.saturating_sub(host));
        self.spent = (self.spent + device).saturating_sub(host);
    }

    /// The time spent in all.
    pub fn spent(&self) -> Duration {
        self.spent
    }

    /// Whether this step and the budget allow more if pending work takes this time.
    pub fn has_room(&self, coming: Duration, budget: TuneBudget) -> bool {
        self.held_up() + coming < MAX_DELAY_PER_STEP && self.is_within(coming, budget)
    }

    /// Whether half of the time of this step is left if pending work takes this time.
    pub fn is_half_left(&self, coming: Duration) -> bool {
        self.held_up() + coming < MAX_DELAY_PER_STEP / 2
    }

    /// Whether the budget is more than the time spent if pending work takes this time.
    pub fn is_within(&self, coming: Duration, budget: TuneBudget) -> bool {
        budget.limit().is_none_or(|limit| self.spent + coming < limit)
    }

    /// The rest of this step's time if pending work takes this time. `None` if hardly anything has held the step up; one measurement may then take
    /// any time.
    pub fn left(&self, coming: Duration) -> Option<Duration> {
        let so_far = self.held_up() + coming;
        (so_far > IGNORED_DELAY).then(|| MAX_DELAY_PER_STEP.saturating_sub(so_far))
    }

    /// Whether the time for finding candidates is over.
    pub fn is_late(&self, budget: TuneBudget) -> bool {
        budget.limit().is_some_and(|limit| self.spent >= limit.mul_f64(SEARCH_SHARE))
    }

    /// Whether the budget is spent.
    pub fn is_over(&self, budget: TuneBudget) -> bool {
        budget.limit().is_some_and(|limit| self.spent >= limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_over_when_nothing_new_is_met() {
        let mut pace = Pace::default();
        let mut calls = 0;
        for step in 0..3 {
            for kernel in 0..10 {
                pace.on_execution(step == 0, 10, kernel == 9);
                calls += 1;
                assert_eq!(pace.is_steady(), calls > 29, "step {step}, kernel {kernel}");
            }
        }
        pace.on_execution(true, 10, false);
        assert!(!pace.is_steady(), "a new convolution is a new first step");
    }

    #[test]
    fn a_step_and_the_budget_limit_spending() {
        let mut pace = Pace::default();
        (0..4).for_each(|place| pace.on_execution(true, 4, place == 3));
        let budget = "1s".parse().unwrap();
        let has_room = |pace: &Pace, coming| pace.has_room(coming, budget);
        let a_step = |pace: &mut Pace| (0..4).for_each(|place| pace.on_execution(false, 4, place == 3));
        assert!(has_room(&pace, Duration::ZERO) && !has_room(&pace, MAX_DELAY_PER_STEP));
        assert!(pace.is_half_left(MAX_DELAY_PER_STEP / 3) && !pace.is_half_left(MAX_DELAY_PER_STEP / 2));
        assert_eq!(pace.left(Duration::ZERO), None);
        assert_eq!(pace.left(MAX_DELAY_PER_STEP / 5), Some(MAX_DELAY_PER_STEP * 4 / 5));
        pace.spend(MAX_DELAY_PER_STEP);
        assert_eq!(pace.left(MAX_DELAY_PER_STEP), Some(Duration::ZERO));
        assert!(!has_room(&pace, Duration::ZERO) && !pace.is_late(budget));
        a_step(&mut pace);
        assert!(has_room(&pace, Duration::ZERO), "the next step");
        pace.spend(Duration::from_millis(200));
        pace.spend(Duration::from_millis(300));
        a_step(&mut pace);
        assert!(
            has_room(&pace, MAX_DELAY_PER_STEP * 4 / 5) && !has_room(&pace, MAX_DELAY_PER_STEP),
            "more than the budget is on its way"
        );
        assert!(pace.is_late(budget) && !pace.is_over(budget));
        pace.spend(Duration::from_millis(300));
        assert!(pace.is_over(budget) && !pace.is_over("unlimited".parse().unwrap()));
        assert_eq!(pace.spent(), Duration::from_millis(1050));
        // The host worked for 300 ms; during 280 ms of them, the device was busy with the program's work.
        pace.correct(pace.executions(), Duration::from_millis(300), Duration::from_millis(20));
        assert_eq!(pace.spent(), Duration::from_millis(770));
        a_step(&mut pace);
        pace.correct(pace.executions(), Duration::from_millis(10), Duration::from_millis(260));
        assert!(!has_room(&pace, Duration::ZERO), "the device was held up in this step");
    }

    #[test]
    fn a_step_that_begins_elsewhere_is_not_held_up_again_at_once() {
        let budget = "unlimited".parse().unwrap();
        for (shift, is_rank) in (0..10).flat_map(|shift| [(shift, false), (shift, true)]) {
            let mut pace = Pace::new(is_rank);
            let mut held_up = Vec::new();
            for execution in 0..100 {
                let begins = if execution < 50 { 0 } else { shift };
                pace.on_execution(false, 10, execution % 10 == begins);
                if pace.has_room(Duration::ZERO, budget) {
                    held_up.push(execution);
                    pace.spend(MAX_DELAY_PER_STEP);
                }
            }
            let apart = if is_rank { 7 } else { 10 };
            assert!(held_up.len() >= 9, "{held_up:?}");
            assert!(held_up.windows(2).all(|two| two[1] - two[0] >= apart), "{held_up:?}");
            if is_rank {
                // At the beginning of a step again.
                assert_eq!(held_up.last().map(|last| last % 10), Some(shift), "{held_up:?}");
            }
        }
    }
}
