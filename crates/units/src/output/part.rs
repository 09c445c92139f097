//! The temporary file that holds an output while it is written.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tempfile::NamedTempFile;

use super::{open, place};

/// The part files of this process, to be removed if a handler ends it.
static PARTS: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());
/// The bytes of the target's name to keep: with the suffix, every file system accepts the length.
const NAME: usize = 200;

/// A temporary file next to its target, removed when dropped.
pub struct PartFile {
    file: NamedTempFile,
    listed: Listed,
}

/// An entry of the list, for as long as the file is there.
struct Listed(PathBuf);

impl Drop for Listed {
    fn drop(&mut self) {
        parts().retain(|path| *path != self.0);
    }
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
            part.file().set_permissions(permissions)?;
        }
        Ok(part)
    }

    fn new(target: &Path) -> Result<PartFile> {
        let name = target.file_name().unwrap_or_default().as_bytes();
        let name = [&name[..name.len().min(NAME)], b"."].concat();
        let mut builder = tempfile::Builder::new();
        builder.prefix(OsStr::from_bytes(&name)).suffix(".part").permissions(Permissions::from_mode(0o666));
        // Locked while the file is created, so that a handler that ends the process sees every file in the list.
        let mut parts = parts();
        let file = builder.tempfile_in(place::folder(target))?;
        parts.push(file.path().to_owned());
        let listed = Listed(file.path().to_owned());
        Ok(PartFile { file, listed })
    }

    /// The file, to be written.
    pub fn file(&self) -> &File {
        self.file.as_file()
    }

    /// Replaces the target by the part, once its bytes are on disk.
    pub fn replace(self, target: &Path) -> Result<()> {
        self.file().sync_all()?;
        let PartFile { file, listed: _listed } = self;
        let parts = parts();
        let replaced = file.persist(target);
        // The entry locks the list when it goes.
        drop(parts);
        replaced?;
        Ok(())
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
