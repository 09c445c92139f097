//! Slices along a spatial axis, for kernels whose mini-batch is too small to divide.
//!
//! Asking for a workspace is free. Each algorithm that does not fit whole is therefore measured only at the largest slices within the limit, and at
//! the next smaller ones:
//!
//! ```text
//! one sample    d32 whole   577 MiB
//! slices of     d16   d11   d8   d6   d4   d3   d2   d1       halves, thirds, quarters, sixths, ..
//! fft           300   210   163  124   91   73   55   37
//! under 128 MiB                  ^^^   ^^                     measured inside; the fastest also at both edges
//! ```
//!
//! The measured ranges are then combined in every way ([`slice`]). Each combination is a candidate for the whole block of samples, next to all
//! others. If no slices along an axis fit a limit, slices along the next axis are tried.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tightfit_conv::candidate::Candidates;
use tightfit_conv::optimize::{Piece, divide, slice};
use tightfit_conv::{Algorithm, Candidate, DivisionCost, Operation, Problem};
use tightfit_units::{Bytes, Error, Nanos, by_name};

use super::fit::Screen;
use super::sizes::Sizes;
use super::slicing::Slicing;
use crate::{Profiler, Rivals};

/// Along what convolutions are divided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Divide {
    /// The mini-batch, as in the papers.
    Batch,
    /// A spatial axis of all samples.
    Space,
    /// The mini-batch first. If that is small or its samples are large, then also a spatial axis of its micro-batches.
    #[default]
    Both,
    /// Nothing.
    Off,
}

impl Divide {
    /// The largest mini-batch that [`Divide::Both`] slices although its micro-batches fit, if its samples are not large.
    pub const SMALL: usize = 8;

    /// All four, in the order of the documentation.
    pub const ALL: [Divide; 4] = [Divide::Batch, Divide::Space, Divide::Both, Divide::Off];

    /// The name used in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Divide::Batch => "batch",
            Divide::Space => "space",
            Divide::Both => "both",
            Divide::Off => "off",
        }
    }

    /// The micro-batch sizes to measure out of the allowed ones: only the whole mini-batch if that is not divided.
    pub fn micro_batches(self, allowed: Sizes) -> Sizes {
        if matches!(self, Divide::Batch | Divide::Both) { allowed } else { Sizes::Undivided }
    }

    /// Whether spatial axes may be divided, given the allowed micro-batch sizes.
    pub fn slices(self, allowed: Sizes) -> bool {
        allowed != Sizes::Undivided && matches!(self, Divide::Space | Divide::Both)
    }
}

by_name!(Divide, "divisions");

/// The largest mini-batch that is sliced with all samples at once as well.
const MAX_BATCH_SLICED_WHOLE: usize = 4;
/// Slices of a large sample pay off if its input and output exceed the limit by at most this factor.
const MAX_SAMPLE_OVER_LIMIT: u64 = 64;
/// Algorithms that compete at the edges of a size.
const MAX_EDGE_ALGORITHMS: usize = 2;
/// The most ranges that are combined freely; beyond this number, only ranges of one size are.
const MAX_PIECES: usize = 20_000;

/// Measures slices of `problem` under `limits`, a few or more. Adds the useful ones to its other candidates, with the cost of dividing. If an error
/// ends the search, adds the slices known so far.
///
/// # Errors
/// The errors of [`Profiler::measure`]. Completed measurements are already saved.
pub fn add_slices(
    problem: &Problem,
    limits: &[Bytes],
    along: Divide,
    screen: Screen,
    profiler: &mut Profiler<'_>,
    found: &mut Candidates,
) -> Result<(), Error> {
    let known = &mut found.candidates;
    for block in blocks(problem, limits, along, known) {
        let mut left = limits.to_vec();
        for slicing in Slicing::axes(problem.with_batch(block)?) {
            let mut search = Search::new(slicing, screen, profiler);
            let searched = search.search(problem, &left, known);
            let sliced = search.candidates();
            left.retain(|&limit| sliced.iter().all(|candidate| candidate.workspace > limit));
            known.extend(sliced);
            known.sort();
            known.dedup();
            searched?;
        }
    }
    let is_sliced = known.iter().any(|candidate| candidate.calls() > 1);
    if is_sliced && problem.operation() == Operation::BackwardFilter {
        found.cost = profiler.division_cost(problem)?;
    }
    Ok(())
}

/// The least workspace in which slices of some size compute `problem`; `None` if it is not sliced.
pub(super) fn least_workspace(
    problem: &Problem,
    along: Divide,
    profiler: &mut Profiler<'_>,
) -> Result<Option<Bytes>, Error> {
    let mut least: Option<Bytes> = None;
    for block in blocks(problem, &[Bytes::ZERO], along, &[]) {
        for slicing in Slicing::axes(problem.with_batch(block)?) {
            for size in slicing.ladder() {
                let problems: Option<BTreeSet<Problem>> = slicing.parts(size).map(|parts| parts.into_iter().collect());
                let mut largest = problems.is_some().then_some(Bytes::ZERO);
                for part in problems.into_iter().flatten() {
                    let of_part = offers(&part, profiler)?.into_iter().map(|(_, workspace)| workspace).min();
                    largest = largest.zip(of_part).map(|(largest, own)| largest.max(own));
                }
                least = least.into_iter().chain(largest).min();
            }
        }
    }
    Ok(least)
}

/// Workspaces of the algorithms that support a problem.
fn offers(problem: &Problem, profiler: &mut Profiler<'_>) -> Result<Vec<(Algorithm, Bytes)>, Error> {
    let offers = profiler.offers(problem)?.iter();
    Ok(offers.filter_map(|offer| Some((offer.algorithm.clone(), *offer.workspace.as_ref().ok()?))).collect())
}

/// The micro-batches to slice.
fn blocks(problem: &Problem, limits: &[Bytes], along: Divide, found: &[Candidate]) -> Vec<usize> {
    let batch = problem.batch();
    let fits = |limit: &Bytes| divide(problem, found, *limit, DivisionCost::default()).is_ok();
    let is_large = |limit: &Bytes| is_large_sample(problem, *limit);
    match along {
        Divide::Batch | Divide::Off => Vec::new(),
        Divide::Space => vec![batch],
        Divide::Both if batch > Divide::SMALL && limits.iter().all(|limit| fits(limit) && !is_large(limit)) => {
            Vec::new()
        }
        Divide::Both if (2..=MAX_BATCH_SLICED_WHOLE).contains(&batch) => vec![1, batch],
        Divide::Both => vec![1],
    }
}

/// Whether a single sample is so large that even micro-batches of one exclude algorithms whose workspace grows with it.
fn is_large_sample(problem: &Problem, limit: Bytes) -> bool {
    let elements = (problem.input_len() + problem.output_len()) / problem.batch();
    let sample = Bytes::of(elements, problem.types().storage().size());
    limit < sample && sample.0 <= limit.0.saturating_mul(MAX_SAMPLE_OVER_LIMIT)
}

/// The effort under one limit.
#[derive(Clone, Copy)]
struct Breadth {
    /// Algorithms.
    algorithms: usize,
    /// Sizes for each.
    sizes: usize,
    /// Algorithms to try at an edge if all the inner ones refuse.
    at_edges: usize,
}

impl Breadth {
    fn of(screen: Screen) -> Breadth {
        match screen {
            Screen::Once => Breadth { algorithms: 3, sizes: 1, at_edges: 1 },
            Screen::Twice => Breadth { algorithms: 12, sizes: 2, at_edges: 4 },
        }
    }
}

/// The measured ways to compute a range.
type Ways = Vec<(Algorithm, Nanos, Bytes)>;

/// The search for slices of one block of samples.
struct Search<'p, 'b> {
    slicing: Slicing,
    profiler: &'p mut Profiler<'b>,
    breadth: Breadth,
    /// By problem of a range.
    measured: HashMap<Problem, Ways>,
    failed: BTreeSet<(Problem, Algorithm)>,
    /// Sizes whose edges are measured, with the ranges.
    sizes: BTreeMap<usize, Vec<std::ops::Range<usize>>>,
}

impl<'p, 'b> Search<'p, 'b> {
    fn new(slicing: Slicing, screen: Screen, profiler: &'p mut Profiler<'b>) -> Search<'p, 'b> {
        let (measured, failed, sizes) = (HashMap::new(), BTreeSet::new(), BTreeMap::new());
        Search { slicing, profiler, breadth: Breadth::of(screen), measured, failed, sizes }
    }

    /// Measures the largest slices within the limit, algorithm by algorithm in the backend's order.
    fn run(&mut self, limit: Bytes, others: &[Candidate]) -> Result<(), Error> {
        for algorithm in self.over(limit)? {
            let mut measured = 0;
            for size in self.slicing.ladder() {
                let ranges = self.slicing.cuts().ranges(size);
                let Some(inner) = self.slicing.part(ranges[ranges.len() / 2].clone()) else { continue };
                let mut ways = self.ways(&inner, &algorithm)?;
                ways.retain(|(_, workspace)| *workspace <= limit);
                if ways.is_empty() {
                    continue;
                }
                let mut is_measured = false;
                for (way, workspace) in ways {
                    is_measured |= self.measure(&inner, &way, workspace, others)?;
                }
                if is_measured {
                    self.edges(size, &inner, ranges, limit, others)?;
                }
                measured += 1;
                if measured == self.breadth.sizes {
                    break;
                }
            }
        }
        Ok(())
    }

    /// The algorithms to try, which do not fit as a whole. For a recording: the algorithms with recorded slices.
    fn over(&mut self, limit: Bytes) -> Result<Vec<Algorithm>, Error> {
        let block = self.slicing.block();
        let whole = offers(&block, self.profiler)?;
        let over = whole.iter().filter(|(_, workspace)| *workspace > limit).map(|(algorithm, _)| algorithm.clone());
        let mut over: Vec<Algorithm> = over.take(self.breadth.algorithms).collect();
        if self.profiler.is_recorded(&self.slicing.block()) {
            for size in self.slicing.ladder() {
                let ranges = self.slicing.cuts().ranges(size);
                let Some(inner) = self.slicing.part(ranges[ranges.len() / 2].clone()) else { continue };
                let named = offers(&inner, self.profiler)?.into_iter().map(|(algorithm, _)| algorithm);
                over.extend(named.filter(|name| !whole.iter().any(|(fits, bytes)| fits == name && *bytes <= limit)));
            }
            over.sort();
            over.dedup();
        }
        Ok(over)
    }

    /// The algorithm with its workspace for a range. It runs on the view, unless it refuses the view's strides. It runs on copies if it does, or if
    /// the view is scattered, which some algorithms read slowly.
    fn ways(&mut self, range: &Problem, algorithm: &Algorithm) -> Result<Vec<(Algorithm, Bytes)>, Error> {
        let on_view = self.profiler.workspace(range, algorithm)?.map(|workspace| (algorithm.clone(), workspace));
        let is_copied = !range.is_packed() && !algorithm.is_on_copies();
        let on_copies = if is_copied && (on_view.is_none() || self.slicing.is_scattered()) {
            let on_copies = algorithm.on_copies();
            self.profiler.workspace(range, &on_copies)?.map(|workspace| (on_copies, workspace))
        } else {
            None
        };
        Ok(on_view.into_iter().chain(on_copies).collect())
    }

    /// Measures the ranges at both ends, by the fastest algorithms inside, or by some others if those refuse.
    fn edges(
        &mut self,
        size: usize,
        inner: &Problem,
        ranges: Vec<std::ops::Range<usize>>,
        limit: Bytes,
        others: &[Candidate],
    ) -> Result<(), Error> {
        let mut best: Ways = self.measured.get(inner).cloned().unwrap_or_default();
        best.retain(|(_, _, workspace)| *workspace <= limit);
        best.sort_by_key(|(algorithm, time, _)| (*time, algorithm.clone()));
        let best: Vec<Algorithm> =
            best.into_iter().take(MAX_EDGE_ALGORITHMS).map(|(algorithm, ..)| algorithm).collect();
        let problems: Option<BTreeSet<Problem>> = ranges.iter().map(|range| self.slicing.part(range.clone())).collect();
        let Some(problems) = problems else { return Ok(()) };
        for problem in problems.iter().filter(|problem| *problem != inner) {
            let mut measured = 0;
            for algorithm in &best {
                let fitting = self.ways(problem, algorithm)?.into_iter().find(|(_, workspace)| *workspace <= limit);
                if let Some((way, workspace)) = fitting {
                    measured += usize::from(self.measure(problem, &way, workspace, others)?);
                }
            }
            if measured > 0 {
                continue;
            }
            for (algorithm, workspace) in offers(problem, self.profiler)? {
                if workspace <= limit && measured < self.breadth.at_edges {
                    measured += usize::from(self.measure(problem, &algorithm, workspace, others)?);
                }
            }
        }
        self.sizes.insert(size, ranges);
        Ok(())
    }

    /// Measures a range against the known candidates; returns whether its time is known.
    fn measure(
        &mut self,
        problem: &Problem,
        algorithm: &Algorithm,
        workspace: Bytes,
        others: &[Candidate],
    ) -> Result<bool, Error> {
        let known = self.measured.get(problem).map_or(&[][..], Vec::as_slice);
        if known.iter().any(|(other, ..)| other == algorithm) {
            return Ok(true);
        }
        if self.failed.contains(&(*problem, algorithm.clone())) {
            return Ok(false);
        }
        // A winning range must beat the corresponding share of the fastest candidate with no more workspace.
        let positions = self.slicing.dimension().extent(problem) as f64;
        let of_block = self.slicing.block().batch() as f64 * positions / self.slicing.cuts().extent() as f64;
        let share = |candidate: &Candidate| candidate.time.0 as f64 / candidate.micro_batch as f64 * of_block;
        let least = others.iter().filter(|other| other.workspace <= workspace).map(share).fold(f64::INFINITY, f64::min);
        let ranges =
            self.measured.iter().map(|(problem, ways)| (self.slicing.dimension().extent(problem) as f64, ways));
        let ranges = ranges.flat_map(|(extent, ways)| ways.iter().map(move |way| (way.2, way.1.0 as f64 / extent)));
        let ranges = ranges.filter(|(bytes, _)| *bytes <= workspace).map(|(_, rate)| rate * positions);
        let bound = ranges.fold(least, f64::min);
        let best = known.iter().map(|(_, time, _)| *time).min();
        let bound = bound.is_finite().then(|| Nanos(bound.round() as u64));
        match self.profiler.measure_against(problem, algorithm, Rivals { best, bound })? {
            Some(measurement) => {
                let way = (algorithm.clone(), measurement.time, measurement.workspace);
                self.measured.entry(*problem).or_default().push(way);
                Ok(true)
            }
            None => {
                self.failed.insert((*problem, algorithm.clone()));
                Ok(false)
            }
        }
    }

    /// Everything measured, put together.
    fn candidates(&self) -> Vec<Candidate> {
        let extent = self.slicing.cuts().extent();
        let lengths: BTreeSet<usize> = self.sizes.values().flatten().map(ExactSizeIterator::len).collect();
        let mut ranges: BTreeSet<(usize, usize)> =
            self.sizes.values().flatten().map(|range| (range.start, range.end)).collect();
        let positions: Vec<usize> =
            std::iter::once(0).chain((1..extent).filter(|&at| self.slicing.cuts().allow(at))).collect();
        if positions.len() * lengths.len() <= MAX_PIECES {
            let all = positions.iter().flat_map(|&start| lengths.iter().map(move |length| (start, start + length)));
            ranges.extend(all.filter(|&(_, end)| end <= extent && self.slicing.cuts().allow(end)));
        }
        let piece = |(start, end): (usize, usize)| {
            let ways = self.measured.get(&self.slicing.part(start..end)?)?.clone();
            Some(Piece { range: start..end, ways })
        };
        let pieces: Vec<Piece> = ranges.into_iter().filter_map(piece).collect();
        slice(self.slicing.block().batch(), self.slicing.dimension(), extent, &pieces)
    }

    /// Measures slices under each limit, then measures parts of the answers again if they were given up after a single timed call.
    fn search(&mut self, problem: &Problem, limits: &[Bytes], others: &[Candidate]) -> Result<(), Error> {
        for &limit in limits {
            self.run(limit, others)?;
        }
        let mut settled: BTreeSet<(Problem, Algorithm)> = BTreeSet::new();
        loop {
            let all: Vec<Candidate> = others.iter().cloned().chain(self.candidates()).collect();
            let answers = limits.iter().filter_map(|&limit| divide(problem, &all, limit, DivisionCost::default()).ok());
            let mut hasty = Vec::new();
            for call in answers.filter(|answer| answer.is_sliced()).map(|answer| answer.calls(problem)) {
                for call in call? {
                    let key = (call.part.problem, call.algorithm);
                    if self.measured.contains_key(&key.0)
                        && self.profiler.is_hasty(&key.0, &key.1)
                        && settled.insert(key.clone())
                    {
                        hasty.push(key);
                    }
                }
            }
            if hasty.is_empty() {
                return Ok(());
            }
            for (part, algorithm) in hasty {
                let again = self.profiler.measure_again(&part, &algorithm)?;
                let Some(ways) = self.measured.get_mut(&part) else { continue };
                ways.retain(|(other, ..)| *other != algorithm);
                ways.extend(again.map(|again| (algorithm, again.time, again.workspace)));
            }
        }
    }
}
