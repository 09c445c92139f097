//! Candidates, and configurations made of them.
//!
//! ```text
//! mini-batch  |----------------- 256 -----------------|
//! candidates  | 100 fft      | 100 fft      | 56 gemm |   one after another, in one workspace
//! time         = t(fft, 100) + t(fft, 100) + t(gemm, 56)
//! workspace    = max of the three
//! ```
//!
//! A candidate may compute its samples in [`Slices`](super::Slices), one call each: then its algorithm names them all, its
//! time is their sum, and its workspace the largest.

use std::cmp::Reverse;
use std::fmt;

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Error, Nanos};

use crate::problem::Part;
use crate::{Algorithm, Operation, Problem};

/// One algorithm on one micro-batch, with its time and exact workspace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Candidate {
    /// Samples in the call.
    pub micro_batch: usize,
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Time of the call.
    pub time: Nanos,
    /// Workspace of the call.
    pub workspace: Bytes,
}

impl Candidate {
    /// An algorithm on this number of samples, with its time and workspace.
    pub fn new(algorithm: Algorithm, micro_batch: usize, time: Nanos, workspace: Bytes) -> Candidate {
        Candidate { algorithm, micro_batch, time, workspace }
    }

    /// Calls of the library: one, or one for each slice.
    pub fn calls(&self) -> usize {
        self.algorithm.slices().map_or(1, |slices| slices.len())
    }
}

/// One call of the library in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// The part that it computes, and its position in the whole tensors.
    pub part: Part,
    /// The library's algorithm.
    pub algorithm: Algorithm,
    /// Whether it adds to the results of earlier calls. All but the first call of backward-filter do.
    pub adds: bool,
}

/// The cost of dividing on top of the calls themselves, paid once by a configuration of two or more.
///
/// Half-precision backward-filter pays it: it sums in 32-bit scratch, held through all micro-batches, and converts
/// once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DivisionCost {
    /// Added to the sum of the times.
    pub time: Nanos,
    /// Added to the largest workspace.
    pub workspace: Bytes,
}

impl DivisionCost {
    /// The cost of a kernel that cannot be divided: more time and workspace than any limit. Sums with it saturate.
    pub const NEVER: DivisionCost = DivisionCost { time: Nanos(u64::MAX), workspace: Bytes::UNLIMITED };
}

/// The usable candidates of one kernel.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidates {
    /// Every candidate within the limits, in no particular order.
    pub candidates: Vec<Candidate>,
    /// The cost of dividing this kernel.
    pub cost: DivisionCost,
}

/// Candidates that add up to a mini-batch, run one after another in one workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ConfigurationFields")]
pub struct Configuration {
    parts: Vec<Candidate>,
    cost: DivisionCost,
}

/// The file form of a configuration: sorted by [`Configuration::new`] like any other, unless its sums overflow.
#[derive(Deserialize)]
struct ConfigurationFields {
    parts: Vec<Candidate>,
    cost: DivisionCost,
}

impl TryFrom<ConfigurationFields> for Configuration {
    type Error = &'static str;

    fn try_from(ConfigurationFields { parts, cost }: ConfigurationFields) -> Result<Configuration, &'static str> {
        let batch = parts.iter().try_fold(0_usize, |sum, part| sum.checked_add(part.micro_batch));
        batch.ok_or("the samples of a configuration overflow")?;
        let time = parts.iter().try_fold(cost.time.0, |sum, part| sum.checked_add(part.time.0));
        time.ok_or("the time of a configuration overflows")?;
        let scratch = parts.iter().map(|part| part.workspace.0).max().unwrap_or(0);
        scratch.checked_add(cost.workspace.0).ok_or("the workspace of a configuration overflows")?;
        Ok(Configuration::new(parts, cost))
    }
}

impl Configuration {
    /// Makes a configuration of these candidates, largest micro-batch first, so that equal divisions compare equal.
    /// `cost` counts only if there are two or more calls.
    pub fn new(mut parts: Vec<Candidate>, cost: DivisionCost) -> Configuration {
        parts.sort_by(|a, b| b.micro_batch.cmp(&a.micro_batch).then_with(|| a.cmp(b)));
        let mut configuration = Configuration { parts, cost };
        if !configuration.is_divided() {
            configuration.cost = DivisionCost::default();
        }
        configuration
    }

    /// The configuration without times, to compare configurations regardless of time.
    pub fn without_times(&self) -> Configuration {
        let part = |part: &Candidate| Candidate { time: Nanos::ZERO, ..part.clone() };
        let cost = DivisionCost { time: Nanos::ZERO, ..self.cost };
        Configuration::new(self.parts.iter().map(part).collect(), cost)
    }

    /// The candidates, largest micro-batch first.
    pub fn parts(&self) -> &[Candidate] {
        &self.parts
    }

    /// Whether it makes two or more calls: micro-batches or slices.
    pub fn is_divided(&self) -> bool {
        self.parts.len() > 1 || self.is_sliced()
    }

    /// Whether any part runs in slices.
    pub fn is_sliced(&self) -> bool {
        self.parts.iter().any(|part| part.algorithm.slices().is_some())
    }

    /// The library's calls in order: the samples of the parts one after another, and the ranges of a sliced part one after another. Numbers of
    /// samples that larger powers of two divide come first. Each part then begins at a multiple of the power of two in its size, and has that
    /// alignment in memory.
    ///
    /// # Errors
    /// [`Error::BadProblem`] if the parts do not add up to the mini-batch of `problem`, or slices are not its own.
    pub fn calls(&self, problem: &Problem) -> Result<Vec<Call>, Error> {
        let bad = |what: String| Error::BadProblem { what: format!("{problem}: {what}") };
        let batch = self.parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.micro_batch));
        if batch != Some(problem.batch()) {
            return Err(bad(format!("the configuration `{self}` has {} samples", batch.unwrap_or(usize::MAX))));
        }
        let mut calls: Vec<Call> = Vec::with_capacity(self.parts.len());
        let mut done = 0;
        let mut parts: Vec<&Candidate> = self.parts.iter().collect();
        parts.sort_by_key(|part| Reverse(part.micro_batch.trailing_zeros()));
        for Candidate { micro_batch, algorithm, .. } in parts {
            let samples = done..done + micro_batch;
            done = samples.end;
            let mut add = |part: Part, algorithm: &Algorithm| {
                let adds = problem.operation() == Operation::BackwardFilter && !calls.is_empty();
                calls.push(Call { part, algorithm: algorithm.clone(), adds });
            };
            let Some(slices) = algorithm.slices() else {
                add(Part::of_samples(problem, samples)?, algorithm);
                continue;
            };
            if let Some(fault) = slices.fault(problem) {
                return Err(bad(fault));
            }
            for (range, algorithm) in slices.ranges() {
                add(Part::slice(problem, samples.clone(), slices.dimension(), range)?, algorithm);
            }
        }
        Ok(calls)
    }

    /// The cost of dividing in this configuration; zero if it is not divided.
    pub fn cost(&self) -> DivisionCost {
        self.cost
    }

    /// Total samples.
    pub fn batch(&self) -> usize {
        self.parts.iter().map(|part| part.micro_batch).sum()
    }

    /// Total time: the sum over the candidates, plus the cost of dividing.
    pub fn time(&self) -> Nanos {
        self.parts.iter().map(|part| part.time).sum::<Nanos>() + self.cost.time
    }

    /// Workspace: the largest of any candidate, plus the scratch of dividing.
    pub fn workspace(&self) -> Bytes {
        self.parts.iter().map(|part| part.workspace).max().unwrap_or_default() + self.cost.workspace
    }
}

impl fmt::Display for Configuration {
    /// Writes equal neighbors once: `2 x 100 fft + 56 gemm`. Slices are in parentheses after their samples. If they are the whole mini-batch, they
    /// appear alone: `2 x 1 (16 x d2 fft)`, `16 x d2 fft`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.parts.chunk_by(|a, b| a.micro_batch == b.micro_batch && a.algorithm == b.algorithm);
        let text: Vec<String> = runs
            .map(|run| {
                let Candidate { micro_batch, algorithm, .. } = &run[0];
                let one = match algorithm.slices() {
                    Some(slices) if self.parts.len() == 1 => slices.to_string(),
                    Some(slices) => format!("{micro_batch} ({slices})"),
                    None => format!("{micro_batch} {algorithm}"),
                };
                if run.len() == 1 { one } else { format!("{} x {one}", run.len()) }
            })
            .collect();
        f.pad(&text.join(" + "))
    }
}
