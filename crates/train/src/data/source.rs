//! Labeled samples with random access.

use tightfit_network::Shape;

use super::Crop;
use crate::Error;

/// Labeled samples with random access.
pub trait Source: Send + Sync {
    /// The shape of a sample.
    fn shape(&self) -> Shape;

    /// Number of classes; labels are smaller.
    fn classes(&self) -> usize;

    /// Number of samples, at least one.
    fn len(&self) -> usize;

    /// Whether it is empty; never true.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes sample `index` (c, h, w) to `sample`, whose length matches the shape, and returns its label.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read.
    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error>;

    /// Like [`Source::read`], of a random part of the sample, scaled to its shape. Pictures larger than the sample are cut
    /// before they are scaled.
    ///
    /// # Errors
    /// The errors of [`Source::read`].
    fn read_part(&self, index: usize, crop: Crop, sample: &mut [f32]) -> Result<u32, Error> {
        let label = self.read(index, sample)?;
        crop.apply(self.shape(), sample);
        Ok(label)
    }

    /// The name of a sample in reports: its file, or its number.
    fn name(&self, index: usize) -> String {
        index.to_string()
    }

    /// The names of the classes, by label; none if they have only numbers.
    fn class_names(&self) -> Vec<String> {
        Vec::new()
    }

    /// A line on the files of its folders that are no samples, if there are any. Hidden ones are not counted.
    fn left_out(&self) -> Option<String> {
        None
    }

    /// Whether the samples have labels; [`Source::read`] returns 0 if they have none.
    fn is_labeled(&self) -> bool {
        true
    }

    /// Suggested number of threads for reading a batch; one if samples are only copied from memory.
    fn threads(&self) -> usize {
        1
    }
}

/// Converts a gray value to a number from -1 to 1.
pub(super) fn pixel(byte: u8) -> f32 {
    f32::from(byte) / 127.5 - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pixels_reach_from_minus_one_to_one() {
        assert_eq!([0, 255].map(pixel), [-1.0, 1.0]);
    }
}
