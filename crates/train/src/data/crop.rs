//! Random parts of training pictures, scaled to the sample, as torchvision's `RandomResizedCrop` takes them.
//!
//! ```text
//! picture  +-----------------+
//!          |   +-------+     |     the part: 8% to 100% of the area, 3/4 to 4/3 as wide as high
//!          |   |       | ------------> sample
//!          |   +-------+     |
//!          +-----------------+
//! ```

use tightfit_cpu::random;
use tightfit_network::Shape;

/// The least share of the area; the largest is all of it.
const LEAST_AREA: f64 = 0.08;

/// The largest ratio of width to height; the least is its inverse.
const WIDEST: f64 = 4.0 / 3.0;

/// The number of parts to draw. If none is valid, the largest part at the center is taken.
const DRAWS: u64 = 10;

/// Draws a part of a picture. Which one depends only on the key and the size of the picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crop {
    /// [`random::key`] of the seed and the sample's place in the run.
    pub key: u64,
}

/// A part of a picture, in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The first column.
    pub left: usize,
    /// The first row.
    pub top: usize,
    /// Columns, at least 1.
    pub width: usize,
    /// Rows, at least 1.
    pub height: usize,
}

impl Crop {
    /// The part of a picture of this size, which has at least one pixel.
    pub fn part(&self, width: usize, height: usize) -> Part {
        // A number from 0 up to 1, of 53 bits.
        let draw = |which: u64| (random::key(&[self.key, which]) >> 11) as f64 / (1u64 << 53) as f64;
        for which in (0..4 * DRAWS).step_by(4) {
            let area = (width * height) as f64 * (LEAST_AREA + draw(which) * (1.0 - LEAST_AREA));
            let ratio = WIDEST.powf(2.0 * draw(which + 1) - 1.0);
            let (w, h) = ((area * ratio).sqrt().round() as usize, (area / ratio).sqrt().round() as usize);
            if (1..=width).contains(&w) && (1..=height).contains(&h) {
                let start = |which: u64, free: usize| ((draw(which) * (free + 1) as f64) as usize).min(free);
                let (left, top) = (start(which + 2, width - w), start(which + 3, height - h));
                return Part { left, top, width: w, height: h };
            }
        }
        let (w, h) = (width as f64, height as f64);
        let width_of_part = (w.min(h * WIDEST).round() as usize).clamp(1, width);
        let height_of_part = (h.min(w * WIDEST).round() as usize).clamp(1, height);
        let (left, top) = ((width - width_of_part) / 2, (height - height_of_part) / 2);
        Part { left, top, width: width_of_part, height: height_of_part }
    }

    /// Replaces a sample by a part of it, scaled up bilinearly.
    pub fn apply(&self, shape: Shape, sample: &mut [f32]) {
        let [depth, height, width] = shape.extents3();
        if depth > 1 || shape.extents().is_empty() {
            return;
        }
        let part = self.part(width, height);
        let (columns, rows) = (places(part.left, part.width, width), places(part.top, part.height, height));
        let mut whole = vec![0.0; height * width];
        for plane in sample.chunks_mut(height * width) {
            whole[..plane.len()].copy_from_slice(plane);
            let between = |row: usize, (left, right, share): (usize, usize, f32)| {
                let (left, right) = (whole[row * width + left], whole[row * width + right]);
                left + (right - left) * share
            };
            for (line, &(above, below, share)) in plane.chunks_mut(width).zip(&rows) {
                for (value, &column) in line.iter_mut().zip(&columns) {
                    let (above, below) = (between(above, column), between(below, column));
                    *value = above + (below - above) * share;
                }
            }
        }
    }
}

/// For each of `extent` places, the two neighbors in the part that it lies between, and the share of the second.
fn places(first: usize, length: usize, extent: usize) -> Vec<(usize, usize, f32)> {
    let place = |at: usize| {
        let center = ((at as f64 + 0.5) * length as f64 / extent as f64 - 0.5).clamp(0.0, (length - 1) as f64);
        let before = center as usize;
        (first + before, first + (before + 1).min(length - 1), (center - before as f64) as f32)
    };
    (0..extent).map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_areas_and_ratios_of_torchvision() {
        let (width, height) = (500, 375);
        let parts: Vec<Part> = (0..4000).map(|key| Crop { key: random::key(&[key]) }.part(width, height)).collect();
        let mut area = 0.0;
        for part in &parts {
            assert!(part.left + part.width <= width && part.top + part.height <= height, "{part:?}");
            let share = (part.width * part.height) as f64 / (width * height) as f64;
            let ratio = part.width as f64 / part.height as f64;
            assert!((0.078..=1.0).contains(&share) && (0.74..1.35).contains(&ratio), "{part:?}");
            area += share / parts.len() as f64;
        }
        // torchvision's `RandomResizedCrop.get_params` gives 0.433 on pictures of this size (mean of 60000).
        assert!((area - 0.433).abs() < 0.02, "{area}");
        let left = parts.iter().map(|part| part.left).max();
        assert!(left > Some(250) && parts.iter().any(|part| part.left == 0) && parts[0] != parts[1]);
        assert_eq!(Crop { key: 7 }.part(width, height), Crop { key: 7 }.part(width, height));
    }

    #[test]
    fn a_picture_too_narrow_for_any_part_gives_its_center() {
        assert_eq!(Crop { key: 1 }.part(1000, 3), Part { left: 498, top: 0, width: 4, height: 3 });
        assert_eq!(Crop { key: 1 }.part(1, 1), Part { left: 0, top: 0, width: 1, height: 1 });
    }

    #[test]
    fn a_sample_is_scaled_up_from_its_part() {
        let shape = Shape::image(2, 20, 30);
        // A ramp along each axis stays a ramp: its values are the positions in the part.
        let ramp = |i: usize| if i < 600 { (i % 30) as f32 } else { (i % 600 / 30) as f32 };
        for key in 0..50 {
            let mut sample: Vec<f32> = (0..1200).map(ramp).collect();
            let crop = Crop { key };
            crop.apply(shape, &mut sample);
            let Part { left, top, width, height } = crop.part(30, 20);
            for row in 0..20 {
                for column in 0..30 {
                    let place = |at: usize, first: usize, length: usize, extent: usize| {
                        let at = (at as f32 + 0.5) * length as f32 / extent as f32 - 0.5;
                        first as f32 + at.clamp(0.0, (length - 1) as f32)
                    };
                    let (x, y) = (place(column, left, width, 30), place(row, top, height, 20));
                    let (own_x, own_y) = (sample[row * 30 + column], sample[600 + row * 30 + column]);
                    assert!((own_x - x).abs() < 1e-4 && (own_y - y).abs() < 1e-4, "{key}: {own_x}, {own_y}");
                }
            }
        }
        let mut vector = [1.0, 2.0, 3.0];
        Crop { key: 1 }.apply(Shape::flat(3), &mut vector);
        assert_eq!(vector, [1.0, 2.0, 3.0]);
    }
}
