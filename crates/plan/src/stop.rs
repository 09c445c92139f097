//! Early ends of planning: a flag that the caller sets, or a deadline.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tightfit_units::Error;

/// A flag that ends planning soon after it is set, and the result in that case.
#[derive(Clone, Copy, Debug, Default)]
pub enum Stop<'a> {
    /// Nothing ends planning early.
    #[default]
    Never,
    /// The best plan so far is returned.
    WithBest(&'a AtomicBool),
    /// [`Error::Interrupted`] is returned.
    WithNothing(&'a AtomicBool),
}

impl Stop<'_> {
    fn is_set(self) -> bool {
        match self {
            Stop::Never => false,
            Stop::WithBest(flag) | Stop::WithNothing(flag) => flag.load(Ordering::Relaxed),
        }
    }
}

/// The deadline of a search, regardless of the work left. Each loop of a search checks it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct End<'a> {
    stop: Stop<'a>,
    at: Option<Instant>,
}

impl<'a> End<'a> {
    pub(crate) fn new(stop: Stop<'a>, at: Option<Instant>) -> End<'a> {
        End { stop, at }
    }

    pub(crate) fn is_over(self) -> bool {
        self.stop.is_set() || self.at.is_some_and(|at| Instant::now() >= at)
    }

    /// Whether the flag is set.
    pub(crate) fn is_stopped(self) -> bool {
        self.stop.is_set()
    }

    /// Whether a deadline is set.
    pub(crate) fn is_timed(self) -> bool {
        self.at.is_some()
    }

    /// Removes the deadline.
    pub(crate) fn untimed(self) -> End<'a> {
        End { at: None, ..self }
    }

    /// The end of the next of `parts` equal parts of the time that is left.
    pub(crate) fn part(self, parts: usize) -> End<'a> {
        let now = Instant::now();
        let parts = u32::try_from(parts.max(1)).unwrap_or(u32::MAX);
        End { at: self.at.map(|at| now + at.saturating_duration_since(now) / parts), ..self }
    }

    /// Whether at least `time` is left.
    pub(crate) fn leaves(self, time: Duration) -> bool {
        self.at.is_none_or(|at| at.saturating_duration_since(Instant::now()) >= time)
    }

    /// # Errors
    /// [`Error::Interrupted`] if the flag is set and no caller waits for a plan.
    pub(crate) fn proceed(self) -> Result<(), Error> {
        match self.stop {
            Stop::WithNothing(_) if self.is_stopped() => Err(Error::Interrupted),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_leaves_time_for_the_next() {
        let until = Instant::now() + Duration::from_secs(3600);
        for parts in [4, 2] {
            let end = End::new(Stop::Never, Some(until)).part(parts).at.unwrap();
            assert!(Instant::now() < end && end < until - Duration::from_secs(900), "{parts}");
        }
        let now = Instant::now();
        assert!(End::new(Stop::Never, Some(now)).part(2).at.unwrap() >= now, "no time is left");
        assert_eq!(End::default().part(4).at, None, "work alone ends the search");
    }

    #[test]
    fn a_flag_ends_every_part_and_refuses_without_a_waiting_caller() {
        let flag = AtomicBool::new(false);
        let (patient, hasty) = (End::new(Stop::WithBest(&flag), None), End::new(Stop::WithNothing(&flag), None));
        let part = patient.part(3);
        assert!(!part.is_over() && hasty.proceed().is_ok());
        flag.store(true, Ordering::Relaxed);
        assert!(part.is_over() && part.untimed().is_over() && patient.proceed().is_ok());
        assert!(matches!(hasty.proceed(), Err(Error::Interrupted)));
    }
}
