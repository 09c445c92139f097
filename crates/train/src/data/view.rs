//! Sources made from others: some of the samples, or normalized ones.

use std::sync::Arc;

use tightfit_network::Shape;

use super::{Crop, Source};
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

    fn read_part(&self, index: usize, crop: Crop, sample: &mut [f32]) -> Result<u32, Error> {
        self.source.read_part(self.indices[index], crop, sample)
    }

    fn name(&self, index: usize) -> String {
        self.source.name(self.indices[index])
    }

    fn class_names(&self) -> Vec<String> {
        self.source.class_names()
    }

    fn is_labeled(&self) -> bool {
        self.source.is_labeled()
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

impl Normalization {
    /// Normalizes a sample of pixels from -1 to 1.
    fn apply(&self, sample: &mut [f32]) {
        let plane = (sample.len() / self.mean.len().max(1)).max(1);
        for (plane, (mean, std)) in sample.chunks_mut(plane).zip(self.mean.iter().zip(&self.std)) {
            plane.iter_mut().for_each(|value| *value = ((*value + 1.0) / 2.0 - mean) / std);
        }
    }
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
        self.by.apply(sample);
        Ok(label)
    }

    fn read_part(&self, index: usize, crop: Crop, sample: &mut [f32]) -> Result<u32, Error> {
        let label = self.source.read_part(index, crop, sample)?;
        self.by.apply(sample);
        Ok(label)
    }

    fn name(&self, index: usize) -> String {
        self.source.name(index)
    }

    fn class_names(&self) -> Vec<String> {
        self.source.class_names()
    }

    fn is_labeled(&self) -> bool {
        self.source.is_labeled()
    }

    fn threads(&self) -> usize {
        self.source.threads()
    }
}
