//! Whether a configuration is faster than the running choice by more than the noise, when the two alternate.

use tightfit_conv::{Candidate, Configuration, DivisionCost};
use tightfit_cuda::CourseResult;
use tightfit_units::Nanos;

/// A configuration must be faster by more than this to be worth changing results for.
const MIN_SPEEDUP: f64 = 1.03;

/// The host's time to enqueue one more of our calls. A program that waits for its host would lose as much.
const HOST_TIME_PER_CALL: Nanos = Nanos(15_000);

/// Whether a time is less than another's by enough to change results. The other one enqueues fewer of our calls by this
/// number.
pub fn is_worth_it(ours: Nanos, theirs: Nanos, calls: usize) -> bool {
    (ours + HOST_TIME_PER_CALL * calls as u64).ratio(theirs) < 1.0 && ours.ratio(theirs) * MIN_SPEEDUP < 1.0
}

/// Rounds of a duel, by the time of a call. The first round is not judged. Longer calls are steadier.
const ROUNDS: [(Nanos, usize); 3] = [(Nanos(1_000_000), 6), (Nanos(5_000_000), 4), (Nanos(u64::MAX), 3)];

/// Rounds of a duel by the running choice's time. A configuration that promises far less than a long call needs fewer.
pub fn rounds(theirs: Nanos, is_far: bool) -> usize {
    let rounds = ROUNDS.iter().find(|(longest, _)| theirs <= *longest).map_or(3, |(_, rounds)| *rounds);
    if is_far && theirs > ROUNDS[0].0 { 2 } else { rounds }
}

/// The result of a configuration against the running choice.
pub struct Speedup {
    /// Time of the choice that runs now.
    pub theirs: Nanos,
    /// Time of the configuration.
    pub ours: Nanos,
    /// Whether it is faster by more than the noise.
    pub is_clear: bool,
}

impl Speedup {
    /// By the medians of all rounds but the first. The noise is half the distance between quartiles, of both. The
    /// configuration takes this number of calls more than the running choice. `None` if they did not alternate.
    pub fn of(outcome: &CourseResult, more_calls: usize) -> Option<Speedup> {
        let [theirs, ours, ..] = outcome.times.as_slice() else { return None };
        let judged = |times: &[Nanos]| -> Option<(Nanos, Nanos)> {
            let mut times = times.get(1..)?.to_vec();
            times.sort_unstable();
            let at = |share: usize| times.get((times.len().checked_sub(1)? * share + 2) / 4).copied();
            Some((at(2)?, Nanos((at(3)?.0 - at(1)?.0) / 2)))
        };
        let ((theirs, noise), (ours, other)) = (judged(theirs)?, judged(ours)?);
        let is_clear = is_worth_it(ours, theirs, more_calls) && ours + noise + other < theirs;
        Some(Speedup { theirs, ours, is_clear })
    }
}

/// A configuration with its time as a whole: each part's share changes alike, and parts without times share it by samples.
pub fn timed(ours: Configuration, time: Nanos) -> Configuration {
    let batch = ours.batch().max(1) as u64;
    if ours.time() == Nanos::ZERO {
        let share =
            |part: &Candidate| Candidate { time: Nanos(time.0 * part.micro_batch as u64 / batch), ..part.clone() };
        return Configuration::new(ours.parts().iter().map(share).collect(), ours.cost());
    }
    let factor = time.ratio(ours.time());
    let scale = |time: Nanos| Nanos((time.0 as f64 * factor).round() as u64);
    let part = |part: &Candidate| Candidate { time: scale(part.time), ..part.clone() };
    let cost = DivisionCost { time: scale(ours.cost().time), ..ours.cost() };
    Configuration::new(ours.parts().iter().map(part).collect(), cost)
}

#[cfg(test)]
mod tests {
    use tightfit_conv::Algorithm;
    use tightfit_units::Bytes;

    use super::*;

    fn outcome(theirs: [u64; 6], ours: [u64; 6]) -> CourseResult {
        let times = vec![theirs.map(Nanos).to_vec(), ours.map(Nanos).to_vec()];
        CourseResult { times, took: Nanos::ZERO, outputs: Vec::new() }
    }

    #[test]
    fn only_a_gain_beyond_the_noise_is_clear() {
        let clear = |theirs, ours| Speedup::of(&outcome(theirs, ours), 0).unwrap().is_clear;
        let steady = [900, 100, 100, 101, 100, 99];
        assert!(clear(steady, [500, 90, 90, 91, 90, 89]));
        assert!(!clear(steady, [100, 98, 98, 98, 98, 98]), "two percent");
        assert!(!clear(steady, [90, 60, 90, 140, 91, 60]), "as noisy as that");
        assert!(!clear(steady, steady));
        // Each of our calls takes time on the host.
        let [long, shorter] =
            [[900_000, 90_000], [900_000, 70_000]].map(|[first, then]| [first, then, then, then, then, then]);
        let with_calls = |calls| Speedup::of(&outcome(long, shorter), calls).unwrap().is_clear;
        assert_eq!([1, 2].map(with_calls), [true, false]);
        let judged = Speedup::of(&outcome(steady, steady), 0).unwrap();
        assert_eq!((judged.theirs, judged.ours), (Nanos(100), Nanos(100)));
        let alone = CourseResult { times: vec![vec![Nanos(1)]], took: Nanos::ZERO, outputs: Vec::new() };
        assert!(Speedup::of(&alone, 0).is_none());
        let calls = [Nanos(10_000), Nanos(2_000_000), Nanos(u64::MAX)];
        assert_eq!(calls.map(|call| rounds(call, false)), [6, 4, 3]);
        assert_eq!(calls.map(|call| rounds(call, true)), [6, 2, 2]);
    }

    #[test]
    fn a_configuration_takes_its_measured_time() {
        let part = |time| Candidate::new(Algorithm::new("gemm"), 2, Nanos(time), Bytes(8));
        let cost = DivisionCost { time: Nanos(50), workspace: Bytes(1) };
        let ours = timed(Configuration::new(vec![part(100), part(100)], cost), Nanos(500));
        assert_eq!((ours.time(), ours.cost().time, ours.parts()[0].time), (Nanos(500), Nanos(100), Nanos(200)));
    }
}
