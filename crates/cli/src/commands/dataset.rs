//! The data that `train`, `predict` and `test` read, and what they say about it.

use std::path::{Path, PathBuf};

use tightfit_core::network::Shape;
use tightfit_core::report::count;
use tightfit_train::data::{self, Dataset, Normalization};

use crate::failure::Failure;
use crate::options::PixelOptions;

/// Opens the data that `name` names for a network, and that to test with if it is apart, with the pixels that the options
/// ask for.
///
/// # Errors
/// Those of [`data::open`], [`data::open_test`] and [`Dataset::normalized`].
pub fn open(
    name: &str,
    test: Option<&str>,
    pixels: &PixelOptions,
    sample: Shape,
    classes: usize,
    seed: u64,
) -> Result<Dataset, Failure> {
    let mut opened = data::open(name, sample, classes, seed)?;
    if let Some(test) = test {
        opened.test = Some(data::open_test(test, name, sample, classes, seed)?);
    }
    normalized(opened, pixels)
}

/// As [`open`], or the images without labels that `name` names: a file, or a folder without class folders.
///
/// # Errors
/// As [`open`].
pub fn open_any(
    name: &str,
    test: Option<&str>,
    pixels: &PixelOptions,
    sample: Shape,
    classes: usize,
    seed: u64,
) -> Result<Dataset, Failure> {
    match test {
        None if data::is_unlabeled(Path::new(name)) => open_images(&[name.into()], pixels, sample),
        _ => open(name, test, pixels, sample, classes, seed),
    }
}

/// Opens images without labels, with the pixels that the options ask for.
///
/// # Errors
/// Those of [`data::open_unlabeled`] and [`Dataset::normalized`].
pub fn open_images(paths: &[PathBuf], pixels: &PixelOptions, sample: Shape) -> Result<Dataset, Failure> {
    let name = match paths {
        [path] => path.display().to_string(),
        _ => count(paths.len(), "path"),
    };
    normalized(data::open_unlabeled(&name, paths, sample)?, pixels)
}

fn normalized(opened: Dataset, pixels: &PixelOptions) -> Result<Dataset, Failure> {
    if pixels.mean.is_empty() {
        return Ok(opened);
    }
    let by = Normalization { mean: pixels.mean.clone(), std: pixels.std.clone() };
    Ok(opened.normalized(&by)?)
}

/// One line on the samples: how many to train on and to test on, their classes and shape.
pub fn summary(data: &Dataset) -> String {
    let (train, classes) = (count(data.train.len(), "training sample"), data.train.classes());
    let test = match &data.test {
        Some(test) => count(test.len(), "test sample"),
        None => "no test samples (hold some back with --test-share 0.1, or name some with --test-data)".to_owned(),
    };
    format!("{}: {train} of {} in {classes} classes, {test}", data.name, data.train.shape())
}
