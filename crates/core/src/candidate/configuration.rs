//! Candidates, and configurations made of them.
//!
//! ```text
//! mini-batch  |----------------- 256 -----------------|
//! candidates  | 100 fft      | 100 fft      | 56 gemm |   one after another, in one workspace
//! time         = t(fft, 100) + t(fft, 100) + t(gemm, 56)
//! workspace    = max of the three
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Algorithm, Bytes, Nanos};

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

/// The cost of dividing on top of the micro-batches themselves, paid once by a configuration of two or more.
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
    /// `cost` counts only if there are two or more.
    pub fn new(mut parts: Vec<Candidate>, cost: DivisionCost) -> Configuration {
        parts.sort_by(|a, b| b.micro_batch.cmp(&a.micro_batch).then_with(|| a.cmp(b)));
        let cost = if parts.len() > 1 { cost } else { DivisionCost::default() };
        Configuration { parts, cost }
    }

    /// The candidates, largest micro-batch first.
    pub fn parts(&self) -> &[Candidate] {
        &self.parts
    }

    /// Whether there are two or more micro-batches.
    pub fn is_divided(&self) -> bool {
        self.parts.len() > 1
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
    /// Writes equal neighbors once: `2 x 100 fft + 56 gemm`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.parts.chunk_by(|a, b| a.micro_batch == b.micro_batch && a.algorithm == b.algorithm);
        let text: Vec<String> = runs
            .map(|run| match run.len() {
                1 => format!("{} {}", run[0].micro_batch, run[0].algorithm),
                times => format!("{times} x {} {}", run[0].micro_batch, run[0].algorithm),
            })
            .collect();
        f.pad(&text.join(" + "))
    }
}
