//! Data sets in MNIST's idx format, plain or compressed with gzip.
//!
//! ```text
//! train-images-idx3-ubyte   00 00 08 03 | count | rows | columns | pixels    4-byte counts, big-endian
//! train-labels-idx1-ubyte   00 00 08 01 | count | labels
//! t10k-.., test-..          the same for testing
//! emnist-letters-train-..   the same with a name before it, as EMNIST's parts have
//! ```

use std::path::{Path, PathBuf};

use tightfit_network::Shape;

use super::source::pixel;
use super::{Source, file};
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

/// The files of a data set in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// The prefix of the names: nothing, or a name such as `emnist-letters-`.
    prefix: String,
}

impl Form {
    /// The forms of which a folder has training images.
    pub(super) fn all(folder: &Path) -> Vec<Form> {
        let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
        let prefix = |name: &str| {
            let name = name.strip_suffix(".gz").unwrap_or(name);
            let name = name.strip_suffix("idx3-ubyte")?.strip_suffix(['-', '.'])?.strip_suffix("train-images")?;
            (!name.starts_with('.')).then(|| name.to_owned())
        };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let mut found: Vec<String> = names.filter_map(|name| prefix(&name)).collect();
        found.sort_unstable();
        found.dedup();
        found.into_iter().map(|prefix| Form { prefix }).collect()
    }

    /// The name of the data in reports.
    pub(super) fn name(&self) -> String {
        match self.prefix.trim_end_matches(['-', '_', '.']) {
            "" => "mnist".to_owned(),
            name => name.to_owned(),
        }
    }

    /// The name of the training images, for messages.
    pub(super) fn file(&self) -> String {
        format!("{}train-images-idx3-ubyte", self.prefix)
    }

    /// Reads the training files, and those for testing if they are there.
    ///
    /// # Errors
    /// [`Error::Data`] if a file is missing, cannot be read or decompressed, is not an idx file of bytes, does not have
    /// the announced length, or is empty. The same error if the numbers of images and labels differ, and for a label
    /// outside of `classes`.
    pub(super) fn open(&self, folder: &Path, classes: usize) -> Result<(Mnist, Option<Mnist>), Error> {
        let missing = || file::bad(folder, format!("contains no {}, plain or .gz", self.file()));
        let train = self.read_part(folder, "train", classes)?.ok_or_else(missing)?;
        for part in ["t10k", "test"] {
            if let Some(test) = self.read_part(folder, part, classes)? {
                return Ok((train, Some(test)));
            }
        }
        Ok((train, None))
    }

    /// Finds a file under one of its usual names.
    fn find(&self, folder: &Path, part: &str, what: &str, dimensions: usize) -> Option<PathBuf> {
        let names = ["-", "."].map(|separator| format!("{}{part}-{what}{separator}idx{dimensions}-ubyte", self.prefix));
        let candidates = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
        candidates.into_iter().find(|path| path.exists())
    }

    fn read_part(&self, folder: &Path, part: &str, classes: usize) -> Result<Option<Mnist>, Error> {
        let Some(images) = self.find(folder, part, "images", 3) else { return Ok(None) };
        let labels = self.find(folder, part, "labels", 1);
        let missing =
            || file::bad(folder, format!("contains no {}{part}-labels-idx1-ubyte, plain or .gz", self.prefix));
        let labels = labels.ok_or_else(missing)?;
        let ([count, rows, columns], pixels) = read_idx(&images)?;
        let ([label_count], mut label_bytes) = read_idx(&labels)?;
        if count != label_count {
            return Err(file::bad(&labels, format!("{label_count} labels for {count} images")));
        }
        // EMNIST counts its letters from 1, and has no 0.
        let first = u8::from(self.prefix.ends_with("emnist-letters-"));
        for (index, label) in label_bytes.iter_mut().enumerate() {
            let class = label.checked_sub(first).filter(|&class| usize::from(class) < classes);
            let last = classes.saturating_sub(1) + usize::from(first);
            *label = class.ok_or_else(|| {
                let what = format!("sample {index} has label {label}, but the network has {classes} classes: {first} to {last}");
                let advice = if first == 0 && usize::from(*label) == classes {
                    "; labels that count from 1, as those of EMNIST's letters, are read from files named emnist-letters-train-images-idx3-ubyte, .."
                } else {
                    ""
                };
                file::bad(&labels, format!("{what}{advice}"))
            })?;
        }
        let known = label_bytes.iter().max().map_or(1, |&most| usize::from(most) + 1);
        Ok(Some(Mnist { shape: Shape::image(1, rows, columns), classes: known, pixels, labels: label_bytes }))
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
        let [form] = &Form::all(folder.path())[..] else { panic!("one form") };
        let (train, test) = form.open(folder.path(), 10).unwrap();
        assert_eq!((train.shape(), train.classes(), train.len()), (Shape::image(1, 2, 3), 8, 2));
        let mut sample = [0.0; 6];
        assert_eq!(train.read(1, &mut sample).unwrap(), 1);
        assert_eq!(sample, [1.0, 1.0, 1.0, 1.0, 1.0, -1.0]);
        assert!(test.is_none() && form.name() == "mnist");
    }

    #[test]
    fn letters_count_from_one_under_their_name_and_are_refused_under_another() {
        for (prefix, labels, classes, expected) in [
            ("emnist-letters-", [1, 26], 26, Ok(25)),
            ("emnist-letters-", [0, 26], 26, Err("sample 0 has label 0, but the network has 26 classes: 1 to 26")),
            ("emnist-letters-", [1, 27], 26, Err("sample 1 has label 27")),
            ("emnist-digits-", [1, 9], 10, Ok(9)),
            ("", [1, 9], 10, Ok(9)),
            (
                "",
                [1, 26],
                26,
                Err("sample 1 has label 26, but the network has 26 classes: 0 to 25; labels that count from 1"),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for part in ["train", "test"] {
                let write = |what: &str, bytes| {
                    std::fs::write(folder.path().join(format!("{prefix}{part}-{what}-ubyte")), bytes)
                };
                write("images-idx3", idx(&[2, 1, 1], &[0, 1])).unwrap();
                write("labels-idx1", idx(&[2], &labels)).unwrap();
            }
            std::fs::write(folder.path().join("._train-images-idx3-ubyte"), "hidden").unwrap();
            let [form] = &Form::all(folder.path())[..] else { panic!("one form") };
            let opened = form.open(folder.path(), classes);
            match expected {
                Ok(last) => assert_eq!(opened.unwrap().1.unwrap().read(1, &mut [0.0]).unwrap(), last),
                Err(part) => {
                    let error = opened.unwrap_err().to_string();
                    assert!(error.contains(part) && error.contains("labels-idx1-ubyte"), "{error}");
                }
            }
        }
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
            let error = Form { prefix: String::new() }.open(folder.path(), 10).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{part}: {error}");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train-images-idx3-ubyte.gz"), cut).unwrap();
        let error = Form { prefix: String::new() }.open(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("no train-labels-idx1-ubyte"), "{error}");
        std::fs::write(folder.path().join("train-labels-idx1-ubyte"), idx(&[1], &[0])).unwrap();
        let error = Form { prefix: String::new() }.open(folder.path(), 10).unwrap_err().to_string();
        assert!(error.contains("cannot be decompressed"), "{error}");
    }
}
