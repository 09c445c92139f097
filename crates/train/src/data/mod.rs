//! Training data: labeled samples from files or a generator, read in the background.
//!
//! ```text
//! digits, synthetic, or a folder --open--> Dataset { train, test }, two sources
//! source --Loader, a thread ahead--> batch, batch, ..
//! ```
//!
//! A [`Source`] returns any sample by its index; the [`Loader`] decides their order and batches. Pixels are numbers
//! from -1 (black) to 1.

mod augment;
mod cifar;
mod crop;
mod dataset;
mod digits;
pub(crate) mod file;
mod folder;
mod image_files;
mod images;
mod loader;
mod mnist;
mod pickle;
mod source;
mod synthetic;
mod view;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tightfit_network::Shape;

use crate::Error;

pub use augment::Augmentation;
pub use cifar::Cifar;
pub use crop::{Crop, Part};
pub use dataset::Dataset;
pub use digits::Digits;
pub use images::Images;
pub use loader::{Batch, Loader};
pub use mnist::Mnist;
pub use source::Source;
pub use synthetic::Synthetic;
pub use view::{Normalization, Normalized, Subset};

/// Opens the data named `digits` or `synthetic`, or a folder: files of CIFAR-10, CIFAR-100 or MNIST, in it or where torchvision
/// puts them in it, or images with one subfolder per class. The data must suit a network with input shape `sample` and `classes` classes.
///
/// Synthetic samples have that shape, and images of a folder are scaled to it. The other data sets have fixed shapes.
///
/// # Errors
/// [`Error::Data`] if files are missing, unreadable or invalid, or if the samples or classes do not suit the network.
pub fn open(what: &str, sample: Shape, classes: usize, seed: u64) -> Result<Dataset, Error> {
    let path = Path::new(what);
    let data = match what {
        "digits" => Dataset::new("digits", Digits::train()?, Some(Digits::test()?)),
        "synthetic" => Dataset::new("synthetic", Synthetic::new(sample, classes, seed), None::<Synthetic>),
        _ if !path.is_dir() => {
            return Err(file::bad(path, "not a folder; use digits, synthetic, or a folder of data"));
        }
        _ => folder::open(path, sample, classes)?,
    };
    let (given, known) = (data.train.shape(), data.train.classes());
    if given != sample {
        return Err(file::bad(path, format!("samples are {given}, but the network takes {sample}")));
    }
    if known > classes {
        return Err(file::bad(path, format!("has {known} classes, but the network has {classes} outputs")));
    }
    Ok(data)
}

/// Opens separate data to test with, in addition to `training`: its part for testing, or all of it. Images have the
/// classes of the training folder, or some of them.
///
/// # Errors
/// The errors of [`open`]; [`Error::Data`] for images whose class the training folder does not have.
pub fn open_test(
    what: &str,
    training: &str,
    sample: Shape,
    classes: usize,
    seed: u64,
) -> Result<Arc<dyn Source>, Error> {
    let (path, train) = (Path::new(what), Path::new(training));
    let is_images = |path: &Path| Ok::<_, Error>(path.is_dir() && folder::is_of_images(path)?);
    if is_images(path)? && is_images(train)? {
        return Ok(Arc::new(Images::open_tests(path, train, sample)?));
    }
    let opened = open(what, sample, classes, seed)?;
    Ok(opened.test.unwrap_or(opened.train))
}

/// Opens images without labels: files, and folders with images in them. Reports use `name` for them.
///
/// # Errors
/// The errors of [`Images::open_unlabeled`].
pub fn open_unlabeled(name: &str, paths: &[PathBuf], sample: Shape) -> Result<Dataset, Error> {
    Ok(Dataset::new(name, Images::open_unlabeled(paths, sample)?, None::<Images>))
}

/// Whether this is a file, or a folder with images and no folders of classes: both are without labels.
pub fn is_unlabeled(path: &Path) -> bool {
    path.is_file()
        || path.is_dir() && folder::is_of_images(path).unwrap_or(false) && image_files::is_without_classes(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_and_network_must_agree() {
        assert!(open("digits", Shape::image(1, 8, 8), 10, 0).is_ok());
        for (what, sample, classes, part) in [
            ("digits", Shape::image(3, 32, 32), 10, "samples are 1x8x8, but the network takes 3x32x32"),
            ("digits", Shape::image(1, 8, 8), 9, "10 classes, but the network has 9 outputs"),
            ("digit", Shape::image(1, 8, 8), 10, "digit: not a folder; use digits, synthetic"),
        ] {
            let error = open(what, sample, classes, 0).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|text| text.contains(part)), "{error:?}");
        }
        let made = open("synthetic", Shape::volume(2, 3, 4, 5), 7, 0).unwrap();
        assert_eq!((made.train.shape(), made.train.classes()), (Shape::volume(2, 3, 4, 5), 7));
    }

    #[test]
    fn shares_for_testing_split_the_samples() {
        let digits = open("digits", Shape::image(1, 8, 8), 10, 0).unwrap();
        let split = digits.clone().with_test_share(0.25, 3);
        let read = |source: &dyn Source| -> std::collections::BTreeSet<(Vec<u32>, u32)> {
            let mut sample = vec![0.0; 64];
            let mut one = |index| {
                let label = source.read(index, &mut sample).unwrap();
                (sample.iter().map(|value| value.to_bits()).collect(), label)
            };
            (0..source.len()).map(&mut one).collect()
        };
        let test = split.test.unwrap();
        assert_eq!((split.train.len(), test.len()), (898, 300));
        let (all, train, held) = (read(&*digits.train), read(&*split.train), read(&*test));
        assert!(train.union(&held).count() == all.len() && held.len() == 300);
        assert_eq!(train.intersection(&held).count(), train.len() + held.len() - all.len(), "only equal images");
        for share in [0.0, 1.0] {
            let split = digits.clone().with_test_share(share, 3);
            let sizes = [split.train.len(), split.test.unwrap().len()];
            assert!(sizes.iter().all(|size| *size > 0), "{sizes:?}");
        }
    }

    #[test]
    fn normalized_pixels_are_those_of_torchvision() {
        let digits = || open("digits", Shape::image(1, 8, 8), 10, 0).unwrap();
        let by = |mean: &[f32], std: &[f32]| Normalization { mean: mean.to_vec(), std: std.to_vec() };
        let normalized = digits().normalized(&by(&[0.25], &[0.5])).unwrap();
        let (mut plain, mut sample) = ([0.0; 64], [0.0; 64]);
        let labels = (digits().train.read(5, &mut plain).unwrap(), normalized.train.read(5, &mut sample).unwrap());
        assert_eq!(labels.0, labels.1);
        assert!(plain.iter().zip(sample).all(|(plain, got)| got == ((plain + 1.0) / 2.0 - 0.25) / 0.5));
        for (mean, std, part) in [
            (&[0.1, 0.2][..], &[0.1, 0.2][..], "2 means"),
            (&[0.1], &[0.0], "standard deviation of 0"),
            (&[f32::NAN], &[1.0], "NaN"),
        ] {
            let error = digits().normalized(&by(mean, std)).err().map(|error| error.to_string());
            assert!(error.as_ref().is_some_and(|text| text.contains(part)), "{error:?}");
        }
    }
}
