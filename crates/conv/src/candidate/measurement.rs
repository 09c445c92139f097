//! One timed (algorithm, micro-batch).

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tightfit_units::{Bytes, Nanos};

use super::Slices;
use crate::Candidate;

/// A library's algorithm by its stable name, such as `winograd-4x4` or `legacy:fft-tiling`, or [`Slices`] of a call, each
/// with a library's algorithm.
///
/// The name alone identifies it to the backend that offered it; the cache, files and reports use it verbatim.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct Algorithm {
    name: Arc<str>,
    // Parsed from the name; not part of equality and order.
    slices: Option<Arc<Slices>>,
}

/// The prefix of names of algorithms on copies.
pub const ON_COPIES: &str = "packed:";

impl Algorithm {
    /// The algorithm with this name.
    pub fn new(name: &str) -> Algorithm {
        let slices = if name.contains(' ') { name.parse().ok().map(Arc::new) } else { None };
        Algorithm { name: name.into(), slices }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The slices, unless it is a single algorithm of a library.
    pub fn slices(&self) -> Option<&Slices> {
        self.slices.as_deref()
    }

    /// The name of this algorithm on packed copies of views, as backends write it.
    pub fn on_copies(&self) -> Algorithm {
        Algorithm::new(&format!("{ON_COPIES}{}", self.name))
    }

    /// Whether it computes on copies.
    pub fn is_on_copies(&self) -> bool {
        self.name.starts_with(ON_COPIES)
    }

    /// The library's algorithms: itself, or the algorithms of its slices. One may be listed more than once.
    pub fn plain(&self) -> impl Iterator<Item = &Algorithm> {
        let own = self.slices.is_none().then_some(self);
        own.into_iter().chain(self.slices.iter().flat_map(|slices| slices.algorithms()))
    }
}

impl From<Slices> for Algorithm {
    fn from(slices: Slices) -> Algorithm {
        Algorithm { name: slices.to_string().into(), slices: Some(Arc::new(slices)) }
    }
}

impl From<String> for Algorithm {
    fn from(name: String) -> Algorithm {
        Algorithm::new(&name)
    }
}

impl From<Algorithm> for String {
    fn from(algorithm: Algorithm) -> String {
        algorithm.name.as_ref().to_owned()
    }
}

impl PartialEq for Algorithm {
    fn eq(&self, other: &Algorithm) -> bool {
        self.name == other.name
    }
}

impl Eq for Algorithm {}

impl PartialOrd for Algorithm {
    fn partial_cmp(&self, other: &Algorithm) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Algorithm {
    fn cmp(&self, other: &Algorithm) -> Ordering {
        self.name.cmp(&other.name)
    }
}

impl Hash for Algorithm {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.name)
    }
}

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
    /// The measurement as a candidate for configurations.
    pub fn candidate(&self) -> Candidate {
        Candidate {
            algorithm: self.algorithm.clone(),
            micro_batch: self.micro_batch,
            time: self.time,
            workspace: self.workspace,
        }
    }
}
