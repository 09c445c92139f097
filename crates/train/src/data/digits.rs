//! The bundled digits: 1797 images of 8x8 pixels, small enough for a CPU to learn in seconds.

use tightfit_network::Shape;

use super::{Source, file};
use crate::Error;

/// Optical recognition of handwritten digits, held in memory: every third image is for testing (599), the rest (1198)
/// for training, so that both parts have every writer and about as many of each digit.
///
/// **Source**: Alpaydin and Kaynak 1998, UCI Machine Learning Repository, doi 10.24432/C50P49, CC BY 4.0; its test set
/// of 13 writers, which is also scikit-learn's `load_digits`.
#[derive(Clone, Debug)]
pub struct Digits {
    images: Vec<([u8; 64], u8)>,
}

static PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
/// Gray values go from 0 to this.
const WHITE: u8 = 16;

impl Digits {
    /// The images to learn.
    ///
    /// # Errors
    /// Never in a program built from an intact source tree.
    pub fn train() -> Result<Digits, Error> {
        Digits::part(|index| index % 3 != 2)
    }

    /// The images to test with.
    ///
    /// # Errors
    /// The errors of [`Digits::train`].
    pub fn test() -> Result<Digits, Error> {
        Digits::part(|index| index % 3 == 2)
    }

    fn part(belongs: impl Fn(usize) -> bool) -> Result<Digits, Error> {
        let path = std::path::Path::new("digits.csv.gz");
        let bytes = file::unpack(PACKED).map_err(|source| file::failed(path, "cannot be decompressed", source))?;
        let text = String::from_utf8_lossy(&bytes);
        let all: Option<Vec<_>> = text.lines().map(image).collect();
        let all = all.ok_or_else(|| file::bad(path, "a line is not an image"))?;
        let images = all.into_iter().enumerate().filter(|(index, _)| belongs(*index)).map(|(_, image)| image);
        Ok(Digits { images: images.collect() })
    }
}

/// An image and its digit from a line of 65 numbers.
fn image(line: &str) -> Option<([u8; 64], u8)> {
    let numbers: Vec<u8> = line.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let (digit, pixels) = numbers.split_last()?;
    let pixels: [u8; 64] = pixels.try_into().ok()?;
    (*digit < 10 && pixels.iter().all(|&pixel| pixel <= WHITE)).then_some((pixels, *digit))
}

impl Source for Digits {
    fn shape(&self) -> Shape {
        Shape::image(1, 8, 8)
    }

    fn classes(&self) -> usize {
        10
    }

    fn len(&self) -> usize {
        self.images.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let (pixels, digit) = &self.images[index];
        for (value, &pixel) in sample.iter_mut().zip(pixels) {
            *value = f32::from(pixel) / f32::from(WHITE / 2) - 1.0;
        }
        Ok(u32::from(*digit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_parts_hold_every_digit() {
        let (train, test) = (Digits::train().unwrap(), Digits::test().unwrap());
        assert_eq!((train.len(), test.len()), (1198, 599));
        for part in [&train, &test] {
            for digit in 0..10 {
                let share = part.images.iter().filter(|(_, label)| *label == digit).count() as f64 / part.len() as f64;
                assert!((0.08..0.12).contains(&share), "{digit}: {share}");
            }
        }
        let mut sample = [0.0; 64];
        assert_eq!(train.read(0, &mut sample).unwrap(), 0, "the first image is a zero");
        assert_eq!(sample[..6], [-1.0, -1.0, -0.375, 0.625, 0.125, -0.875]);
    }

    #[test]
    fn an_invalid_line_is_refused() {
        let line = |white: &str, digit: &str| format!("{white},{}{digit}", "0,".repeat(63));
        assert!(image(&line("16", "9")).is_some());
        for (white, digit) in [("17", "9"), ("0", "10"), ("", "1"), ("0,0", "1"), ("-1", "1")] {
            assert!(image(&line(white, digit)).is_none(), "{white} {digit}");
        }
    }
}
