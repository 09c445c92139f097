//! The known measurements of one kernel's candidates, as a backend: it answers from them, and stops the survey at the first
//! candidate that was not measured.
//!
//! ```text
//! survey -> a known, b known, c?            stops; c is measured between the program's calls
//! survey -> a known, b known, c known, d?   stops; ..
//! survey -> all known                       candidates
//! ```
//!
//! A survey asks for the same candidates in the same order if its answers are the same. So after each measurement the
//! survey runs again from its beginning. The library's answers to its queries are kept.

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use tightfit_conv::backend::{Backend, Effort, Offer, Run, Scale, Tensors};
use tightfit_conv::{Algorithm, Candidate, Configuration, Device, DivisionCost, Measurement, Notes, Problem};
use tightfit_cuda::{Guest, must_be_proven};
use tightfit_profile::survey::Divide;
use tightfit_units::{Bytes, Error, Nanos};

use super::similar::Similar;
use crate::choose::Prover;

/// The question of the survey that has no answer yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// The time of an algorithm.
    Part(Problem, Algorithm),
    /// Whether an algorithm computes slices like this one right.
    Proof(Problem, Algorithm),
    /// The cost of dividing the problem.
    Division(Problem),
    /// More time for queries of the library than this step has left.
    Time,
}

/// Sizes at which to list the engines, in addition to the whole mini-batch: the sizes at which the survey screens.
const LISTED_SIZES: [usize; 2] = [32, 4];

/// The smallest part of the mini-batch whose engines are listed when time is short.
const SMALLEST_LISTED_SIZE: usize = 8;

/// By problem at its size.
type Of<T> = HashMap<(Problem, Algorithm), T>;

/// Everything known.
pub(super) struct Ledger {
    /// The convolution at its mini-batch.
    whole: Problem,
    offers: HashMap<Problem, Vec<Offer>>,
    workspaces: Of<Option<Bytes>>,
    /// `None` for a candidate that cannot be measured.
    measured: Of<Option<Measurement>>,
    division: Option<DivisionCost>,
    /// Measurements that were not in the cache.
    new: Vec<(Problem, Measurement)>,
    /// Slices that the cache was asked for.
    looked_up: HashSet<Problem>,
    /// The last candidate in slices.
    sliced: Vec<Candidate>,
}

impl Ledger {
    /// A ledger that begins with a cache's entries.
    pub fn new(problem: &Problem, cached: Vec<Measurement>, division: Option<DivisionCost>) -> Ledger {
        let is_free = Guest::division_workspace(problem) == Bytes::ZERO;
        let division = if is_free { Some(DivisionCost::default()) } else { division };
        let mut ledger = Ledger {
            whole: *problem,
            offers: HashMap::new(),
            workspaces: HashMap::new(),
            measured: HashMap::new(),
            division,
            new: Vec::new(),
            looked_up: HashSet::new(),
            sliced: Vec::new(),
        };
        for measurement in cached {
            if let Ok(part) = problem.with_batch(measurement.micro_batch) {
                ledger.measured.insert((part, measurement.algorithm.clone()), Some(measurement));
            }
        }
        ledger
    }

    /// Records a time.
    pub fn take_down(&mut self, problem: Problem, algorithm: Algorithm, time: Nanos) {
        let offer = self.offers.get(&problem).and_then(|all| all.iter().find(|offer| offer.algorithm == algorithm));
        let workspace = match offer {
            Some(offer) => offer.workspace.as_ref().ok().copied(),
            None => self.workspaces.get(&(problem, algorithm.clone())).copied().flatten(),
        };
        let Some(workspace) = workspace else { return self.refuse(problem, algorithm) };
        let notes = self.notes(&algorithm);
        let time = time.max(Nanos(1));
        let measurement = Measurement {
            single: Some(time),
            notes,
            ..Measurement::once(algorithm.clone(), problem.batch(), time, workspace)
        };
        self.new.push((problem, measurement.clone()));
        self.measured.insert((problem, algorithm), Some(measurement));
    }

    /// Records that an algorithm cannot be measured.
    pub fn refuse(&mut self, problem: Problem, algorithm: Algorithm) {
        self.measured.insert((problem, algorithm), None);
    }

    /// Records the cost of dividing.
    pub fn take_down_division(&mut self, cost: DivisionCost) {
        self.division = Some(cost);
    }

    /// The measurements since the last call, for the cache.
    pub fn take_new(&mut self) -> Vec<(Problem, Measurement)> {
        std::mem::take(&mut self.new)
    }

    /// The time of a configuration, if all of its parts were measured as such; none in slices.
    pub fn time_of(&self, configuration: &Configuration) -> Option<Nanos> {
        let time = |part: &Candidate| {
            let block = self.whole.with_batch(part.micro_batch).ok().filter(|_| part.calls() == 1)?;
            self.measured.get(&(block, part.algorithm.clone()))?.as_ref().map(|known| known.time)
        };
        configuration.parts().iter().map(time).sum()
    }

    /// Every known candidate within a limit, and the cost of dividing if known.
    pub fn candidates(&self, limit: Bytes, admits: impl Fn(Notes) -> bool) -> (Vec<Candidate>, DivisionCost) {
        let known = self.measured.iter().filter(|((problem, _), _)| self.is_block(problem));
        let known = known.filter_map(|(_, measurement)| measurement.as_ref());
        let fitting = known.filter(|one| one.workspace <= limit && admits(one.notes)).map(Measurement::candidate);
        let sliced = self.sliced.iter().filter(|one| one.workspace <= limit).cloned();
        (fitting.chain(sliced).collect(), self.division.unwrap_or(DivisionCost::NEVER))
    }

    /// Records the candidates among these that run in slices.
    pub fn set_sliced(&mut self, candidates: Vec<Candidate>) {
        self.sliced = candidates;
        self.sliced.retain(|candidate| candidate.calls() > 1);
    }

    /// Whether a problem is a block of samples, not a slice.
    fn is_block(&self, problem: &Problem) -> bool {
        problem.convolution() == self.whole.convolution() && problem.is_packed()
    }

    /// The library's report about an algorithm's arithmetic.
    pub fn notes(&self, algorithm: &Algorithm) -> Notes {
        let mut offers = self.offers.values().flatten();
        offers.find(|offer| offer.algorithm == *algorithm).map_or(Notes::NONE, |offer| offer.notes)
    }
}

/// Which candidates are worth a measurement.
#[derive(Clone, Copy)]
pub(super) struct Hopes<'a> {
    /// The achievements of algorithms.
    pub similar: &'a Similar,
    /// The time of the whole mini-batch now, or `None` if all candidates are worth a measurement.
    pub now: Option<Nanos>,
}

impl Hopes<'_> {
    /// Whether a candidate for a part is out of the running: slower than the same share of the running choice, or long
    /// to compile.
    fn is_gone(&self, ledger: &Ledger, part: &Problem, algorithm: &Algorithm) -> bool {
        let share = |now: Nanos| Nanos((now.0 as f64 * part.flops() / ledger.whole.flops()) as u64);
        self.now.is_some_and(|now| {
            self.similar.is_hopeless(part, algorithm, share(now))
                || self.similar.is_slow_to_set_up(part, algorithm, || ledger.notes(algorithm))
        })
    }
}

/// A ledger with the handle on which the library is asked.
pub(super) struct Asking<'a> {
    pub ledger: &'a mut Ledger,
    pub guest: &'a mut Guest,
    /// The most workspace that a configuration may use.
    pub limit: Bytes,
    /// Whether the survey finds its sizes itself.
    pub is_fit: bool,
    /// Which algorithms compute slices right.
    pub prover: Prover<'a>,
    /// Whether a candidate is worth a measurement.
    pub hopes: Hopes<'a>,
    /// The deadline for queries of the library; one query is always made.
    pub until: Instant,
    /// Whether it was asked.
    pub has_asked: bool,
    /// The obstacle that stopped the survey.
    pub wanted: Option<Wanted>,
}

impl Asking<'_> {
    /// Lists the engines. Listing is slow, but querying the workspace of one engine is fast. So engines are listed at a few sizes, and other sizes
    /// are assumed to have the same engines.
    fn begin(&mut self, problem: &Problem) -> Result<(), Error> {
        if self.ledger.offers.contains_key(problem) {
            return Ok(());
        }
        self.check_time()?;
        let mut offers = self.guest.offers(problem)?;
        // With groups they launch a kernel for each, so that trying one takes longer than all others together.
        if problem.convolution().groups() > 1 {
            offers.retain(|offer| !offer.algorithm.name().starts_with("legacy:"));
        }
        // cuDNN lists engines by preference, and the first ones are measured first.
        offers.sort_by_key(|offer| offer.algorithm.name().starts_with("legacy:"));
        self.ledger.offers.insert(*problem, offers);
        Ok(())
    }

    /// Lists the engines for the whole mini-batch, and for parts of it if some algorithm could run within the limit only on
    /// a part; otherwise dividing gains nothing. Returns whether it may. Samples of a small mini-batch may be sliced.
    ///
    /// # Errors
    /// [`Error::Backend`] if the library cannot be queried.
    pub fn is_worth_dividing(
        &mut self,
        whole: &Problem,
        is_sliced: bool,
        admits: impl Fn(Notes) -> bool,
    ) -> Result<bool, Error> {
        self.begin(whole)?;
        let offers = self.ledger.offers.get(whole).map_or(&[][..], Vec::as_slice);
        let is_over = |offer: &Offer| offer.workspace.as_ref().is_ok_and(|bytes| *bytes > self.limit);
        if !offers.iter().any(|offer| admits(offer.notes) && is_over(offer)) {
            return Ok(false);
        }
        // Small parts of a large mini-batch seldom win, and asking takes as long as many measurements.
        let least = if self.hopes.now.is_some() { whole.batch() / SMALLEST_LISTED_SIZE } else { 0 };
        for size in LISTED_SIZES.into_iter().filter(|size| (least..whole.batch()).contains(size)) {
            self.begin(&whole.with_batch(size)?)?;
        }
        if is_sliced && (2..=Divide::SMALL).contains(&whole.batch()) {
            self.begin(&whole.with_batch(1)?)?;
        }
        Ok(true)
    }

    /// Whether an algorithm computes slices like this one right. A measurement of the slice in the cache proves that it
    /// does.
    fn proven(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<bool, Error> {
        self.prover.is_right(problem, algorithm).ok_or_else(|| {
            self.wanted = Some(Wanted::Proof(*problem, algorithm.clone()));
            Error::Interrupted
        })
    }

    /// Asks for the parts of a configuration of which only the workspace is known. Stops at the first one that was not
    /// measured.
    ///
    /// # Errors
    /// [`Error::Interrupted`] there.
    pub fn time(&mut self, guess: &Configuration) -> Result<(), Error> {
        for part in guess.parts().iter().filter(|part| part.calls() == 1) {
            let block = self.ledger.whole.with_batch(part.micro_batch)?;
            if self.ask(&block, &part.algorithm)?.is_some()
                && let Err(Error::Interrupted) = self.measure(&block, &part.algorithm, &Effort::default())
            {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Takes over the cache's entries of a slice.
    fn look_up(&mut self, problem: &Problem) {
        if !self.ledger.is_block(problem) && self.ledger.looked_up.insert(*problem) {
            let cached = (self.prover.cached)(problem).into_iter().filter(|known| known.micro_batch == problem.batch());
            let cached = cached.map(|known| ((*problem, known.algorithm.clone()), Some(known)));
            self.ledger.measured.extend(cached);
        }
    }

    fn ask(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Option<Bytes>, Error> {
        let key = (*problem, algorithm.clone());
        if let Some(known) = self.ledger.workspaces.get(&key) {
            return Ok(*known);
        }
        self.check_time()?;
        let workspace = self.guest.workspace(problem, algorithm)?;
        self.ledger.workspaces.insert(key, workspace);
        Ok(workspace)
    }

    /// Stops when the time for queries is over. Dividing a mini-batch takes hundreds of queries, of up to a millisecond
    /// each, and the answers are kept.
    fn check_time(&mut self) -> Result<(), Error> {
        if self.has_asked && Instant::now() >= self.until {
            self.wanted = Some(Wanted::Time);
            return Err(Error::Interrupted);
        }
        self.has_asked = true;
        Ok(())
    }
}

impl Backend for Asking<'_> {
    fn device(&self) -> &Device {
        self.guest.device()
    }

    fn offers(&mut self, problem: &Problem) -> Result<Vec<Offer>, Error> {
        if let Some(known) = self.ledger.offers.get(problem) {
            let mut known = known.clone();
            self.hopes.similar.sort(problem, &mut known);
            return Ok(known);
        }
        if self.is_fit && self.ledger.is_block(problem) {
            // It takes all names from the listed sizes, and queries each workspace separately.
            return Ok(Vec::new());
        }
        let mut known: Vec<Offer> = self.ledger.offers.values().flatten().cloned().collect();
        known.sort_by(|a, b| a.algorithm.cmp(&b.algorithm));
        known.dedup_by(|a, b| a.algorithm == b.algorithm);
        for offer in &mut known {
            let workspace = self.ask(problem, &offer.algorithm)?;
            offer.workspace = workspace.ok_or_else(|| "is not supported".to_owned());
        }
        self.ledger.offers.insert(*problem, known.clone());
        Ok(known)
    }

    fn workspace(&mut self, problem: &Problem, algorithm: &Algorithm) -> Result<Bytes, Error> {
        self.ask(problem, algorithm)?.ok_or_else(|| refusal(problem, algorithm, "is not supported"))
    }

    fn measure(&mut self, problem: &Problem, algorithm: &Algorithm, _: &Effort) -> Result<Measurement, Error> {
        self.look_up(problem);
        let key = (*problem, algorithm.clone());
        match self.ledger.measured.get(&key).cloned() {
            // Another version of the library asks for another workspace: measured again.
            Some(Some(known)) if self.ask(problem, algorithm)? == Some(known.workspace) => Ok(known),
            Some(None) => Err(refusal(problem, algorithm, "could not be measured")),
            _ if self.hopes.is_gone(self.ledger, problem, algorithm) => {
                Err(refusal(problem, algorithm, "is too slow, by what was seen of it"))
            }
            _ if must_be_proven(problem) && !self.proven(problem, algorithm)? => {
                Err(refusal(problem, algorithm, "was not seen to compute slices right"))
            }
            _ => {
                self.wanted = Some(Wanted::Part(*problem, algorithm.clone()));
                Err(Error::Interrupted)
            }
        }
    }

    fn division_cost(&mut self, problem: &Problem) -> Result<DivisionCost, Error> {
        self.ledger.division.ok_or_else(|| {
            self.wanted = Some(Wanted::Division(*problem));
            Error::Interrupted
        })
    }

    fn run(&mut self, _: &Problem, _: &Configuration, _: Tensors<'_>, _: Scale) -> Result<Run, Error> {
        Err(Error::Interrupted)
    }
}

fn refusal(problem: &Problem, algorithm: &Algorithm, reason: &str) -> Error {
    Error::Refused { algorithm: algorithm.name().to_owned(), problem: problem.to_string(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_guess_takes_what_its_parts_took() {
        let whole: Problem = "forward n7 c4 h8 w8 k4 r3 s3 pad1 f32".parse().unwrap();
        let mut ledger = Ledger::new(&whole, Vec::new(), None);
        let gemm = Algorithm::new("gemm");
        let part = |micro_batch: usize| Candidate::new(gemm.clone(), micro_batch, Nanos::ZERO, Bytes::ZERO);
        let guess = Configuration::new([3, 2, 2].map(part).to_vec(), DivisionCost::default());
        for (size, took, known) in [(2, 20, None), (3, 30, Some(Nanos(70)))] {
            let block = whole.with_batch(size).unwrap();
            ledger.workspaces.insert((block, gemm.clone()), Some(Bytes::ZERO));
            ledger.take_down(block, gemm.clone(), Nanos(took));
            assert_eq!(ledger.time_of(&guess), known, "{size}");
        }
        ledger.refuse(whole.with_batch(2).unwrap(), gemm.clone());
        assert_eq!(ledger.time_of(&guess), None);
    }
}
