//! The kind of data in a folder: one of the known data sets, in the folder itself or where torchvision puts it, or images.

use std::path::{Path, PathBuf};

use tightfit_network::Shape;

use super::{Dataset, Images, cifar, file, mnist};
use crate::Error;

/// Where torchvision puts data sets in the folder that a program names.
const PLACES: [&str; 10] = [
    "raw",
    "MNIST/raw",
    "FashionMNIST/raw",
    "KMNIST/raw",
    "QMNIST/raw",
    "EMNIST/raw",
    "cifar-10-batches-bin",
    "cifar-10-batches-py",
    "cifar-100-binary",
    "cifar-100-python",
];

/// A known data set.
enum Form {
    Cifar(cifar::Form),
    Mnist(mnist::Form),
}

/// The known data set of a folder, and the folder that its files are in; none for images.
///
/// # Errors
/// [`Error::Data`] for a folder with several, naming them.
fn find(folder: &Path) -> Result<Option<(PathBuf, Form)>, Error> {
    let mut found = in_one(folder);
    if found.is_empty() {
        found = PLACES.into_iter().flat_map(|place| in_one(&folder.join(place))).collect();
    }
    if let [_, _, ..] = found[..] {
        let names: Vec<String> = found
            .iter()
            .map(|(place, form)| {
                let place = place.strip_prefix(folder).unwrap_or(place);
                match form {
                    Form::Cifar(_) => place.display().to_string(),
                    Form::Mnist(form) => place.join(form.file()).display().to_string(),
                }
            })
            .collect();
        let what = format!("has several data sets: {}; give a folder with one of them", names.join(", "));
        return Err(file::bad(folder, what));
    }
    Ok(found.pop())
}

fn in_one(folder: &Path) -> Vec<(PathBuf, Form)> {
    let forms = cifar::Form::of(folder).map(Form::Cifar).into_iter();
    forms.chain(mnist::Form::all(folder).into_iter().map(Form::Mnist)).map(|form| (folder.to_owned(), form)).collect()
}

/// Whether a folder has none of the known data sets.
///
/// # Errors
/// [`Error::Data`] for a folder with several.
pub(super) fn is_of_images(folder: &Path) -> Result<bool, Error> {
    Ok(find(folder)?.is_none())
}

/// Opens the data of a folder for a network with this input and number of classes.
///
/// # Errors
/// [`Error::Data`] for a folder with several data sets, and the errors of its files.
pub(super) fn open(folder: &Path, sample: Shape, classes: usize) -> Result<Dataset, Error> {
    match find(folder)? {
        Some((place, Form::Cifar(form))) => {
            let (train, test) = form.open(&place)?;
            Ok(Dataset::new(form.name, train, test))
        }
        Some((place, Form::Mnist(form))) => {
            let (train, test) = form.open(&place, classes)?;
            Ok(Dataset::new(&form.name(), train, test))
        }
        None => {
            let (train, test) = Images::open(folder, sample)?;
            Ok(Dataset::new("images", train, test))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_sets_are_found_where_torchvision_puts_them_and_several_are_refused() {
        let root = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        write("data/FashionMNIST/raw/train-images-idx3-ubyte", &[0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 9]);
        write("data/FashionMNIST/raw/train-labels-idx1-ubyte", &[0, 0, 8, 1, 0, 0, 0, 1, 4]);
        for folder in ["data", "data/FashionMNIST", "data/FashionMNIST/raw"] {
            let opened = open(&root.path().join(folder), Shape::image(1, 1, 1), 10).unwrap();
            assert_eq!((opened.train.len(), opened.train.read(0, &mut [0.0]).unwrap()), (1, 4));
        }
        write("cifar/cifar-100-binary/train.bin", &[0; 3074]);
        assert_eq!(open(&root.path().join("cifar"), Shape::image(3, 32, 32), 100).unwrap().name, "cifar100");
        write("data/cifar-10-batches-bin/data_batch_1.bin", &[0; 3073]);
        write("two/emnist-letters-train-images-idx3-ubyte", b"");
        write("two/emnist-digits-train-images-idx3-ubyte.gz", b"");
        for (folder, part) in [
            ("data", "FashionMNIST/raw/train-images-idx3-ubyte, cifar-10-batches-bin; give a folder with one"),
            ("two", "emnist-digits-train-images-idx3-ubyte, emnist-letters-train-images-idx3-ubyte; give"),
        ] {
            let error = open(&root.path().join(folder), Shape::image(1, 1, 1), 10).err().unwrap().to_string();
            assert!(error.contains(part), "{error}");
        }
        // A folder of training images is not a file of CIFAR-100.
        std::fs::create_dir_all(root.path().join("images/train/cat")).unwrap();
        assert!(is_of_images(&root.path().join("images")).unwrap());
    }
}
