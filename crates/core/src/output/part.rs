//! The file that an output is while it is being written.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{open, place};

/// The part files of this process, to be removed where it is ended.
static PARTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// Names that are tried; they are drawn from 2^64.
const ATTEMPTS: usize = 8;
/// Bytes of a file's name that its part has too: with what is added, every file system takes that.
const NAME: usize = 200;

/// A file of its own beside its target, removed when it is dropped.
pub struct Part {
    path: PathBuf,
    file: File,
}

fn parts() -> MutexGuard<'static, Vec<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Part {
    /// Makes the part of `target`, which is no link. Where the target is there, it must be writable, and the part gets its
    /// permissions.
    ///
    /// # Errors
    /// Those of opening the target and of making a file in its folder.
    pub fn beside(target: &Path) -> Result<Part> {
        let permissions = match open(target, &mut OpenOptions::new()) {
            Ok(file) => Some(file.metadata()?.permissions()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let part = Part::new(target)?;
        if let Some(permissions) = permissions {
            part.file.set_permissions(permissions)?;
        }
        Ok(part)
    }

    fn new(target: &Path) -> Result<Part> {
        // Held while the file is made, so that whoever ends the process meets every file in the list.
        let mut parts = parts();
        let mut taken = ErrorKind::AlreadyExists.into();
        for _ in 0..ATTEMPTS {
            let path = name(target);
            // Made here and by nobody else: a file or link of that name is never written through.
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    parts.push(path.clone());
                    return Ok(Part { path, file });
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = error,
                Err(error) => return Err(error),
            }
        }
        Err(taken)
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Puts the part in the place of its target, once its bytes are on the disk.
    pub fn replace(self, target: &Path) -> Result<()> {
        self.file.sync_all()?;
        let mut parts = parts();
        std::fs::rename(&self.path, target)?;
        parts.retain(|path| *path != self.path);
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut parts = parts();
        if let Some(place) = parts.iter().position(|path| *path == self.path) {
            parts.swap_remove(place);
            // What cannot be removed can be told to nobody: whoever wrote has an error of its own.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the part files of this process, for a handler that ends it: no further one can be made. Whoever tries to, waits
/// for the end.
pub fn abandon() {
    let parts = parts();
    for path in parts.iter() {
        // The process ends; nothing is left to be done about it.
        let _ = std::fs::remove_file(path);
    }
    std::mem::forget(parts);
}

/// A name that nobody can guess.
fn name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let mut part = name[..name.len().min(NAME)].to_vec();
    part.extend(format!(".{:016x}.part", RandomState::new().hash_one(std::process::id())).into_bytes());
    place::folder(target).join(OsString::from_vec(part))
}
