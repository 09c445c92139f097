//! The pinned memory of trials: random data for their tensors, and room for their outputs.

use std::sync::{Arc, Mutex};

use tightfit_conv::problem::Storage;

use super::scratch::random;
use crate::CudaError;
use crate::safe::{Context, PinnedBuffer};

/// Elements of random data. A prime, so that no dimension of a tensor repeats in step with it.
const PATTERN_ELEMENTS: usize = 262_139;

/// Random numbers that fill the tensors of trials repeatedly. Each tensor begins at another position among them.
pub struct Pattern {
    values: Vec<f32>,
    /// All of them twice, so that every place has as many after it.
    pinned: PinnedBuffer,
    storage: Storage,
}

impl Pattern {
    /// Draws the numbers.
    pub(super) fn new(context: &Arc<Context>, storage: Storage) -> Result<Pattern, CudaError> {
        let bytes = random(PATTERN_ELEMENTS, storage);
        let mut pinned = PinnedBuffer::new(context, 2 * bytes.len())?;
        pinned[..bytes.len()].copy_from_slice(&bytes);
        pinned[bytes.len()..].copy_from_slice(&bytes);
        Ok(Pattern { values: storage.decode(&bytes), pinned, storage })
    }

    /// The bytes that a tensor begins with and repeats.
    pub(super) fn part(&self, tensor: usize) -> &[u8] {
        let begin = place(tensor) * self.storage.size();
        &self.pinned[begin..begin + PATTERN_ELEMENTS * self.storage.size()]
    }

    /// The element of a tensor (0 for data, 1 for other, 2 for output) at a flat index.
    pub fn element(&self, tensor: usize, index: usize) -> f32 {
        self.values[(place(tensor) + index) % PATTERN_ELEMENTS]
    }
}

/// Where a tensor begins.
fn place(tensor: usize) -> usize {
    tensor * PATTERN_ELEMENTS / 3
}

/// Pinned memory for outputs. Freeing any would wait for the device, so it is used again.
pub(super) type Buffers = Mutex<Vec<PinnedBuffer>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_begin_at_places_of_their_own() {
        assert!((2..=512).all(|factor: usize| !PATTERN_ELEMENTS.is_multiple_of(factor)), "a prime");
        assert_eq!([place(0), place(1), place(2)], [0, PATTERN_ELEMENTS / 3, PATTERN_ELEMENTS * 2 / 3]);
    }
}
