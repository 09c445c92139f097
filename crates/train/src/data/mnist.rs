//! Data sets in MNIST's idx format, plain or compressed with gzip.
//!
//! ```text
//! train-images-idx3-ubyte   00 00 08 03 | count | rows | columns | pixels    4-byte counts, big-endian
//! train-labels-idx1-ubyte   00 00 08 01 | count | labels
//! t10k-..                   the same for testing
//! ```

use std::path::{Path, PathBuf};

use tightfit_core::network::Shape;

use super::{Source, file, pixel};
use crate::Error;

/// Gray images with a byte for the label, held in memory.
///
/// **Source**: LeCun, Cortes and Burges, "The MNIST database of handwritten digits", section on file formats.
#[derive(Clone, Debug)]
pub struct Mnist {
    shape: Shape,
    classes: usize,
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

/// Whether a folder has training images in this form.
pub(super) fn is_in(folder: &Path) -> bool {
    find(folder, "train", "images", 3).is_some()
}

/// Finds a file under one of its usual names.
fn find(folder: &Path, part: &str, what: &str, dimensions: usize) -> Option<PathBuf> {
    let names = ["-", "."].map(|separator| format!("{part}-{what}{separator}idx{dimensions}-ubyte"));
    let candidates = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
    candidates.into_iter().find(|path| path.exists())
}

impl Mnist {
    /// The images of `train-images-idx3-ubyte` with the labels of `train-labels-idx1-ubyte`.
    ///
    /// # Errors
    /// [`Error::Data`] if a file is missing, cannot be read or decompressed, is not an idx file of bytes, does not have
    /// the announced length, or is empty; and if the numbers of images and labels differ.
    pub fn train(folder: &Path) -> Result<Mnist, Error> {
        let images = find(folder, "train", "images", 3);
        let images = images.ok_or_else(|| file::bad(folder, "contains no train-images-idx3-ubyte, plain or .gz"))?;
        Mnist::read_part(folder, "train", &images)
    }

    /// The images and labels of the files that begin with `t10k`, if they are there.
    ///
    /// # Errors
    /// The errors of [`Mnist::train`].
    pub fn test(folder: &Path) -> Result<Option<Mnist>, Error> {
        find(folder, "t10k", "images", 3).map(|images| Mnist::read_part(folder, "t10k", &images)).transpose()
    }

    fn read_part(folder: &Path, part: &str, images: &Path) -> Result<Mnist, Error> {
        let labels = find(folder, part, "labels", 1);
        let missing = || file::bad(folder, format!("contains no {part}-labels-idx1-ubyte, plain or .gz"));
        let labels = labels.ok_or_else(missing)?;
        let ([count, rows, columns], pixels) = read_idx(images)?;
        let ([label_count], label_bytes) = read_idx(&labels)?;
        if count != label_count {
            return Err(file::bad(&labels, format!("{label_count} labels for {count} images")));
        }
        let classes = label_bytes.iter().max().map_or(1, |&most| usize::from(most) + 1);
        Ok(Mnist { shape: Shape::image(1, rows, columns), classes, pixels, labels: label_bytes })
    }
}

/// The extents and the bytes of an idx file of `N` dimensions.
fn read_idx<const N: usize>(path: &Path) -> Result<([usize; N], Vec<u8>), Error> {
    let mut bytes = file::read(path)?;
    let head = 4 * (1 + N);
    if bytes.len() < head {
        return Err(file::bad(path, format!("has {} bytes, fewer than the {head} of its header", bytes.len())));
    }
    let magic = [0, 0, 8, N as u8];
    if bytes[..4] != magic {
        return Err(file::bad(path, format!("begins with {:02x?}, expected {magic:02x?} (idx, bytes)", &bytes[..4])));
    }
    let mut extents = [0; N];
    for (extent, four) in extents.iter_mut().zip(bytes[4..head].as_chunks::<4>().0) {
        *extent = u32::from_be_bytes(*four) as usize;
    }
    let expected = extents.iter().try_fold(1usize, |product, &extent| product.checked_mul(extent));
    let data = bytes.split_off(head);
    if expected != Some(data.len()) || data.is_empty() {
        let what = format!("announces {extents:?} elements but holds {} bytes; it may be truncated", data.len());
        return Err(file::bad(path, what));
    }
    Ok((extents, data))
}

impl Source for Mnist {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let len = self.shape.len();
        for (value, &byte) in sample.iter_mut().zip(&self.pixels[index * len..][..len]) {
            *value = pixel(byte);
        }
        Ok(u32::from(self.labels[index]))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn idx(extents: &[u32], data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, extents.len() as u8];
        bytes.extend(extents.iter().flat_map(|extent| extent.to_be_bytes()));
        bytes.extend(data);
        bytes
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn plain_and_packed_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
        write("train-images.idx3-ubyte", &idx(&[2, 2, 3], &[0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 0]));
        write("train-labels-idx1-ubyte.gz", &packed(&idx(&[2], &[7, 1])));
        assert!(is_in(folder.path()));
        let train = Mnist::train(folder.path()).unwrap();
        assert_eq!((train.shape(), train.classes(), train.len()), (Shape::image(1, 2, 3), 8, 2));
        let mut sample = [0.0; 6];
        assert_eq!(train.read(1, &mut sample).unwrap(), 1);
        assert_eq!(sample, [1.0, 1.0, 1.0, 1.0, 1.0, -1.0]);
        assert!(Mnist::test(folder.path()).unwrap().is_none());
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let good = idx(&[1, 2, 2], &[1, 2, 3, 4]);
        let cut = packed(&good)[..12].to_vec();
        for (images, labels, name, part) in [
            (Vec::new(), idx(&[1], &[0]), "train-images-idx3-ubyte", "0 bytes, fewer than the 16"),
            (good[..19].to_vec(), idx(&[1], &[0]), "train-images-idx3-ubyte", "[1, 2, 2] elements but holds 3 bytes"),
            (idx(&[0, 2, 2], &[]), idx(&[0], &[]), "train-images-idx3-ubyte", "holds 0 bytes"),
            (idx(&[u32::MAX; 3], &[0]), idx(&[1], &[0]), "train-images-idx3-ubyte", "holds 1 bytes"),
            (idx(&[1, 4], &[1, 2, 3, 4, 5, 6, 7, 8]), idx(&[1], &[0]), "train-images-idx3-ubyte", "begins with"),
            (good.clone(), idx(&[2], &[0, 1]), "train-labels-idx1-ubyte", "2 labels for 1 images"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join("train-images-idx3-ubyte"), images).unwrap();
            std::fs::write(folder.path().join("train-labels-idx1-ubyte"), labels).unwrap();
            let error = Mnist::train(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{part}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train-images-idx3-ubyte.gz"), cut).unwrap();
        let error = Mnist::train(folder.path()).unwrap_err().to_string();
        assert!(error.contains("no train-labels-idx1-ubyte"), "{error}");
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[1], &[0])).unwrap();
        let error = Mnist::train(folder.path()).unwrap_err().to_string();
        assert!(error.contains("cannot be decompressed"), "{error}");
    }
}
