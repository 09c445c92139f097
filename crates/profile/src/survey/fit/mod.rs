//! The sizes `fit`: measures the few sizes that fill the limit best, at less than half the cost of power-of-two.
//!
//! Querying a workspace runs nothing, so finding the largest size m that fits is free for every algorithm. Then
//!
//! ```text
//! screen   each algorithm at 4 and at 32 samples (or m): a line through both predicts its time per sample at m; where
//!          setting up costs more than running, at one size, which for little work is m itself; if m takes many times
//!          as long per sample as 4, the size at which that begins is found by halves, and m is the size below it
//! fill     the promising ones at m, at equal divisions of the mini-batch near m, and at the remainders
//! probe    the others only at m, cheapest first, while the budget lasts: a library may switch kernels at large sizes;
//!          also the whole mini-batch, if an algorithm reaches it and it was not measured yet
//! refine   the algorithms of the winning division at round sizes between m/2 and m, then between its neighbors; not if the
//!          whole mini-batch in one call wins and takes least per sample
//! ```
//!
//! All of these are measured against the time that they must beat (see [`Bounds`]). Most lose, and cost a call or two.
//!
//! Predicted times also give the cost of power-of-two, and thus the budget. The constants were chosen on one recorded
//! network (AlexNet, one column, f32, all 256 sizes, limits of 8 to 512 MiB) and then checked on seven others; the
//! table is in `docs/results.md`.

mod screen;

use std::collections::{BTreeMap, BTreeSet};

pub use screen::Screen;
use screen::Screening;
pub(super) use screen::is_little;

use tightfit_conv::optimize::divide;
use tightfit_conv::{Algorithm, Candidate, DivisionCost, Problem};
use tightfit_units::{Bytes, Error, Nanos};

use super::bounds::Bounds;
use super::grouped::{self, SCREEN};
use crate::Profiler;

/// Fill in an algorithm if its time per sample is at most this multiple of the best algorithm's.
const MAX_PROMISING_SLOWDOWN: f64 = 1.2;
/// Skip an algorithm if this many better ones reach at least as large a size.
const MAX_BETTER: usize = 4;
/// Stop probing at this share of the predicted cost of power-of-two.
const PROBE_SHARE: f64 = 0.38;
/// Stop refining at this share of it, but always allow `REFINE_MIN_SHARE` of the cost so far, and at most `REFINE_MAX_SHARE`.
const REFINE_SHARE: f64 = 0.40;
const REFINE_MIN_SHARE: f64 = 0.02;
const REFINE_MAX_SHARE: f64 = 0.4;
/// Round sizes are multiples of the largest power of two within a twelfth of m.
const ROUND_SIZE_DIVISOR: usize = 12;
/// Query the workspaces of every size up to this number of sizes.
const MAX_QUERIED_SIZES: usize = 64;
/// Rounds of refining: the first tries round sizes; the others halve the intervals next to the winners.
const MAX_ROUNDS: usize = 4;

/// Measures the sizes that fit `limits` best and returns all measured candidates within the largest limit.
pub(super) fn fit(
    problem: &Problem,
    limits: &[Bytes],
    screen: Screen,
    profiler: &mut Profiler<'_>,
) -> Result<Vec<Candidate>, Error> {
    let mut search = Search::new(problem, screen, profiler)?;
    let mut filled = BTreeMap::new();
    for &limit in limits {
        let largest = search.largest_sizes(limit)?;
        // A smaller limit under which every algorithm reaches the same size needs nothing new.
        if filled != largest {
            search.run(limit, largest.clone())?;
            filled = largest;
        }
    }
    if limits.len() > 1 {
        // Under a total, a kernel may get no more than its minimum.
        let untimed = search.untimed()?;
        let least = match divide(problem, &untimed, Bytes::ZERO, DivisionCost::default()) {
            Err(Error::OverLimit { needed, .. }) => needed,
            _ => Bytes::ZERO,
        };
        search.complete(least)?;
    }
    Ok(search.measured.into_values().collect())
}

struct Search<'p, 'b> {
    problem: Problem,
    screen: Screen,
    profiler: &'p mut Profiler<'b>,
    algorithms: Vec<Algorithm>,
    /// Sizes that can be measured, rising.
    sizes: Vec<usize>,
    workspaces: BTreeMap<(usize, usize), Option<Bytes>>,
    /// By algorithm (index into `algorithms`) and size.
    measured: BTreeMap<(usize, usize), Candidate>,
    failed: BTreeSet<(usize, usize)>,
    /// Of everything measured.
    bounds: Bounds,
}

impl<'p, 'b> Search<'p, 'b> {
    fn new(problem: &Problem, screen: Screen, profiler: &'p mut Profiler<'b>) -> Result<Search<'p, 'b>, Error> {
        let sizes = profiler.sizes(problem);
        // Libraries list different engines at different sizes. The whole mini-batch and the screening sizes show nearly
        // all of them, and each query takes as long as some measurements. In a recording of some sizes, any algorithm
        // may appear at any of them, and queries cost nothing.
        let mut algorithms: Vec<Algorithm> = Vec::new();
        let ends = sizes.last().copied().into_iter().chain(SCREEN);
        let is_recorded = profiler.is_recorded(problem);
        let asked: Vec<usize> =
            if is_recorded && sizes.len() <= MAX_QUERIED_SIZES { sizes.clone() } else { ends.collect() };
        for size in asked.into_iter().filter(|size| sizes.binary_search(size).is_ok()) {
            let offers = profiler.offers(&problem.with_batch(size)?)?;
            for offer in offers.iter().filter(|offer| offer.workspace.is_ok()) {
                if !algorithms.contains(&offer.algorithm) {
                    algorithms.push(offer.algorithm.clone());
                }
            }
        }
        algorithms.sort_by_key(|algorithm| grouped::launches_per_group(problem, algorithm));
        Ok(Search {
            problem: *problem,
            screen,
            profiler,
            algorithms,
            sizes,
            workspaces: BTreeMap::new(),
            measured: BTreeMap::new(),
            failed: BTreeSet::new(),
            bounds: Bounds::new(problem),
        })
    }

    /// The largest size of each algorithm within the limit.
    ///
    /// Workspaces may not grow with the size: queries the equal divisions of the mini-batch (or all sizes if there are few) from the top, then
    /// bisects the interval above the first that fits.
    fn largest_sizes(&mut self, limit: Bytes) -> Result<BTreeMap<usize, usize>, Error> {
        let batch = self.problem.batch();
        let mut divisions: Vec<usize> = if self.sizes.len() <= MAX_QUERIED_SIZES {
            self.sizes.iter().rev().copied().collect()
        } else {
            (1..=batch).filter_map(|parts| self.snap(batch.div_ceil(parts))).collect()
        };
        divisions.dedup();
        let mut largest = BTreeMap::new();
        for algorithm in 0..self.algorithms.len() {
            let mut above = None;
            for &size in &divisions {
                if self.fits(algorithm, size, limit)? {
                    let m = self.largest_between(algorithm, size, above, limit)?;
                    largest.insert(algorithm, m);
                    break;
                }
                above = Some(size);
            }
        }
        Ok(largest)
    }

    fn largest_between(
        &mut self,
        algorithm: usize,
        fits: usize,
        above: Option<usize>,
        limit: Bytes,
    ) -> Result<usize, Error> {
        let place = |search: &Self, size: usize| search.sizes.partition_point(|&known| known < size);
        let Some(above) = above else { return Ok(fits) };
        let (mut low, mut high) = (place(self, fits), place(self, above));
        while high - low > 1 {
            let middle = (low + high) / 2;
            if self.fits(algorithm, self.sizes[middle], limit)? { low = middle } else { high = middle }
        }
        Ok(self.sizes[low])
    }

    fn fits(&mut self, algorithm: usize, size: usize, limit: Bytes) -> Result<bool, Error> {
        let bytes = match self.workspaces.get(&(algorithm, size)) {
            Some(bytes) => *bytes,
            None => {
                let problem = self.problem.with_batch(size)?;
                let bytes = self.profiler.workspace(&problem, &self.algorithms[algorithm])?;
                self.workspaces.insert((algorithm, size), bytes);
                bytes
            }
        };
        Ok(bytes.is_some_and(|bytes| bytes <= limit) && !self.failed.contains(&(algorithm, size)))
    }

    /// The largest measurable size up to `size`.
    fn snap(&self, size: usize) -> Option<usize> {
        self.sizes[..self.sizes.partition_point(|&known| known <= size)].last().copied()
    }

    /// The time of an algorithm at a size; `None` if it fails, has no chance, or does not fit.
    fn measure(&mut self, algorithm: usize, size: usize, limit: Bytes) -> Result<Option<Nanos>, Error> {
        let Some(size) = self.snap(size) else { return Ok(None) };
        let problem = self.problem.with_batch(size)?;
        if grouped::is_hopeless(&problem, &self.algorithms[algorithm], limit, self.profiler)? {
            return Ok(None);
        }
        self.measure_anyway(algorithm, size, limit)
    }

    fn measure_anyway(&mut self, algorithm: usize, size: usize, limit: Bytes) -> Result<Option<Nanos>, Error> {
        if let Some(candidate) = self.measured.get(&(algorithm, size)) {
            return Ok(Some(candidate.time));
        }
        if !self.fits(algorithm, size, limit)? {
            return Ok(None);
        }
        let workspace = self.workspaces.get(&(algorithm, size)).copied().flatten().unwrap_or_default();
        let rivals = self.bounds.rivals(size, workspace);
        let problem = self.problem.with_batch(size)?;
        let measured = self.profiler.measure_against(&problem, &self.algorithms[algorithm], rivals)?;
        let Some(measurement) = measured else {
            self.failed.insert((algorithm, size));
            return Ok(None);
        };
        self.bounds.add(&measurement.candidate());
        self.measured.insert((algorithm, size), measurement.candidate());
        Ok(Some(measurement.time))
    }

    fn spent(&self) -> f64 {
        self.measured.values().map(|candidate| candidate.time.0 as f64).sum()
    }

    fn best_per_sample(&self) -> f64 {
        self.measured.values().map(|c| c.time.0 as f64 / c.micro_batch as f64).fold(f64::INFINITY, f64::min)
    }

    fn run(&mut self, limit: Bytes, mut largest: BTreeMap<usize, usize>) -> Result<(), Error> {
        let Screening { foretold, unknown } = self.screen(limit, &mut largest)?;
        // Power-of-two runs m, m/2, m/4, ..: about twice m samples of each algorithm.
        let power_of_two: f64 = foretold.iter().map(|&(algorithm, time)| 2.0 * time * largest[&algorithm] as f64).sum();
        let best = foretold.first().map_or(0.0, |&(_, time)| time);
        let (promising, others) = self.promising(&foretold, &largest, best);
        for algorithm in unknown.into_iter().chain(promising) {
            self.fill(algorithm, largest[&algorithm], limit)?;
        }
        for (algorithm, time) in others {
            let m = largest[&algorithm];
            if time <= self.best_per_sample() {
                self.fill(algorithm, m, limit)?;
            } else if self.spent() + time * m as f64 <= PROBE_SHARE * power_of_two
                && let Some(measured) = self.measure(algorithm, m, limit)?
                && measured.0 as f64 / m as f64 <= MAX_PROMISING_SLOWDOWN * self.best_per_sample()
            {
                self.fill(algorithm, m, limit)?;
            }
        }
        let batch = self.problem.batch();
        let whole = foretold.iter().map(|&(algorithm, _)| algorithm).find(|algorithm| largest[algorithm] == batch);
        if let Some(algorithm) = whole
            && !self.measured.values().any(|c| c.micro_batch == batch && c.workspace <= limit)
        {
            self.measure_anyway(algorithm, batch, limit)?;
        }
        let spent = self.spent();
        let share = (REFINE_SHARE * power_of_two).max(spent * (1.0 + REFINE_MIN_SHARE));
        self.refine(limit, &largest, share.min(spent * (1.0 + REFINE_MAX_SHARE)))?;
        self.complete(limit)
    }

    /// Measures sizes that add up to the mini-batch, if the measured sizes do not.
    fn complete(&mut self, limit: Bytes) -> Result<(), Error> {
        loop {
            let before = self.measured.len() + self.failed.len();
            let measured: Vec<Candidate> = self.measured.values().cloned().collect();
            if divide(&self.problem, &measured, limit, DivisionCost::default()).is_ok() {
                return Ok(());
            }
            let untimed = self.untimed()?;
            let Ok(fewest) = divide(&self.problem, &untimed, limit, DivisionCost::default()) else { return Ok(()) };
            // The measured candidates are among the untimed ones with their measured workspace, and do not add up. So at least one part is new, and
            // is measured or fails. The number of parts is finite, so this terminates.
            for part in fewest.parts() {
                if let Some(algorithm) = self.algorithms.iter().position(|known| *known == part.algorithm) {
                    self.measure_anyway(algorithm, part.micro_batch, limit)?;
                }
            }
            if self.measured.len() + self.failed.len() == before {
                return Ok(());
            }
        }
    }

    /// Candidates with known workspace and equal time, so that dividing finds the fewest micro-batches: powers of two
    /// and equal divisions, or every size if there are few. Measured candidates keep their measured workspace, even if
    /// an earlier query differed.
    fn untimed(&mut self) -> Result<Vec<Candidate>, Error> {
        let batch = self.problem.batch();
        let mut sizes: BTreeSet<usize> = (0..=batch.ilog2()).map(|power| 1 << power).collect();
        sizes.extend((1..=batch).map(|parts| batch.div_ceil(parts)));
        if self.sizes.len() <= MAX_QUERIED_SIZES {
            sizes.extend(&self.sizes);
        }
        sizes.retain(|size| self.sizes.binary_search(size).is_ok());
        let mut untimed = Vec::new();
        for micro_batch in sizes {
            for algorithm in 0..self.algorithms.len() {
                if self.fits(algorithm, micro_batch, Bytes::UNLIMITED)?
                    && let Some(Some(workspace)) = self.workspaces.get(&(algorithm, micro_batch)).copied()
                {
                    let measured = self.measured.get(&(algorithm, micro_batch));
                    let workspace = measured.map_or(workspace, |candidate| candidate.workspace);
                    let algorithm = self.algorithms[algorithm].clone();
                    untimed.push(Candidate { micro_batch, algorithm, time: Nanos(1), workspace });
                }
            }
        }
        Ok(untimed)
    }

    /// Splits the predictions into algorithms worth filling in and others.
    ///
    /// Libraries offer dozens of variants of one method with similar time and workspace. A variant is not worth its
    /// cost if `MAX_BETTER` better ones reach at least as large a size.
    fn promising(
        &self,
        foretold: &[(usize, f64)],
        largest: &BTreeMap<usize, usize>,
        best: f64,
    ) -> (Vec<usize>, Vec<(usize, f64)>) {
        let (mut promising, mut others) = (Vec::new(), Vec::new());
        for &(algorithm, time) in foretold {
            let rivals = promising.iter().filter(|better| largest[better] >= largest[&algorithm]).count();
            if time > MAX_PROMISING_SLOWDOWN * best {
                others.push((algorithm, time));
            } else if rivals < MAX_BETTER {
                promising.push(algorithm);
            }
        }
        (promising, others)
    }

    /// Measures m, the equal divisions of the mini-batch into as many parts as m needs and one more, and the remainder.
    fn fill(&mut self, algorithm: usize, m: usize, limit: Bytes) -> Result<(), Error> {
        let batch = self.problem.batch();
        let parts = batch.div_ceil(m);
        let mut sizes = BTreeSet::from([m, batch % m]);
        for parts in [parts, parts + 1] {
            sizes.extend([batch / parts, batch.div_ceil(parts)]);
        }
        for size in sizes.into_iter().filter(|&size| size > 0 && size <= m) {
            self.measure(algorithm, size, limit)?;
        }
        Ok(())
    }

    fn refine(&mut self, limit: Bytes, largest: &BTreeMap<usize, usize>, budget: f64) -> Result<(), Error> {
        let mut rounded = BTreeSet::new();
        for _ in 0..MAX_ROUNDS {
            let before = self.measured.len();
            let winners = self.winners(limit);
            if self.is_best_whole(&winners) {
                break;
            }
            let algorithms: BTreeSet<usize> = winners.iter().map(|&(algorithm, _)| algorithm).collect();
            for &algorithm in &algorithms {
                let Some(&m) = largest.get(&algorithm) else { continue };
                let sizes = if rounded.insert(algorithm) {
                    self.round_sizes(m)
                } else {
                    self.between_neighbors(algorithm, &winners)
                };
                for size in sizes.into_iter().filter(|&size| size > 0 && size <= m) {
                    if self.spent() > budget {
                        return Ok(());
                    }
                    self.measure(algorithm, size, limit)?;
                    let remainder = self.problem.batch() % size;
                    for &other in algorithms.iter().filter(|_| remainder > 0) {
                        if largest.get(&other).is_some_and(|&m| remainder <= m) {
                            self.measure(other, remainder, limit)?;
                        }
                    }
                }
            }
            if self.measured.len() == before {
                break;
            }
        }
        Ok(())
    }

    /// Whether the whole mini-batch in one call wins, and no smaller size that was measured takes less time per sample.
    fn is_best_whole(&self, winners: &BTreeSet<(usize, usize)>) -> bool {
        let batch = self.problem.batch();
        let per_sample = |candidate: &Candidate| candidate.time.0 as f64 / candidate.micro_batch as f64;
        let least =
            winners.iter().filter_map(|winner| self.measured.get(winner)).map(per_sample).fold(f64::INFINITY, f64::min);
        let mut smaller = self.measured.values().filter(|candidate| candidate.micro_batch < batch);
        winners.iter().all(|&(_, size)| size == batch) && smaller.all(|candidate| per_sample(candidate) >= least)
    }

    /// Multiples of a power of two from m down to m/2, and their remainders.
    fn round_sizes(&self, m: usize) -> Vec<usize> {
        let step = 1 << (m / ROUND_SIZE_DIVISOR).max(1).ilog2();
        let multiples: Vec<usize> = (1..=m / step).rev().map(|i| i * step).take_while(|&size| size >= m / 2).collect();
        let left = multiples.iter().filter_map(|&size| self.problem.batch().checked_sub(size));
        multiples.iter().copied().chain(left).collect()
    }

    /// The midpoints between each winning size and its measured neighbors.
    fn between_neighbors(&self, algorithm: usize, winners: &BTreeSet<(usize, usize)>) -> Vec<usize> {
        let known: Vec<usize> = self.measured.range((algorithm, 0)..(algorithm + 1, 0)).map(|(key, _)| key.1).collect();
        let mut sizes = Vec::new();
        for &(_, size) in winners.iter().filter(|(winner, _)| *winner == algorithm) {
            let place = known.partition_point(|&known| known < size);
            if place > 0 {
                sizes.push(usize::midpoint(known[place - 1], size));
            }
            if let Some(&above) = known.get(place + 1) {
                sizes.push((above + size).div_ceil(2));
            }
        }
        sizes
    }

    /// Algorithm and size of the candidates in the fastest division so far.
    fn winners(&self, limit: Bytes) -> BTreeSet<(usize, usize)> {
        let candidates: Vec<Candidate> = self.measured.values().cloned().collect();
        let divided = divide(&self.problem, &candidates, limit, DivisionCost::default());
        // If no sizes add up, nothing can be refined.
        let parts = divided.iter().flat_map(|configuration| configuration.parts());
        let place = |part: &Candidate| self.algorithms.iter().position(|algorithm| *algorithm == part.algorithm);
        parts.filter_map(|part| Some((place(part)?, part.micro_batch))).collect()
    }
}
