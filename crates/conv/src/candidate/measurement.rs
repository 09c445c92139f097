//! One timed (algorithm, micro-batch).

use std::fmt;

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Nanos};

use super::Algorithm;
use crate::Candidate;

/// A library's notes on an algorithm, as a set: its arithmetic and its setup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Notes(pub u32);

impl Notes {
    /// No notes.
    pub const NONE: Notes = Notes(0);
    /// Uses tensor cores.
    pub const TENSOR_CORE: Notes = Notes(1);
    /// Converts its inputs to a narrower type.
    pub const DOWN_CONVERT: Notes = Notes(2);
    /// Sums in a narrower type.
    pub const REDUCED_PRECISION: Notes = Notes(4);
    /// Goes through Fourier transforms.
    pub const FFT: Notes = Notes(8);
    /// Goes through Winograd transforms.
    pub const WINOGRAD: Notes = Notes(16);
    /// Two runs may differ in the last bits.
    pub const NONDETERMINISTIC: Notes = Notes(32);

    /// Is compiled during setup, which takes up to a second.
    pub const COMPILED: Notes = Notes(64);

    const NAMES: [(Notes, &'static str); 7] = [
        (Notes::TENSOR_CORE, "tensor-core"),
        (Notes::DOWN_CONVERT, "down-convert"),
        (Notes::REDUCED_PRECISION, "reduced-precision"),
        (Notes::FFT, "fft"),
        (Notes::WINOGRAD, "winograd"),
        (Notes::NONDETERMINISTIC, "nondeterministic"),
        (Notes::COMPILED, "compiled"),
    ];

    /// Whether every note of `other` is in this set.
    pub fn contains(self, other: Notes) -> bool {
        self.0 & other.0 == other.0
    }

    /// The notes that affect the rounding of results: all except reproducibility and setup.
    pub fn class(self) -> Notes {
        Notes(self.0 & !Notes::NONDETERMINISTIC.with(Notes::COMPILED).0)
    }

    /// The notes of both sets.
    pub fn with(self, other: Notes) -> Notes {
        Notes(self.0 | other.0)
    }
}

impl fmt::Display for Notes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            Notes::NAMES.iter().filter(|(note, _)| self.contains(*note)).map(|(_, name)| *name).collect();
        let joined = names.join("+");
        f.pad(if names.is_empty() { "plain" } else { &joined })
    }
}

/// The measured time of one algorithm on one micro-batch, with its spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Samples in the call.
    pub micro_batch: usize,
    /// Median time of a call, micro-batches back to back.
    pub time: Nanos,
    /// Median time of a single call with its launch gaps, if the backend measures it separately.
    pub single: Option<Nanos>,
    /// Exact workspace of the call.
    pub workspace: Bytes,
    /// Spread of the repeats: (third quartile - first quartile) / median.
    pub spread: f64,
    /// Number of repeats behind the median.
    pub repeats: u32,
    /// The library's notes on its arithmetic.
    pub notes: Notes,
}

impl Measurement {
    /// A measurement of one call, without notes.
    pub fn once(algorithm: Algorithm, micro_batch: usize, time: Nanos, workspace: Bytes) -> Measurement {
        Measurement {
            algorithm,
            micro_batch,
            time,
            single: None,
            workspace,
            spread: 0.0,
            repeats: 1,
            notes: Notes::NONE,
        }
    }

    /// The measurement as a candidate for configurations.
    pub fn candidate(&self) -> Candidate {
        Candidate::new(self.algorithm.clone(), self.micro_batch, self.time, self.workspace)
    }
}
