//! Tensors [point][row][column] of transformed tiles: written in strips by several threads, and read a block at a time.

use std::ops::Range;

/// Part of one row of a tensor [point][row][column]: its columns from `first` on, one slice a point.
pub struct Strip<'a> {
    /// The row.
    pub row: usize,
    /// The first column.
    pub first: usize,
    /// How many columns.
    pub width: usize,
    points: Vec<&'a mut [f32]>,
}

impl Strip<'_> {
    /// Stores the first lanes of a block's points at these columns.
    #[inline(always)]
    pub fn write(&mut self, block: &[f32], lanes: usize, columns: Range<usize>, float: usize) {
        let (start, whole) = (columns.start * float, columns.len() == lanes);
        for (into, from) in self.points.iter_mut().zip(block.chunks_exact(lanes * float)) {
            if whole {
                // A length known to the compiler: a vector or two, not a call.
                into[start..start + lanes * float].copy_from_slice(from);
            } else {
                let into = &mut into[start..columns.end * float];
                into.copy_from_slice(&from[..into.len()]);
            }
        }
    }
}

/// Cuts a tensor [point][row][column] into strips of `step` columns, so that threads may fill them.
pub fn strips(tensor: &mut [f32], rows: usize, columns: usize, step: usize, float: usize) -> Vec<Strip<'_>> {
    let parts = columns.div_ceil(step);
    let mut strips: Vec<Strip> = (0..rows * parts)
        .map(|index| {
            let first = index % parts * step;
            Strip { row: index / parts, first, width: step.min(columns - first), points: Vec::new() }
        })
        .collect();
    for point in tensor.chunks_mut(rows * columns * float) {
        let pieces = point.chunks_mut(columns * float).flat_map(|row| row.chunks_mut(step * float));
        strips.iter_mut().zip(pieces).for_each(|(strip, piece)| strip.points.push(piece));
    }
    strips
}

/// Loads `count` lanes of a block's points from a tensor whose points are `stride` elements apart; the other lanes
/// become zero.
#[inline(always)]
pub fn read(from: &[f32], stride: usize, at: usize, block: &mut [f32], lanes: usize, count: usize, float: usize) {
    for (point, block) in block.chunks_exact_mut(lanes * float).enumerate() {
        if count == lanes {
            // A length known to the compiler: a vector or two, not a call.
            block.copy_from_slice(&from[(point * stride + at) * float..][..lanes * float]);
            continue;
        }
        let (into, rest) = block.split_at_mut(count * float);
        into.copy_from_slice(&from[(point * stride + at) * float..][..count * float]);
        rest.fill(0.0);
    }
}
