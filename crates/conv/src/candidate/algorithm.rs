//! Algorithms by name, and slices: a block of samples computed in ranges along one spatial axis, each with a separate algorithm.
//!
//! ```text
//! d2 fft + 14 x d2 winograd + d2 fft      16 ranges of 2 along d; those at the edges take another algorithm
//! ```
//!
//! This text is their name, with equal neighbors written once. It is also the name of the [`Algorithm`] of a candidate
//! that runs so: files, tables and programs hold it like any other.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tightfit_units::Error;

use crate::Problem;
use crate::problem::Dimension;

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

/// The ranges of a block of samples along one spatial axis, in order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slices {
    dimension: Dimension,
    runs: Vec<Run>,
}

/// Equal neighbors.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Run {
    times: usize,
    extent: usize,
    algorithm: Algorithm,
}

impl Slices {
    /// Slices of these extents along `dimension`, in order, each with the library's algorithm that computes it.
    ///
    /// # Errors
    /// [`Error::BadOption`] for fewer than two slices, for an empty or itself sliced one, or for over 2^31 positions.
    pub fn new(dimension: Dimension, slices: impl IntoIterator<Item = (usize, Algorithm)>) -> Result<Slices, Error> {
        let mut runs: Vec<Run> = Vec::new();
        for (extent, algorithm) in slices {
            match runs.last_mut() {
                Some(run) if run.extent == extent && run.algorithm == algorithm => run.times += 1,
                _ => runs.push(Run { times: 1, extent, algorithm }),
            }
        }
        Slices { dimension, runs }.checked()
    }

    fn checked(self) -> Result<Slices, Error> {
        let bad = |what: String| Err(Error::BadOption { what });
        if self.runs.iter().any(|run| run.algorithm.slices().is_some()) {
            return bad(format!("`{self}`: a slice is itself sliced"));
        }
        if self.runs.iter().any(|run| run.extent == 0 || run.times == 0) {
            return bad(format!("`{self}`: a slice is empty"));
        }
        let mut runs = self.runs.iter();
        let extent = runs.try_fold(0usize, |sum, run| sum.checked_add(run.times.checked_mul(run.extent)?));
        if extent.is_none_or(|extent| extent > 1 << 31) {
            return bad(format!("`{self}`: the slices have over 2^31 positions"));
        }
        if self.len() < 2 { bad(format!("`{self}`: there are fewer than two slices")) } else { Ok(self) }
    }

    /// The axis.
    pub fn dimension(&self) -> Dimension {
        self.dimension
    }

    /// How many slices; at least two.
    #[expect(clippy::len_without_is_empty, reason = "there are always two or more")]
    pub fn len(&self) -> usize {
        self.runs.iter().map(|run| run.times).sum()
    }

    /// The positions of all slices together.
    pub fn extent(&self) -> usize {
        self.runs.iter().map(|run| run.times * run.extent).sum()
    }

    /// The distinct algorithms' names in order; an algorithm may be listed more than once.
    pub fn algorithms(&self) -> impl Iterator<Item = &Algorithm> {
        self.runs.iter().map(|run| &run.algorithm)
    }

    /// Runs of equal neighbors in order: their number, the extent of each, and their algorithm.
    pub fn runs(&self) -> impl Iterator<Item = (usize, usize, &Algorithm)> {
        self.runs.iter().map(|run| (run.times, run.extent, &run.algorithm))
    }

    /// The range and algorithm of each slice, in order.
    pub fn ranges(&self) -> impl Iterator<Item = (Range<usize>, &Algorithm)> {
        let mut start = 0;
        self.runs.iter().flat_map(|run| std::iter::repeat_n((run.extent, &run.algorithm), run.times)).map(
            move |(extent, algorithm)| {
                let range = start..start + extent;
                start = range.end;
                (range, algorithm)
            },
        )
    }

    /// The reason why these are not slices of `problem`; `None` if they are.
    pub fn fault(&self, problem: &Problem) -> Option<String> {
        let (dimension, extent) = (self.dimension, self.dimension.extent(problem));
        let found = self.extent();
        (found != extent).then(|| format!("slices have {dimension}{found} together, not {dimension}{extent}"))
    }
}

impl fmt::Display for Slices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dimension = self.dimension;
        let run = |Run { times, extent, algorithm }: &Run| match times {
            1 => format!("{dimension}{extent} {algorithm}"),
            _ => format!("{times} x {dimension}{extent} {algorithm}"),
        };
        let text: Vec<String> = self.runs.iter().map(run).collect();
        f.pad(&text.join(" + "))
    }
}

impl FromStr for Slices {
    type Err = Error;

    /// Reads what is written.
    ///
    /// # Errors
    /// [`Error::BadOption`] naming what is wrong.
    fn from_str(text: &str) -> Result<Slices, Error> {
        let bad = || Error::BadOption {
            what: format!("`{text}` does not name slices; they read as `d3 gemm + 14 x d2 fft + d1 gemm`"),
        };
        let run = |text: &str| {
            let (times, slice) = match text.split_once(" x ") {
                Some((times, slice)) => (times.parse::<usize>().ok().filter(|&times| times > 1)?, slice),
                None => (1, text),
            };
            let (size, name) = slice.split_once(' ').filter(|(_, name)| !name.is_empty())?;
            let dimension: Dimension = size.get(..1)?.parse().ok()?;
            let extent = size[1..].parse().ok()?;
            Some((dimension, Run { times, extent, algorithm: Algorithm::new(name) }))
        };
        let runs: Option<Vec<(Dimension, Run)>> = text.split(" + ").map(run).collect();
        let runs = runs.ok_or_else(bad)?;
        let dimension = runs.first().ok_or_else(bad)?.0;
        if runs.iter().any(|(other, _)| *other != dimension) {
            return Err(bad());
        }
        let slices = Slices { dimension, runs: runs.into_iter().map(|(_, run)| run).collect() }.checked()?;
        // Numbers have one form, and equal neighbors are one run.
        let merged =
            slices.runs.windows(2).any(|two| two[0].extent == two[1].extent && two[0].algorithm == two[1].algorithm);
        if merged || slices.to_string() != text { Err(bad()) } else { Ok(slices) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parse_and_print_are_inverse(
            dimension in prop::sample::select(&Dimension::ALL[..]),
            slices in prop::collection::vec((1usize..4, prop::sample::select(vec!["gemm", "legacy:fft-tiling", "x"])), 2..9),
        ) {
            let named = slices.iter().map(|&(extent, name)| (extent, Algorithm::new(name)));
            let made = Slices::new(dimension, named).unwrap();
            prop_assert_eq!(&made.to_string().parse::<Slices>().unwrap(), &made);
            let named = Algorithm::new(&made.to_string());
            prop_assert_eq!(named.slices(), Some(&made));
            let ranges: Vec<(usize, &str)> = made.ranges().map(|(range, one)| (range.len(), one.name())).collect();
            prop_assert_eq!((made.len(), ranges), (slices.len(), slices));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[0-9]{0,21}[ x+dhw0-9a]{0,30}") {
            if let Some(slices) = Algorithm::new(&text).slices() {
                prop_assert_eq!(slices.to_string(), text);
            }
        }
    }

    #[test]
    fn other_names_are_plain_algorithms() {
        for name in [
            "gemm",
            "legacy:fft-tiling",
            "d2 gemm",
            "2 x d2",
            "2 x d0 gemm",
            "02 x d2 gemm",
            "2 x d2 gemm + 1 x d2 fft",
            "d2 gemm + d2 gemm",
            "d2 gemm + h2 gemm",
            "99999999999 x d2 gemm",
            "3 x é2 gemm",
        ] {
            assert!(Algorithm::new(name).slices().is_none(), "{name}");
        }
        let slices = "d3 gemm + 14 x d2 fft + d1 gemm".parse::<Slices>().unwrap();
        assert_eq!((slices.len(), slices.extent()), (16, 32));
    }
}
