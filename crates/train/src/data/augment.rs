//! Random changes of training samples. The change of a sample depends only on the seed and its place in the run, so
//! a resumed run continues with the same changes.

use tightfit_cpu::random;
use tightfit_network::Shape;

use super::Crop;

/// Random changes of training samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Augmentation {
    /// Mirrors every other sample, at random, left to right.
    pub flip: bool,
    /// Shifts every sample by up to this many pixels in each direction; pixels that come in copy the nearest edge.
    pub shift: usize,
    /// Takes a random part of every sample, scaled to its shape, before the other changes.
    pub crop: bool,
    /// Seed.
    pub seed: u64,
}

impl Augmentation {
    /// The part to take of the sample that is read `place`-th in the run, if parts are taken.
    pub fn crop(&self, place: u64) -> Option<Crop> {
        self.crop.then(|| Crop { key: random::key(&[self.seed, 0x6372_6f70, place]) })
    }

    /// Changes the sample that is read `place`-th in the run.
    pub fn apply(&self, place: u64, shape: Shape, sample: &mut [f32]) {
        if !self.flip && self.shift == 0 {
            return;
        }
        let key = random::key(&[self.seed, 0x0061_7567_6d65_6e74, place]);
        let draw = |which: u64, below: usize| ((u128::from(random::key(&[key, which])) * below as u128) >> 64) as usize;
        let is_mirrored = self.flip && draw(0, 2) == 1;
        let [_, height, width] = shape.extents3();
        let by = |which, extent: usize| {
            let most = self.shift.min(extent.saturating_sub(1));
            draw(which, 2 * most + 1) as isize - most as isize
        };
        let (down, right) = (by(1, height), by(2, width));
        let mut plane_before = vec![0.0; height * width];
        for plane in sample.chunks_mut((height * width).max(1)) {
            plane_before[..plane.len()].copy_from_slice(plane);
            for (row, line) in plane.chunks_mut(width).enumerate() {
                let from = nearest(row, down, height) * width;
                for (column, value) in line.iter_mut().enumerate() {
                    let seen = if is_mirrored { width - 1 - column } else { column };
                    *value = plane_before[from + nearest(seen, right, width)];
                }
            }
        }
    }
}

/// The place that a shift by `by` brings here, or the edge nearest to it.
fn nearest(place: usize, by: isize, extent: usize) -> usize {
    place.saturating_add_signed(-by).min(extent - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: [usize; 3] = [2, 2, 3];

    fn changed(by: Augmentation, place: u64) -> Vec<f32> {
        let mut sample: Vec<f32> = (0..12).map(|value| value as f32).collect();
        by.apply(place, Shape::image(SHAPE[0], SHAPE[1], SHAPE[2]), &mut sample);
        sample
    }

    #[test]
    fn half_of_the_samples_are_mirrored() {
        let by = Augmentation { flip: true, seed: 3, ..Augmentation::default() };
        let mirrored = vec![2.0, 1.0, 0.0, 5.0, 4.0, 3.0, 8.0, 7.0, 6.0, 11.0, 10.0, 9.0];
        let count = (0..1000).filter(|&place| changed(by, place) == mirrored).count();
        assert!((420..580).contains(&count), "{count}");
        assert!((0..1000).all(|place| changed(by, place) == mirrored || changed(by, place)[0] == 0.0));
    }

    #[test]
    fn shifts_copy_the_edges_and_repeat() {
        let by = Augmentation { shift: 1, seed: 3, ..Augmentation::default() };
        let all: std::collections::BTreeSet<Vec<u32>> =
            (0..200).map(|place| changed(by, place).iter().map(|value| *value as u32).collect()).collect();
        assert_eq!(all.len(), 9, "three shifts in each direction");
        assert!(all.contains(&vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]));
        assert!(all.contains(&vec![0, 0, 1, 0, 0, 1, 6, 6, 7, 6, 6, 7]), "down and right: {all:?}");
        assert_eq!(changed(by, 7), changed(by, 7));
        assert_eq!(changed(Augmentation::default(), 7)[..3], [0.0, 1.0, 2.0]);
    }

    #[test]
    fn shifts_beyond_the_sample_stay_inside() {
        let by = Augmentation { shift: usize::MAX, flip: true, seed: 1, ..Augmentation::default() };
        assert!((0..50).all(|place| changed(by, place).iter().all(|value| (0.0..12.0).contains(value))));
    }
}
