//! Decides the number of repeats of a timing, and summarizes them.
//!
//! ```text
//! warm-up | 1 | 2 | 3 | ..      at least `least`, then until (q3 - q1) / median is small, or `most`, or time is up
//!     |     |
//!     |     over three times the best so far: this one is enough
//!     all far over the bound: these are enough
//! ```

use tightfit_units::{Error, Nanos};

use super::Effort;

/// The median of repeated times, and their spread.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Median time; of an even number of repeats, the mean of the middle two.
    pub median: Nanos,
    /// (third quartile - first quartile) / median; 0 of fewer than two repeats.
    pub spread: f64,
    /// Repeats that counted.
    pub repeats: u32,
}

/// A candidate is given up if every call exceeds the bound by this factor. On a machine with other programs, a few calls in a row may easily take a
/// third longer than usual.
const MARGIN: f64 = 1.5;

/// Calls `run`, which returns the time of one run, as often as `effort` requires.
///
/// At least one run counts, with any `effort`.
///
/// # Errors
/// The first error of `run`.
pub fn sample(effort: &Effort, mut run: impl FnMut() -> Result<Nanos, Error>) -> Result<Sample, Error> {
    let mut least: Option<Nanos> = None;
    for _ in 0..effort.warm_up {
        let time = run()?;
        least = Some(least.map_or(time, |least| least.min(time)));
    }
    let mut times = vec![run()?];
    let mut spent = times[0];
    let least = least.map_or(times[0], |least| least.min(times[0]));
    let hopeless = effort.best.is_some_and(|best| times[0] > best * 3) || effort.is_lost(least, MARGIN);
    let most = if hopeless { 1 } else { effort.most.max(1) as usize };
    while times.len() < most && spent < effort.cap {
        if times.len() >= effort.least.max(2) as usize && summarize(&mut times).spread <= effort.spread {
            break;
        }
        let time = run()?;
        spent = spent + time;
        times.push(time);
    }
    Ok(summarize(&mut times))
}

/// Median and spread of times, which it sorts. Quartiles are interpolated between neighbors.
fn summarize(times: &mut [Nanos]) -> Sample {
    times.sort_unstable();
    let at = |quarter: f64| {
        let place = quarter / 4.0 * (times.len() - 1) as f64;
        let (low, high) = (times[place.floor() as usize].0 as f64, times[place.ceil() as usize].0 as f64);
        low + (high - low) * place.fract()
    };
    let median = at(2.0);
    let spread = if median > 0.0 { (at(3.0) - at(1.0)) / median } else { 0.0 };
    Sample { median: Nanos(median.round() as u64), spread, repeats: u32::try_from(times.len()).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Feeds recorded times; also returns the number of requested ones.
    fn feed(effort: &Effort, times: &[u64]) -> (Sample, usize) {
        let mut asked = 0;
        let sample = sample(effort, || {
            asked += 1;
            Ok(Nanos(times[(asked - 1).min(times.len() - 1)]))
        });
        (sample.unwrap(), asked)
    }

    const EFFORT: Effort =
        Effort { warm_up: 1, least: 3, most: 9, spread: 0.05, cap: Nanos(1_000_000), best: None, bound: None };

    #[test]
    fn steady_times_stop_at_the_minimum() {
        let (sample, asked) = feed(&EFFORT, &[999, 100, 100, 101]);
        assert_eq!((sample.median, sample.repeats, asked), (Nanos(100), 3, 4));
    }

    #[test]
    fn unsteady_times_repeat_up_to_the_maximum() {
        let (sample, _) = feed(&EFFORT, &[0, 100, 200, 300, 400, 500, 600, 700, 800, 900]);
        assert_eq!((sample.median, sample.repeats), (Nanos(500), 9));
        assert!((sample.spread - 0.8).abs() < 1e-12, "{}", sample.spread);
    }

    #[test]
    fn the_time_cap_stops_repeating() {
        let (sample, _) = feed(&Effort { cap: Nanos(250), ..EFFORT }, &[0, 100, 200, 300]);
        assert_eq!((sample.median, sample.repeats), (Nanos(150), 2));
    }

    #[test]
    fn three_times_the_best_is_run_once() {
        let effort = Effort { best: Some(Nanos(100)), ..EFFORT };
        assert_eq!(feed(&effort, &[0, 301]).0.repeats, 1);
        assert_eq!(feed(&effort, &[0, 300]).0.repeats, 3);
    }

    #[test]
    fn a_candidate_far_over_the_bound_costs_two_calls() {
        let effort = Effort { bound: Some(Nanos(100_000)), cap: Nanos(1_000_000_000), ..EFFORT };
        let (sample, asked) = feed(&effort, &[900_000, 201_000, 200_000]);
        assert_eq!((sample.median, sample.repeats, asked), (Nanos(201_000), 1, 2));
        assert_eq!(feed(&effort, &[900_000, 200_000]).0.repeats, 3, "a third of it may be gaps and noise");
        assert!(feed(&effort, &[150_000, 900_000, 150_000]).0.repeats > 1, "one slow call says nothing");
    }

    #[test]
    fn errors_stop_repeating() {
        assert!(matches!(sample(&EFFORT, || Err(Error::Interrupted)), Err(Error::Interrupted)));
    }
}
