//! CIFAR-10 and CIFAR-100, in their binary form and in Python's.
//!
//! ```text
//! data_batch_1.bin .. data_batch_5.bin, test_batch.bin    label | 1024 red | 1024 green | 1024 blue       3073 bytes, rows from the top
//! train.bin, test.bin                                     coarse label | label | 3072 pixels              CIFAR-100: 3074 bytes
//! data_batch_1 .. data_batch_5, test_batch                a pickled dictionary of `data` and `labels`
//! train, test                                             the same with `fine_labels`: CIFAR-100
//! ```

use std::path::{Path, PathBuf};

use tightfit_network::Shape;

use super::source::pixel;
use super::{Source, file, pickle};
use crate::Error;

/// 32x32 color images of ten or a hundred classes, held in memory.
///
/// **Source**: Krizhevsky 2009, "Learning multiple layers of features from tiny images", and the page of the data sets.
#[derive(Clone, Debug)]
pub struct Cifar {
    classes: u8,
    labels: Vec<u8>,
    pixels: Vec<u8>,
}

const IMAGE: usize = 3 * 32 * 32;

/// The files of a data set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    /// Its name in reports.
    pub name: &'static str,
    train: &'static [&'static str],
    test: &'static str,
    classes: u8,
    /// The bytes of the labels before an image; none in a pickle.
    labels: Option<usize>,
}

/// All forms. A folder has the form of its training file.
const FORMS: [Form; 4] = [
    Form {
        name: "cifar10",
        train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
        test: "test_batch.bin",
        classes: 10,
        labels: Some(1),
    },
    Form {
        name: "cifar10",
        train: &["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5"],
        test: "test_batch",
        classes: 10,
        labels: None,
    },
    Form { name: "cifar100", train: &["train.bin"], test: "test.bin", classes: 100, labels: Some(2) },
    Form { name: "cifar100", train: &["train"], test: "test", classes: 100, labels: None },
];

impl Form {
    /// The form of which a folder has training files.
    pub(super) fn of(folder: &Path) -> Option<Form> {
        // Folders of images may be called `train`.
        FORMS.into_iter().find(|form| form.training_files(folder).any(|path| !path.is_dir()))
    }

    fn training_files(self, folder: &Path) -> impl Iterator<Item = PathBuf> {
        self.train.iter().map(move |name| folder.join(name)).filter(|path| path.exists())
    }

    /// Reads the training files that are there, and the test file if it is.
    ///
    /// # Errors
    /// [`Error::Data`] for a file that cannot be read, is empty, does not end with a whole image, or has a label
    /// without a class.
    pub(super) fn open(self, folder: &Path) -> Result<(Cifar, Option<Cifar>), Error> {
        let mut train = Cifar { classes: self.classes, labels: Vec::new(), pixels: Vec::new() };
        for path in self.training_files(folder) {
            self.read(&path, &mut train)?;
        }
        let path = folder.join(self.test);
        let mut test = Cifar { labels: Vec::new(), pixels: Vec::new(), ..train };
        let is_there = path.exists();
        if is_there {
            self.read(&path, &mut test)?;
        }
        Ok((train, is_there.then_some(test)))
    }

    fn read(self, path: &Path, into: &mut Cifar) -> Result<(), Error> {
        let bytes = file::read(path)?;
        let first = into.labels.len();
        match self.labels {
            Some(before) => {
                let record = before + IMAGE;
                if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
                    let (whole, rest) = (bytes.len() / record, bytes.len() % record);
                    let what =
                        format!("holds {whole} records of {record} bytes and {rest} bytes more; it may be truncated");
                    return Err(file::bad(path, what));
                }
                for record in bytes.chunks(record) {
                    into.labels.push(record[before - 1]);
                    into.pixels.extend(&record[before..]);
                }
            }
            None => {
                let mut entries = pickle::read(&bytes).map_err(|what| {
                    file::bad(
                        path,
                        format!("is no file of CIFAR in Python's form: {what}; the binary form is read as well"),
                    )
                })?;
                let labels = ["labels", "fine_labels"].iter().find_map(|key| entries.lists.remove(*key));
                let (Some(labels), Some((extents, pixels))) = (labels, entries.arrays.remove("data")) else {
                    return Err(file::bad(
                        path,
                        "has no list of labels or no array of data; the binary form is read as well",
                    ));
                };
                if extents != [labels.len(), IMAGE] || pixels.len() != labels.len() * IMAGE || labels.is_empty() {
                    let what = format!("has {} labels for data of {extents:?}, not rows of {IMAGE}", labels.len());
                    return Err(file::bad(path, what));
                }
                // A number that is not a byte has no class.
                into.labels.extend(labels.iter().map(|&label| u8::try_from(label).unwrap_or(u8::MAX)));
                into.pixels.extend(pixels);
            }
        }
        let most = self.classes - 1;
        match into.labels[first..].iter().enumerate().find(|(_, label)| **label > most) {
            Some((index, label)) => Err(file::bad(path, format!("record {index} has label {label}, not 0 to {most}"))),
            None => Ok(()),
        }
    }
}

impl Source for Cifar {
    fn shape(&self) -> Shape {
        Shape::image(3, 32, 32)
    }

    fn classes(&self) -> usize {
        usize::from(self.classes)
    }

    fn len(&self) -> usize {
        self.labels.len()
    }

    fn read(&self, index: usize, sample: &mut [f32]) -> Result<u32, Error> {
        for (value, &byte) in sample.iter_mut().zip(&self.pixels[index * IMAGE..][..IMAGE]) {
            *value = pixel(byte);
        }
        Ok(u32::from(self.labels[index]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(labels: &[u8], byte: u8) -> Vec<u8> {
        [labels, &[byte; IMAGE]].concat()
    }

    /// The output of `pickle.dump` of Python 2 (protocol 2, as the published files are) or of Python 3 (protocol 4).
    fn pickled(protocol: u8, key: &str, labels: &[u8], byte: u8) -> Vec<u8> {
        let text = |text: &str| match protocol {
            2 => [&[b'U', text.len() as u8], text.as_bytes()].concat(),
            _ => [&[0x8c, text.len() as u8], text.as_bytes(), &[0x94]].concat(),
        };
        let name = |module: &str, name: &str| match protocol {
            2 => format!("c{module}\n{name}\n").into_bytes(),
            _ => [text(module), text(name), vec![0x93, 0x94]].concat(),
        };
        let content = vec![byte; labels.len() * IMAGE];
        let core = if protocol == 2 { "numpy.core.multiarray" } else { "numpy._core.multiarray" };
        let list: Vec<u8> = labels.iter().flat_map(|label| [b'K', *label]).collect();
        [
            &[0x80, protocol, b'}', b'q', 1, b'('][..],
            &text("batch_label"),
            &text("training batch 1 of 5"),
            &text("data"),
            &name(core, "_reconstruct"),
            &name("numpy", "ndarray"),
            &[b'K', 0, 0x85],
            &text("b"),
            &[0x87, b'R', b'q', 2, b'(', b'K', 1, b'K', labels.len() as u8, b'M', 0, 12, 0x86],
            &name("numpy", "dtype"),
            &text("u1"),
            &[0x89, 0x88, 0x87, b'R', b'q', 3, b'(', b'K', 3],
            &text("|"),
            &[b'N', b'N', b'N', b'J', 255, 255, 255, 255, b'J', 255, 255, 255, 255, b'K', 0, b't', b'b', 0x89, b'T'],
            &(content.len() as u32).to_le_bytes(),
            &content,
            b"tb",
            &text(key),
            &[b']', b'q', 4, b'('],
            &list,
            b"eu.",
        ]
        .concat()
    }

    #[test]
    fn records_of_all_files_and_forms_are_read() {
        for (form, name, files, test) in [
            (
                0,
                "cifar10",
                [
                    ("data_batch_1.bin", [record(&[3], 0), record(&[9], 255)].concat()),
                    ("data_batch_4.bin", record(&[0], 51)),
                ],
                ("test_batch.bin", record(&[1], 1)),
            ),
            (
                1,
                "cifar10",
                [("data_batch_1", pickled(2, "labels", &[3, 9], 0)), ("data_batch_4", pickled(4, "labels", &[0], 51))],
                ("test_batch", pickled(2, "labels", &[1], 1)),
            ),
            (
                2,
                "cifar100",
                [
                    ("train.bin", [record(&[7, 3], 0), record(&[2, 9], 0), record(&[1, 0], 51)].concat()),
                    ("other", Vec::new()),
                ],
                ("test.bin", record(&[1, 1], 1)),
            ),
            (
                3,
                "cifar100",
                [("train", pickled(2, "fine_labels", &[3, 9, 0], 51)), ("meta", Vec::new())],
                ("test", pickled(4, "fine_labels", &[1], 1)),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let write = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
            assert_eq!(Form::of(folder.path()), None);
            files.into_iter().for_each(|(name, bytes)| write(name, bytes));
            let found = Form::of(folder.path()).unwrap();
            assert_eq!((found, found.name), (FORMS[form], name));
            let (train, none) = found.open(folder.path()).unwrap();
            let mut sample = vec![0.0; IMAGE];
            let labels: Vec<u32> = (0..train.len()).map(|index| train.read(index, &mut sample).unwrap()).collect();
            assert_eq!((labels, train.classes()), (vec![3, 9, 0], usize::from(FORMS[form].classes)));
            assert!(sample.iter().all(|value| *value == 51.0 / 127.5 - 1.0));
            assert!(none.is_none());
            write(test.0, test.1);
            assert_eq!(found.open(folder.path()).unwrap().1.map(|test| test.len()), Some(1));
        }
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let mut cut = [record(&[1], 0), record(&[2], 0)].concat();
        cut.truncate(3103);
        let whole = pickled(2, "labels", &[1, 2], 0);
        let other = |from: &[u8], to: &[u8]| {
            let at = whole.windows(from.len()).position(|window| window == from).unwrap();
            [&whole[..at], to, &whole[at + from.len()..]].concat()
        };
        for (name, bytes, part) in [
            ("data_batch_2.bin", Vec::new(), "0 records of 3073 bytes and 0 bytes more"),
            ("data_batch_2.bin", cut, "1 records of 3073 bytes and 30 bytes more"),
            ("data_batch_2.bin", [record(&[1], 0), record(&[10], 0)].concat(), "record 1 has label 10, not 0 to 9"),
            ("data_batch_2", pickled(2, "labels", &[1, 10], 0), "record 1 has label 10, not 0 to 9"),
            ("data_batch_2", Vec::new(), "ends early"),
            ("data_batch_2", pickled(2, "names", &[1], 0), "no list of labels"),
            ("data_batch_2", other(b"u1", b"f4"), "an array of type f4"),
            (
                "data_batch_2",
                other(b"cnumpy.core.multiarray\n_reconstruct\n", b"cos\nsystem\n"),
                "os.system, which these files do not have",
            ),
            ("data_batch_2", b"\x80\x02]q\x01.".to_vec(), "no dictionary"),
            ("data_batch_2", b"\x80\x02\x81.".to_vec(), "the opcode 0x81"),
        ] {
            let folder = tempfile::tempdir().unwrap();
            std::fs::write(folder.path().join(name), bytes).unwrap();
            let error = Form::of(folder.path()).unwrap().open(folder.path()).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(part), "{error}");
        }
        // A cut or changed file gives an error or images, and never a panic.
        let folder = tempfile::tempdir().unwrap();
        let heads = (0..400).chain(whole.len() - 40..whole.len());
        for at in heads {
            for bytes in [whole[..at].to_vec(), other(&whole[at..at + 1], &[whole[at] ^ 0x15])] {
                std::fs::write(folder.path().join("data_batch_1"), bytes).unwrap();
                drop(Form::of(folder.path()).unwrap().open(folder.path()));
            }
        }
    }
}
