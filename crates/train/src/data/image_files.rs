//! The image files in folders, by class.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::DirEntry;
use std::path::{Path, PathBuf};

use super::file;
use crate::Error;

/// The names of image files, as torchvision reads them.
const EXTENSIONS: [&str; 9] = ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp"];

/// The words of an error for a folder without images.
pub const NO_IMAGES: &str = "no images (.jpg, .jpeg, .png, .ppm, .bmp, .pgm, .tif, .tiff or .webp)";

/// The files of folders.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    /// The images with their labels.
    pub files: Vec<(PathBuf, u32)>,
    /// Counts of other files, by extension.
    pub left_out: BTreeMap<String, usize>,
}

/// The names of the subfolders, in order.
pub fn classes(folder: &Path) -> Result<Vec<OsString>, Error> {
    let mut names: Vec<OsString> = Vec::new();
    for (path, _) in entries(folder)? {
        if let (true, Some(name)) = (path.is_dir(), path.file_name()) {
            names.push(name.to_owned());
        }
    }
    match names.is_empty() {
        true => Err(file::bad(
            folder,
            "contains no files of CIFAR-10 or CIFAR-100 (data_batch_1.bin, train.bin, or those of Python), of MNIST \
             (train-images-idx3-ubyte), or folder of images per class",
        )),
        false => Ok(names),
    }
}

/// The images of every class, in order, each class with its label.
pub fn list<'a>(folder: &Path, classes: impl Iterator<Item = (u32, &'a OsString)>) -> Result<Listed, Error> {
    let mut listed = Listed::default();
    for (label, name) in classes {
        let class = folder.join(name);
        let before = listed.files.len();
        listed.add(&class, label, true, &mut Vec::new())?;
        if listed.files.len() == before {
            return Err(file::bad(&class, format!("the class has {NO_IMAGES}{}", listed.beside())));
        }
    }
    // Files outside of the class folders have no label.
    for (path, _) in entries(folder)?.into_iter().filter(|(path, _)| !path.is_dir()) {
        listed.leave_out(&path);
    }
    Ok(listed)
}

impl Listed {
    /// Adds the images that are in a folder, in order, then those in its folders if `is_deep`; `around` are the folders around it.
    pub fn add(&mut self, folder: &Path, label: u32, is_deep: bool, around: &mut Vec<PathBuf>) -> Result<(), Error> {
        let failed = |path: &Path, source| file::failed(path, "cannot be read", source);
        let mut folders = Vec::new();
        for (path, entry) in entries(folder)? {
            // The folder entry usually has the type, which saves a million calls for a million files.
            let kind = entry.file_type().map_err(|source| failed(&path, source))?;
            if is_image(&path) && !kind.is_dir() {
                if !kind.is_file() {
                    file::check(&path, &std::fs::metadata(&path).map_err(|source| failed(&path, source))?)?;
                }
                self.files.push((path, label));
            } else if kind.is_dir() || kind.is_symlink() && path.is_dir() {
                folders.push(path);
            } else {
                self.leave_out(&path);
            }
        }
        if !is_deep || folders.is_empty() {
            return Ok(());
        }
        around.push(std::fs::canonicalize(folder).map_err(|source| failed(folder, source))?);
        for inner in folders {
            let place = std::fs::canonicalize(&inner).map_err(|source| failed(&inner, source))?;
            if around.contains(&place) {
                return Err(file::bad(&inner, "is a link to a folder that it is in"));
            }
            self.add(&inner, label, is_deep, around)?;
        }
        around.pop();
        Ok(())
    }

    fn leave_out(&mut self, path: &Path) {
        let extension = path.extension().map_or_else(
            || "without extension".to_owned(),
            |extension| format!(".{}", extension.to_string_lossy().to_lowercase()),
        );
        *self.left_out.entry(extension).or_default() += 1;
    }

    /// The files of other kinds, as words: `4 .txt, 1 .gif`.
    pub fn others(&self) -> String {
        let words: Vec<String> =
            self.left_out.iter().map(|(extension, count)| format!("{count} {extension}")).collect();
        words.join(", ")
    }

    pub fn beside(&self) -> String {
        if self.left_out.is_empty() { String::new() } else { format!(", but files of other kinds: {}", self.others()) }
    }
}

/// Whether a folder has images and no folders of classes.
pub fn is_without_classes(folder: &Path) -> bool {
    entries(folder)
        .is_ok_and(|all| all.iter().any(|(path, _)| is_image(path)) && !all.iter().any(|(path, _)| path.is_dir()))
}

/// The entries of a folder that are not hidden, in order.
fn entries(folder: &Path) -> Result<Vec<(PathBuf, DirEntry)>, Error> {
    let failed = |source| file::failed(folder, "cannot be listed", source);
    let entries = std::fs::read_dir(folder).map_err(failed)?.map(|entry| entry.map(|entry| (entry.path(), entry)));
    let mut entries = entries.collect::<Result<Vec<_>, _>>().map_err(failed)?;
    entries.retain(|(_, entry)| !is_hidden(&entry.file_name()));
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(entries)
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".") || name == "__MACOSX"
}

fn is_image(path: &Path) -> bool {
    let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
    extension.is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}
