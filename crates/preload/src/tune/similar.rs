//! Uses results of algorithms on similar convolutions to decide which to try first and which to skip, and to predict the time of a call.
//!
//! ```text
//! c64 h56 r3 forward:  winograd 1.1, gemm 3.0, direct 40       times of a small device
//! c128 h28 r3 forward: winograd?  first                        gemm 3.0?  not if what runs takes 1.5
//! ```

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Duration;

use tightfit_conv::backend::Offer;
use tightfit_conv::{Algorithm, Notes, Operation, Problem, Types};
use tightfit_units::Nanos;

use super::rates::{Rates, small};

/// By algorithm and class of convolutions.
#[derive(Default)]
pub(super) struct Similar {
    seen: HashMap<Class, Seen>,
    /// The host's time to set an algorithm up, by engine: its variants compile alike.
    setups: HashMap<(String, Operation), Taken>,
    /// The time to build its plans while the program ran.
    builds: HashMap<(String, Operation), Taken>,
}

/// An algorithm on a class of convolutions, within which it should be about equally fast: its name, the extents and strides of the filters, whether
/// there are groups, the operation and the types.
type Class = (String, [usize; 3], [usize; 3], bool, Operation, Types);

/// Observations of an algorithm; slowness is time over a small device's time.
#[derive(Clone, Copy)]
struct Seen {
    best: f64,
    worst: f64,
    /// The largest work at which it was seen.
    work: f64,
}

/// The times of an engine: the first time, which may include the loading of a library; the shortest; the longest but
/// the first.
struct Taken {
    first: Duration,
    shortest: Duration,
    longest_later: Option<Duration>,
}

impl Taken {
    /// Adds a time, perhaps the first.
    fn add(known: Entry<'_, (String, Operation), Taken>, time: Duration) {
        match known {
            Entry::Vacant(new) => {
                new.insert(Taken { first: time, shortest: time, longest_later: None });
            }
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                known.shortest = known.shortest.min(time);
                known.longest_later = known.longest_later.max(Some(time));
            }
        }
    }

    fn longest(&self) -> Duration {
        self.longest_later.map_or(self.first, |later| later.max(self.first))
    }

    /// The expected time of the next set-up. A compiled engine is compiled again for each size and variant; other
    /// engines are loaded once.
    fn next(&self, notes: Notes) -> Duration {
        if notes.contains(Notes::COMPILED) { self.longest() } else { self.shortest }
    }
}

/// An unknown algorithm may take this number of times the bound.
const UNKNOWN_SLOWDOWN: f64 = 20.0;
/// Actual times rarely exceed expected times by more than this factor.
const EXPECTATION_MARGIN: f64 = 1.5;
/// An algorithm that was not seen yet on a class is expected to be slower than the best known one by this factor.
const NEW_SLOWDOWN: f64 = 2.0;
/// A compiled algorithm that takes longer to set up is not worth it.
const MAX_SETUP_TIME: Duration = Duration::from_millis(300);
/// A plan that takes no longer to build holds nothing up.
const QUICK_BUILD_TIME: Duration = Duration::from_millis(20);
/// On a convolution with this many times the work, an algorithm may be faster per work, by this factor.
const LARGER_WORK: f64 = 4.0;
const LARGER_WORK_GAIN: f64 = 4.0;

impl Similar {
    /// Records how long a call of an algorithm took.
    pub fn add(&mut self, problem: &Problem, algorithm: &Algorithm, time: Nanos) {
        let (work, class) = (small(problem), class(problem, algorithm));
        let slowness = time.0 as f64 / work;
        let seen = self.seen.entry(class).or_insert(Seen { best: slowness, worst: slowness, work });
        seen.best = seen.best.min(slowness);
        seen.worst = seen.worst.max(slowness);
        seen.work = seen.work.max(work);
    }

    /// Records how long it took to set an algorithm up, with its first launch.
    pub fn add_setup(&mut self, problem: &Problem, algorithm: &Algorithm, time: Duration) {
        Taken::add(self.setups.entry(engine(problem, algorithm)), time);
    }

    /// Notes how long it took to build an algorithm's plan while the program ran.
    pub fn add_build(&mut self, problem: &Problem, algorithm: &Algorithm, time: Duration) {
        Taken::add(self.builds.entry(engine(problem, algorithm)), time);
    }

    fn of(&self, problem: &Problem, algorithm: &Algorithm) -> Option<&Seen> {
        self.seen.get(&class(problem, algorithm))
    }

    /// Whether an algorithm has no observations.
    pub fn is_new(&self, problem: &Problem, algorithm: &Algorithm) -> bool {
        self.of(problem, algorithm).is_none()
    }

    /// The expected time to set up an algorithm with these notes: the time of its variants, or of others on the average.
    pub fn setup(&self, problem: &Problem, algorithm: &Algorithm, notes: Notes) -> Duration {
        self.setups.get(&engine(problem, algorithm)).map_or_else(
            || {
                let all: Duration = self.setups.values().map(Taken::longest).sum();
                (all / self.setups.len().max(1) as u32).mul_f64(EXPECTATION_MARGIN)
            },
            |setups| setups.next(notes),
        )
    }

    /// Whether compiling an algorithm takes longer than a step may be held up, which later processes would have to wait for in their
    /// first step.
    pub fn is_slow_to_set_up(&self, problem: &Problem, algorithm: &Algorithm, notes: impl FnOnce() -> Notes) -> bool {
        let engine = engine(problem, algorithm);
        let longest = |known: &HashMap<_, Taken>| known.get(&engine).map(Taken::longest);
        // Few were, and looking the notes up takes longer.
        longest(&self.setups).max(longest(&self.builds)) > Some(MAX_SETUP_TIME) && notes().contains(Notes::COMPILED)
    }

    /// Whether plans of the algorithm's engine are known to build in almost no time. The library's report is not
    /// enough, because some engines compile without reporting it.
    pub fn is_quick_to_build(&self, problem: &Problem, algorithm: &Algorithm) -> bool {
        let known = self.builds.get(&engine(problem, algorithm));
        known.and_then(|build| build.longest_later).is_some_and(|longest| longest <= QUICK_BUILD_TIME)
    }

    /// The expected time of a call of an algorithm.
    pub fn expected(&self, problem: &Problem, algorithm: &Algorithm, rates: &Rates) -> Nanos {
        match self.of(problem, algorithm) {
            Some(seen) => Nanos((EXPECTATION_MARGIN * seen.worst * small(problem)) as u64),
            None => Self::of_unknown(problem, rates),
        }
    }

    /// The expected time of an unknown call.
    pub fn of_unknown(problem: &Problem, rates: &Rates) -> Nanos {
        Nanos((UNKNOWN_SLOWDOWN * rates.least(problem).0 as f64) as u64)
    }

    /// The expected time of a call that took this time before.
    pub fn at_most(time: Nanos) -> Nanos {
        Nanos((EXPECTATION_MARGIN * time.0 as f64) as u64)
    }

    /// Whether an algorithm is not worth a measurement, given the time that a call must beat: its best result was too slow, or it was far too slow on
    /// a small share of the work.
    pub fn is_hopeless(&self, problem: &Problem, algorithm: &Algorithm, allowed: Nanos) -> bool {
        self.of(problem, algorithm).is_some_and(|seen| {
            let work = small(problem);
            let growth = if work <= LARGER_WORK * seen.work { 1.0 } else { LARGER_WORK_GAIN };
            seen.best * work > EXPECTATION_MARGIN * growth * allowed.0 as f64
        })
    }

    /// Sorts offers by the rates that their algorithms have achieved. New ones keep their order, behind the algorithms that
    /// are nearly the best.
    pub fn sort(&self, problem: &Problem, offers: &mut [Offer]) {
        let known = |offer: &Offer| self.of(problem, &offer.algorithm).map(|seen| seen.best);
        let best = offers.iter().filter_map(known).fold(f64::INFINITY, f64::min);
        let slowness = |offer: &Offer| known(offer).unwrap_or(NEW_SLOWDOWN * best);
        offers.sort_by(|a, b| slowness(a).total_cmp(&slowness(b)));
    }
}

/// The engine of an algorithm, whatever its knobs, for an operation.
fn engine(problem: &Problem, algorithm: &Algorithm) -> (String, Operation) {
    let name = algorithm.name();
    (name.split_once(":k").map_or(name, |(engine, _)| engine).to_owned(), problem.operation())
}

fn class(problem: &Problem, algorithm: &Algorithm) -> Class {
    let convolution = problem.convolution();
    let strides = convolution.axes3().map(|axis| axis.stride);
    let name = algorithm.name().to_owned();
    (name, convolution.filter(), strides, convolution.groups() > 1, problem.operation(), problem.types())
}

#[cfg(test)]
mod tests {
    use tightfit_units::Bytes;

    use super::*;

    fn problem(text: &str) -> Problem {
        text.parse().unwrap()
    }

    #[test]
    fn an_algorithm_is_expected_to_take_its_last_time() {
        let (whole, gemm) = (problem("forward n8 c64 h28 w28 k64 r3 s3 pad1 f32"), Algorithm::new("gemm"));
        let half = whole.with_batch(4).unwrap();
        let (mut similar, mut rates) = (Similar::default(), Rates::default());
        rates.add(&whole, Nanos(100_000));
        let unknown = similar.expected(&half, &gemm, &rates);
        similar.add(&whole, &gemm, Nanos(200_000));
        similar.add(&whole, &gemm, Nanos(150_000));
        assert_eq!(similar.expected(&whole, &gemm, &rates), Nanos(300_000));
        assert!(similar.expected(&half, &gemm, &rates) < unknown);
        let others = ["backward-data n8 c64 h28 w28 k64 r3 s3 pad1 f32", "forward n8 c64 h28 w28 k64 r5 s5 pad2 f32"];
        for other in others.map(problem) {
            assert!(similar.expected(&other, &gemm, &rates) > Nanos(1_000_000) && similar.is_new(&other, &gemm));
        }
    }

    #[test]
    fn variants_of_an_engine_take_as_long_to_set_up() {
        let [forward, backward] =
            ["forward", "backward-data"].map(|of| problem(&format!("{of} n8 c64 h28 w28 k64 r1 s1 f32")));
        let [one, other, fast] = ["engine65:k2=1,k13=0", "engine65:k2=9", "legacy:gemm"].map(Algorithm::new);
        let mut similar = Similar::default();
        assert_eq!(similar.setup(&forward, &one, Notes::COMPILED), Duration::ZERO);
        similar.add_setup(&forward, &one, Duration::from_millis(400));
        similar.add_setup(&forward, &one, Duration::from_millis(2));
        similar.add_setup(&forward, &fast, Duration::from_millis(4));
        assert_eq!(similar.setup(&forward, &other, Notes::COMPILED), Duration::from_millis(400));
        assert_eq!(similar.setup(&backward, &other, Notes::COMPILED), Duration::from_millis(303), "as others do");
        let is_slow = |problem, algorithm| similar.is_slow_to_set_up(problem, algorithm, || Notes::COMPILED);
        assert!(is_slow(&forward, &other) && !is_slow(&forward, &fast) && !is_slow(&backward, &other));
        similar.add_build(&backward, &one, Duration::from_millis(700));
        similar.add_build(&backward, &one, Duration::from_millis(600));
        similar.add_build(&forward, &fast, Duration::from_millis(400));
        assert!(!similar.is_quick_to_build(&forward, &fast), "that loaded its library, and nobody knows of others");
        similar.add_build(&forward, &fast, Duration::from_millis(2));
        let is_quick = |problem, algorithm| similar.is_quick_to_build(problem, algorithm);
        assert!(is_quick(&forward, &fast) && !is_quick(&backward, &other) && !is_quick(&forward, &other), "unknown");
        // An engine that is not compiled was slow once because its library was loaded.
        assert_eq!(similar.setup(&forward, &other, Notes::NONE), Duration::from_millis(2));
        assert!(!similar.is_slow_to_set_up(&forward, &other, || Notes::NONE));
    }

    #[test]
    fn algorithms_slow_on_similar_convolutions_come_last_or_never() {
        let (known, new) = (
            problem("forward n8 c64 h28 w28 k64 r3 s3 pad1 f32"),
            problem("forward n8 c32 h56 w56 k32 r3 s3 pad1 f32"),
        );
        let mut similar = Similar::default();
        for (name, time) in [("slow", 900_000), ("fast", 100_000), ("near", 150_000)] {
            similar.add(&known, &Algorithm::new(name), Nanos(time));
        }
        let offer =
            |name: &str| Offer { algorithm: Algorithm::new(name), workspace: Ok(Bytes::ZERO), notes: Notes::NONE };
        let mut offers = ["one", "slow", "two", "near", "fast"].map(offer);
        similar.sort(&new, &mut offers);
        assert_eq!(offers.each_ref().map(|offer| offer.algorithm.name()), ["fast", "near", "one", "two", "slow"]);
        let took = Nanos((100_000.0 * small(&new) / small(&known)) as u64);
        let is_hopeless = |problem: &Problem, name: &str| similar.is_hopeless(problem, &Algorithm::new(name), took);
        assert_eq!(["fast", "near", "one", "slow"].map(|name| is_hopeless(&new, name)), [false, false, false, true]);
        // On far more work it may do better, but not by any factor.
        let large = known.with_batch(64).unwrap();
        let share = |of: f64| Nanos((900_000.0 * of * small(&large) / small(&known)) as u64);
        let is_hopeless = |allowed: Nanos| similar.is_hopeless(&large, &Algorithm::new("slow"), allowed);
        assert!(!is_hopeless(share(1.0 / 5.0)) && is_hopeless(share(1.0 / 7.0)));
    }
}
