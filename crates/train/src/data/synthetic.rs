//! Generated samples: any shape, reproducible by seed, and learnable.

use tightfit_cpu::random;
use tightfit_network::Shape;

use super::Source;
use crate::Error;

/// Noise between -1 and 1, shifted a little up or down in every channel by its class.
///
/// Nothing is stored, so networks with any input can be timed and tested without data.
#[derive(Clone, Copy, Debug)]
pub struct Synthetic {
    shape: Shape,
    classes: usize,
    seed: u64,
}

/// Samples per epoch.
const SAMPLES: usize = 1 << 16;
/// The largest shift; the noise has amplitude 1 minus this.
const SHIFT: f32 = 0.25;

impl Synthetic {
    /// A source of samples of this shape in `classes` classes (at least one).
    pub fn new(shape: Shape, classes: usize, seed: u64) -> Synthetic {
        Synthetic { shape, classes: classes.clamp(1, u32::MAX as usize), seed }
    }
}

/// The upper 24 bits as a number from -1 to 1.
fn unit(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u32 << 23) as f32 - 1.0
}

impl Source for Synthetic {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn len(&self) -> usize {
        SAMPLES
    }

    /// Generating takes longer than some networks train.
    fn threads(&self) -> usize {
        std::thread::available_parallelism().map_or(1, |threads| threads.get())
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let key = random::key(&[self.seed, index as u64]);
        let class = key % self.classes as u64;
        let channel_len = (sample.len() / self.shape.channels().max(1)).max(1);
        for (channel, values) in sample.chunks_mut(channel_len).enumerate() {
            let shift = SHIFT * unit(random::key(&[class, channel as u64]));
            for (at, value) in values.iter_mut().enumerate() {
                let noise = unit(random::key(&[key.wrapping_add((channel * channel_len + at) as u64)]));
                *value = (1.0 - SHIFT) * noise + shift;
            }
        }
        // Below the number of classes, which was clamped to 32 bits.
        Ok(class as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(seed: u64, index: usize) -> (Vec<f32>, u32) {
        let mut sample = vec![0.0; 300];
        let label = Synthetic::new(Shape::image(3, 10, 10), 5, seed).read(index, &mut sample).unwrap();
        (sample, label)
    }

    #[test]
    fn a_seed_repeats_and_samples_differ() {
        assert_eq!(sample(1, 2), sample(1, 2));
        assert_ne!(sample(1, 2).0, sample(1, 3).0);
        assert_ne!(sample(1, 2).0, sample(2, 2).0);
    }

    #[test]
    fn values_and_labels_are_in_range_and_all_classes_come() {
        let samples: Vec<_> = (0..200).map(|index| sample(7, index)).collect();
        assert!(samples.iter().flat_map(|(values, _)| values).all(|value| value.abs() <= 1.0));
        let counts = (0..5).map(|class| samples.iter().filter(|(_, label)| *label == class).count());
        assert!(counts.clone().all(|count| count > 10), "{:?}", counts.collect::<Vec<_>>());
    }

    /// Channel means distinguish classes: they are closer within one class than between two.
    #[test]
    fn classes_can_be_learned() {
        let mean = |(values, label): (Vec<f32>, u32)| (values[..100].iter().sum::<f32>() / 100.0, label);
        let means: Vec<_> = (0..500).map(|index| mean(sample(3, index))).collect();
        let of_class = |class| {
            let values: Vec<f32> = means.iter().filter(|(_, label)| *label == class).map(|(mean, _)| *mean).collect();
            values.iter().sum::<f32>() / values.len() as f32
        };
        let of_classes: Vec<f32> = (0..5).map(of_class).collect();
        let widest =
            of_classes.iter().copied().fold(f32::MIN, f32::max) - of_classes.iter().copied().fold(f32::MAX, f32::min);
        assert!(widest > 0.1, "{of_classes:?}");
    }
}
