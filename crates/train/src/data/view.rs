//! Sources made from others: some of the samples, or normalized ones.

use std::sync::Arc;

use tightfit_core::network::Shape;

use super::Source;
use crate::Error;

/// Some of the samples of a source.
pub struct Subset {
    /// The source.
    pub source: Arc<dyn Source>,
    /// The samples, by their index in the source.
    pub indices: Vec<usize>,
}

impl Source for Subset {
    fn shape(&self) -> Shape {
        self.source.shape()
    }

    fn classes(&self) -> usize {
        self.source.classes()
    }

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        self.source.read(self.indices[index], sample)
    }

    fn threads(&self) -> usize {
        self.source.threads()
    }
}

/// The mean and the standard deviation of each channel, of pixels from 0 (black) to 1, as torchvision counts them.
#[derive(Clone, Debug, PartialEq)]
pub struct Normalization {
    /// Means.
    pub mean: Vec<f32>,
    /// Standard deviations.
    pub std: Vec<f32>,
}

/// A source whose pixels have their channel's mean subtracted and are divided by its standard deviation.
pub struct Normalized {
    /// The source, with pixels from -1 to 1.
    pub source: Arc<dyn Source>,
    /// One mean and one standard deviation for each of its channels.
    pub by: Normalization,
}

impl Source for Normalized {
    fn shape(&self) -> Shape {
        self.source.shape()
    }

    fn classes(&self) -> usize {
        self.source.classes()
    }

    fn len(&self) -> usize {
        self.source.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let label = self.source.read(index, sample)?;
        let plane = (sample.len() / self.by.mean.len().max(1)).max(1);
        for (plane, (mean, std)) in sample.chunks_mut(plane).zip(self.by.mean.iter().zip(&self.by.std)) {
            plane.iter_mut().for_each(|value| *value = ((*value + 1.0) / 2.0 - mean) / std);
        }
        Ok(label)
    }

    fn threads(&self) -> usize {
        self.source.threads()
    }
}
