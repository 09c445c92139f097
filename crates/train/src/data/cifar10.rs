//! CIFAR-10 in its binary form: `data_batch_1.bin` to `data_batch_5.bin` and `test_batch.bin` in one folder.
//!
//! ```text
//! label | 1024 red | 1024 green | 1024 blue      a record of 3073 bytes, rows from the top
//! ```

use std::path::{Path, PathBuf};

use tightfit_core::network::Shape;

use super::{Source, file, pixel};
use crate::Error;

/// 32x32 color images of ten classes, held in memory.
///
/// **Source**: Krizhevsky 2009, "Learning multiple layers of features from tiny images", and the page of the data set.
#[derive(Clone, Debug)]
pub struct Cifar10 {
    records: Vec<u8>,
}

const IMAGE: usize = 3 * 32 * 32;
const RECORD: usize = 1 + IMAGE;
const CLASSES: u8 = 10;

/// Whether a folder has a training file.
pub(super) fn is_in(folder: &Path) -> bool {
    training_files(folder).next().is_some()
}

fn training_files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (1..=5).map(move |part| folder.join(format!("data_batch_{part}.bin"))).filter(|path| path.exists())
}

impl Cifar10 {
    /// Reads the existing training files.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read, is empty, does not end with a whole record, or has a label over 9.
    pub fn train(folder: &Path) -> Result<Cifar10, Error> {
        let mut records = Vec::new();
        for path in training_files(folder) {
            records.extend(read(&path)?);
        }
        match records.is_empty() {
            true => Err(file::bad(folder, "contains none of data_batch_1.bin to data_batch_5.bin")),
            false => Ok(Cifar10 { records }),
        }
    }

    /// The images of `test_batch.bin`, if it is there.
    ///
    /// # Errors
    /// The errors of [`Cifar10::train`].
    pub fn test(folder: &Path) -> Result<Option<Cifar10>, Error> {
        let path = folder.join("test_batch.bin");
        path.exists().then(|| Ok(Cifar10 { records: read(&path)? })).transpose()
    }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = file::read(path)?;
    if bytes.is_empty() || !bytes.len().is_multiple_of(RECORD) {
        let (whole, rest) = (bytes.len() / RECORD, bytes.len() % RECORD);
        let what = format!("holds {whole} records of {RECORD} bytes and {rest} bytes more; it may be truncated");
        return Err(file::bad(path, what));
    }
    match bytes.chunks(RECORD).enumerate().find(|(_, record)| record[0] >= CLASSES) {
        Some((index, record)) => Err(file::bad(path, format!("record {index} has label {}, not 0 to 9", record[0]))),
        None => Ok(bytes),
    }
}

impl Source for Cifar10 {
    fn shape(&self) -> Shape {
        Shape::image(3, 32, 32)
    }

    fn classes(&self) -> usize {
        usize::from(CLASSES)
    }

    fn len(&self) -> usize {
        self.records.len() / RECORD
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        let record = &self.records[index * RECORD..][..RECORD];
        for (value, &byte) in sample.iter_mut().zip(&record[1..]) {
            *value = pixel(byte);
        }
        Ok(u32::from(record[0]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(label: u8, byte: u8) -> Vec<u8> {
        let mut record = vec![byte; RECORD];
        record[0] = label;
        record
    }

    #[test]
    fn records_of_all_files_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
        assert!(!is_in(folder.path()) && Cifar10::train(folder.path()).is_err());
        write("data_batch_1.bin", [record(3, 0), record(9, 255)].concat());
        write("data_batch_4.bin", record(0, 51));
        let train = Cifar10::train(folder.path()).unwrap();
        let mut sample = vec![0.0; IMAGE];
        let labels: Vec<u32> = (0..train.len()).map(|index| train.read(index, &mut sample).unwrap()).collect();
        assert_eq!(labels, [3, 9, 0]);
        assert!(sample.iter().all(|value| *value == 51.0 / 127.5 - 1.0));
        assert!(Cifar10::test(folder.path()).unwrap().is_none());
        write("test_batch.bin", record(1, 1));
        assert_eq!(Cifar10::test(folder.path()).unwrap().map(|test| test.len()), Some(1));
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data_batch_2.bin");
        let mut cut = [record(1, 0), record(2, 0)].concat();
        cut.truncate(RECORD + 30);
        for (bytes, part) in [
            (Vec::new(), "0 records of 3073 bytes and 0 bytes more"),
            (cut, "1 records of 3073 bytes and 30 bytes more"),
            ([record(1, 0), record(10, 0)].concat(), "record 1 has label 10, not 0 to 9"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = Cifar10::train(folder.path()).unwrap_err().to_string();
            assert!(error.contains("data_batch_2.bin") && error.contains(part), "{error}");
        }
    }
}
