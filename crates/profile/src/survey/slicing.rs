//! The axis along which a block of samples is sliced, and the slices.

use std::cmp::Reverse;
use std::ops::Range;

use tightfit_conv::candidate::Slices;
use tightfit_conv::problem::{Cuts, Dimension, Part};
use tightfit_conv::{Algorithm, Problem};
use tightfit_units::Error;

/// Positions that a dimension should have to be divided before the next one.
const MIN_LENGTH: usize = 8;

/// A block of samples and the axis along which it is sliced.
#[derive(Clone, Copy, Debug)]
pub struct Slicing {
    block: Problem,
    dimension: Dimension,
    cuts: Cuts,
}

impl Slicing {
    /// The divisible axes of a block, in the order to try them: first the axes that are long enough, by falling stride, so that slices are
    /// contiguous; then the others, the longest first.
    pub fn axes(block: Problem) -> Vec<Slicing> {
        let all = Dimension::ALL.map(|dimension| Slicing { block, dimension, cuts: Cuts::new(&block, dimension) });
        let mut axes: Vec<Slicing> = all.into_iter().filter(|slicing| slicing.positions() > 1).collect();
        axes.sort_by_key(|slicing| Reverse(slicing.positions().min(MIN_LENGTH)));
        axes
    }

    fn positions(&self) -> usize {
        self.cuts.extent() / self.cuts.step()
    }

    /// The block.
    pub fn block(&self) -> Problem {
        self.block
    }

    /// The axis.
    pub fn dimension(&self) -> Dimension {
        self.dimension
    }

    /// Whether a range consists of many short runs in memory: a spatial axis with longer strides is not cut.
    pub fn is_scattered(&self) -> bool {
        let outer = Dimension::ALL.into_iter().take_while(|dimension| *dimension != self.dimension);
        outer.into_iter().any(|dimension| dimension.extent(&self.block) > 1)
    }

    /// Where it may be cut.
    pub fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Sizes to try, falling: the extent's halves, thirds, quarters, sixths and so on.
    pub fn ladder(&self) -> Vec<usize> {
        let (extent, step) = (self.cuts.extent(), self.cuts.step());
        let powers = std::iter::successors(Some(2usize), |parts| parts.checked_mul(2));
        let parts = powers.flat_map(|parts| [parts, parts + parts / 2]).take_while(|&parts| parts <= 2 * extent);
        let mut sizes: Vec<usize> = parts.map(|parts| extent.div_ceil(parts).next_multiple_of(step)).collect();
        sizes.retain(|&size| size < extent);
        sizes.dedup();
        sizes
    }

    /// The problem of a range; `None` if it cannot be computed alone.
    pub fn part(&self, range: Range<usize>) -> Option<Problem> {
        Part::slice(&self.block, 0..self.block.batch(), self.dimension, range).ok().map(|part| part.problem)
    }

    /// The problems of all ranges of a size, in order; `None` if one cannot be computed alone.
    pub fn parts(&self, size: usize) -> Option<Vec<Problem>> {
        self.cuts.ranges(size).into_iter().map(|range| self.part(range)).collect()
    }

    /// Slices of this size, all by one algorithm.
    ///
    /// # Errors
    /// The errors of [`Slices::new`].
    pub fn slices(&self, size: usize, algorithm: &Algorithm) -> Result<Algorithm, Error> {
        let ranges = self.cuts.ranges(size);
        let slices = Slices::new(self.dimension, ranges.into_iter().map(|range| (range.len(), algorithm.clone())))?;
        Ok(slices.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_axis_that_is_long_enough_comes_first() {
        let axes = |line: &str| Slicing::axes(line.parse().unwrap());
        let named = |line: &str| axes(line).iter().map(|slicing| slicing.dimension().to_string()).collect::<String>();
        assert_eq!(named("forward n1 c8 d9 h16 w16 k8 t3 r3 s3 pad1 f32"), "dhw");
        // The width has four places where both sides stay aligned.
        assert_eq!(named("forward n1 c8 d4 h16 w16 k8 t3 r3 s3 pad1 f32"), "hdw");
        assert_eq!(named("forward n1 c8 d4 h6 w5 k8 t3 r3 s3 pad1 f32"), "hwd");
        assert_eq!(named("forward n1 c8 h3 w9 k8 r3 s3 f32"), "w");
        assert_eq!(named("forward n1 c8 h3 w3 k8 r3 s3 f32"), "");
        let video = axes("forward n1 c8 d9 h16 w16 k8 t3 r3 s3 pad1 f32")[0];
        assert_eq!(video.ladder(), vec![5, 3, 2, 1]);
        assert_eq!(video.parts(4).unwrap().len(), 3);
        assert_eq!(video.slices(4, &Algorithm::new("fft")).unwrap().name(), "2 x d4 fft + d1 fft");
    }
}
