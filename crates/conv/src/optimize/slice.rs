//! The fastest slices of a block of samples under every workspace: adjacent ranges along one axis.
//!
//! ```text
//! position    0    2    4    6    8        ranges may start where another ends
//! d2 fft      |----|----|----|----|        5 + 4 + 4 + 5
//! d4 fft      |---------|---------|        9 + 9          needs more workspace
//! ```
//!
//! Time is the length of a path from the first position to the last, over the ranges within the workspace. Ranges at the edges have other times than
//! ranges inside, and may run other algorithms.

use std::collections::BTreeMap;
use std::ops::Range;

use tightfit_units::{Bytes, Nanos};

use crate::candidate::Slices;
use crate::problem::Dimension;
use crate::{Algorithm, Candidate};

/// A measured range, with the algorithms that compute it.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Its positions.
    pub range: Range<usize>,
    /// Algorithm, time and workspace of each way to compute it.
    pub ways: Vec<(Algorithm, Nanos, Bytes)>,
}

/// The best path to a position: its time, its calls, and the range that ends there.
type Reached<'a> = (Nanos, usize, Option<(usize, &'a Algorithm)>);

/// The slices of `micro_batch` samples that no others beat in both time and workspace, as candidates by rising workspace. They cover `0..extent`. Of
/// equally fast slicings the one with the fewest slices wins. Empty if the pieces do not reach the end, or only in one range.
///
/// - Cost: O(ways × distinct workspaces).
pub fn slice(micro_batch: usize, dimension: Dimension, extent: usize, pieces: &[Piece]) -> Vec<Candidate> {
    let mut order: Vec<&Piece> = pieces.iter().filter(|piece| piece.range.len() < extent).collect();
    order.sort_by_key(|piece| (piece.range.start, piece.range.end));
    let mut limits: Vec<Bytes> = order.iter().flat_map(|piece| piece.ways.iter().map(|way| way.2)).collect();
    limits.sort_unstable();
    limits.dedup();
    let mut found: Vec<Candidate> = Vec::new();
    for limit in limits {
        let Some((time, slices)) = fastest(extent, &order, limit) else { continue };
        if found.last().is_some_and(|last| last.time <= time) {
            continue;
        }
        let Ok(slices) = Slices::new(dimension, slices) else { continue };
        found.push(Candidate { micro_batch, algorithm: slices.into(), time, workspace: limit });
    }
    found
}

/// The fastest slices within a workspace. Pieces come by rising start, so every position is final before one begins there.
fn fastest(extent: usize, pieces: &[&Piece], limit: Bytes) -> Option<(Nanos, Vec<(usize, Algorithm)>)> {
    let mut best: BTreeMap<usize, Reached<'_>> = BTreeMap::from([(0, (Nanos::ZERO, 0, None))]);
    for Piece { range, ways } in pieces {
        let Some(&(before, calls, _)) = best.get(&range.start) else { continue };
        let within = ways.iter().filter(|(_, _, workspace)| *workspace <= limit);
        let Some((algorithm, time, _)) = within.min_by_key(|(algorithm, time, bytes)| (*time, *bytes, algorithm))
        else {
            continue;
        };
        let reached = (before + *time, calls + 1);
        if best.get(&range.end).is_none_or(|&(time, calls, _)| reached < (time, calls)) {
            best.insert(range.end, (reached.0, reached.1, Some((range.start, algorithm))));
        }
    }
    let time = best.get(&extent)?.0;
    let (mut slices, mut end) = (Vec::new(), extent);
    while let Some(&(_, _, Some((start, algorithm)))) = best.get(&end) {
        slices.push((end - start, algorithm.clone()));
        end = start;
    }
    slices.reverse();
    Some((time, slices))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every covering by these pieces, as its time and workspace.
    fn all(at: usize, extent: usize, pieces: &[Piece]) -> Vec<(Nanos, Bytes)> {
        if at == extent {
            return vec![(Nanos::ZERO, Bytes::ZERO)];
        }
        let mut found = Vec::new();
        for piece in pieces.iter().filter(|piece| piece.range.start == at && piece.range.len() < extent) {
            for (time, workspace) in all(piece.range.end, extent, pieces) {
                for way in &piece.ways {
                    found.push((time + way.1, workspace.max(way.2)));
                }
            }
        }
        found
    }

    proptest! {
        #[test]
        fn slices_are_the_front_of_all_coverings(
            extent in 2usize..7,
            rows in prop::collection::vec((0usize..6, 1usize..5, 0usize..3, 1u64..9, 0u64..4), 1..14),
        ) {
            let mut pieces: Vec<Piece> = Vec::new();
            for (start, length, name, time, bytes) in rows {
                let range = start..start + length;
                if range.end <= extent {
                    let way = (Algorithm::new(["a", "b", "c"][name]), Nanos(time), Bytes(bytes));
                    pieces.push(Piece { range, ways: vec![way] });
                }
            }
            let coverings = all(0, extent, &pieces);
            let found = slice(3, Dimension::H, extent, &pieces);
            for candidate in &found {
                let point = (candidate.time, candidate.workspace);
                prop_assert!(coverings.contains(&point), "{candidate:?}");
                prop_assert!(!coverings.iter().any(|&(t, w)| (t, w) != point && t <= point.0 && w <= point.1));
                let slices = candidate.algorithm.slices().unwrap();
                prop_assert_eq!((slices.extent(), candidate.micro_batch), (extent, 3));
            }
            for (time, workspace) in coverings {
                prop_assert!(found.iter().any(|one| one.time <= time && one.workspace <= workspace));
            }
        }
    }
}
