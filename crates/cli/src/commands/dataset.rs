//! The data that `train`, `predict` and `test` read, and the notes on it.

use std::path::{Path, PathBuf};

use tightfit_network::Shape;
use tightfit_report::count;
use tightfit_train::data::{self, Dataset, Normalization, Source};

use crate::failure::Failure;
use crate::message;
use crate::options::PixelOptions;

/// Labeled data as the options name it, for a network that takes such samples.
pub struct Labeled<'a> {
    /// A folder, or a name such as `digits`.
    pub name: &'a str,
    /// The data to test with, if it is apart.
    pub test: Option<&'a str>,
    /// The changes to the pixels.
    pub pixels: &'a PixelOptions,
    /// The shape of a sample.
    pub sample: Shape,
    /// The number of classes.
    pub classes: usize,
    /// Of synthetic data.
    pub seed: u64,
}

impl Labeled<'_> {
    /// Opens the data, and that to test with.
    ///
    /// # Errors
    /// The errors of [`data::open`], [`data::open_test`] and [`Dataset::normalized`].
    pub fn open(&self) -> Result<Dataset, Failure> {
        let &Labeled { name, test, pixels, sample, classes, seed } = self;
        let mut opened = data::open(name, sample, classes, seed)?;
        if let Some(test) = test {
            opened.test = Some(data::open_test(test, name, sample, classes, seed)?);
        }
        for source in std::iter::once(&opened.train).chain(&opened.test) {
            say_left_out(&**source, name);
        }
        normalized(opened, pixels)
    }

    /// As [`open`](Labeled::open), or the images without labels that the name names: a file, or a folder without class
    /// folders.
    ///
    /// # Errors
    /// As [`open`](Labeled::open).
    pub fn open_any(&self) -> Result<Dataset, Failure> {
        match self.test {
            None if data::is_unlabeled(Path::new(self.name)) => {
                open_images(&[self.name.into()], self.pixels, self.sample)
            }
            _ => self.open(),
        }
    }
}

/// Opens images without labels, with the pixels that the options ask for.
///
/// # Errors
/// The errors of [`data::open_unlabeled`] and [`Dataset::normalized`].
pub fn open_images(paths: &[PathBuf], pixels: &PixelOptions, sample: Shape) -> Result<Dataset, Failure> {
    let name = match paths {
        [path] => path.display().to_string(),
        _ => count(paths.len(), "path"),
    };
    let opened = data::open_unlabeled(&name, paths, sample)?;
    say_left_out(&*opened.train, &name);
    normalized(opened, pixels)
}

fn say_left_out(source: &dyn Source, name: &str) {
    if let Some(line) = source.left_out() {
        message::note(format_args!("{name}: {line}"));
    }
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
    let train = count(data.train.len(), "training sample");
    let classes = match data.train.classes() {
        1 => "1 class".to_owned(),
        several => format!("{several} classes"),
    };
    let test = match &data.test {
        Some(test) => count(test.len(), "test sample"),
        None => "no test samples (hold some back with --test-share 0.1, or name some with --test-data)".to_owned(),
    };
    format!("{}: {train} of {} in {classes}, {test}", data.name, data.train.shape())
}
