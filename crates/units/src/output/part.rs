//! The temporary file that holds an output while it is written.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{open, place};

/// The part files of this process, to be removed if a handler ends it.
static PARTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The number of names to try; they are drawn from 2^64.
const ATTEMPTS: usize = 8;
/// The bytes of the target's name to keep: with the suffix, every file system accepts the length.
const NAME: usize = 200;

/// A temporary file next to its target, removed when dropped.
pub struct PartFile {
    path: PathBuf,
    file: File,
}

fn parts() -> MutexGuard<'static, Vec<PathBuf>> {
    PARTS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PartFile {
    /// Creates the part file of `target`, which must not be a link. If the target exists, it must be writable, and the
    /// part gets its permissions.
    ///
    /// # Errors
    /// An error of opening the target or of creating a file in its folder.
    pub fn beside(target: &Path) -> Result<PartFile> {
        let permissions = match open(target, &mut OpenOptions::new()) {
            Ok(file) => Some(file.metadata()?.permissions()),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(error),
        };
        let part = PartFile::new(target)?;
        if let Some(permissions) = permissions {
            part.file.set_permissions(permissions)?;
        }
        Ok(part)
    }

    fn new(target: &Path) -> Result<PartFile> {
        // Locked while the file is created, so that a handler that ends the process sees every file in the list.
        let mut parts = parts();
        let mut taken = ErrorKind::AlreadyExists.into();
        for _ in 0..ATTEMPTS {
            let path = name(target);
            // Created exclusively: an existing file or link with this name is never written to.
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(file) => {
                    parts.push(path.clone());
                    return Ok(PartFile { path, file });
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

    /// Replaces the target by the part, once its bytes are on disk.
    pub fn replace(self, target: &Path) -> Result<()> {
        self.file.sync_all()?;
        let mut parts = parts();
        std::fs::rename(&self.path, target)?;
        parts.retain(|path| *path != self.path);
        Ok(())
    }
}

impl Drop for PartFile {
    fn drop(&mut self) {
        let mut parts = parts();
        if let Some(place) = parts.iter().position(|path| *path == self.path) {
            parts.swap_remove(place);
            // A failure to remove the file cannot be reported: the writer already has its own error.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes the part files of this process, for a handler that ends it. Blocks any attempt to create another until the
/// end.
pub fn abandon() {
    let parts = parts();
    for path in parts.iter() {
        // The process is ending, so there is nothing left to do about a failure.
        let _ = std::fs::remove_file(path);
    }
    std::mem::forget(parts);
}

/// An unpredictable name.
fn name(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let mut part = name[..name.len().min(NAME)].to_vec();
    part.extend(format!(".{:016x}.part", RandomState::new().hash_one(std::process::id())).into_bytes());
    place::folder(target).join(OsString::from_vec(part))
}
