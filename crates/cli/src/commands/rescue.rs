//! Saves a file that cannot be produced again to another place, if its own place cannot be written.

use std::fs::{self, DirBuilder};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use tightfit_units::{Bytes, output};

use crate::failure::Failure;
use crate::options::Common;
use crate::session::cache_path;

/// Writes a file that takes about `needed` bytes to the first folder that takes it: the folder of the cache, or the one for temporary files. Returns
/// lines for the user: the new place, or the reason why the file was not saved.
pub fn elsewhere(path: &Path, needed: Bytes, common: &Common, write: impl Fn(&Path) -> Result<(), Failure>) -> String {
    let cache = cache_path(common).and_then(|cache| cache.parent().map(Path::to_owned));
    let mut tried = Vec::new();
    for folder in cache.into_iter().chain([std::env::temp_dir()]) {
        match written(path, needed, &folder, &write) {
            Ok(other) => {
                let (path, other) = (path.display(), other.display());
                return format!(
                    "  saved in {other} instead; {path} stays as it was\n  move it to where you want it, or add --resume \
                     {other} to the command to continue"
                );
            }
            Err(failure) => tried.push(format!("  also not saved: {}", failure.text())),
        }
    }
    tried.push(format!("  the run since the last save is lost; {} stays as it was", path.display()));
    tried.join("\n")
}

/// Writes the file under its own name into a new folder in this one, and returns its path.
fn written(
    path: &Path,
    needed: Bytes,
    folder: &Path,
    write: impl Fn(&Path) -> Result<(), Failure>,
) -> Result<PathBuf, Failure> {
    let own = folder.join(format!("tightfit-save-{:016x}", RandomState::new().hash_one(std::process::id())));
    let other = own.join(path.file_name().unwrap_or_default());
    // Checked first, because the folder for temporary files may be in memory.
    output::check_room(&own, needed)?;
    // A new folder, so that no other user can have placed a link under the file's name.
    make(&own).map_err(|error| Failure::Wrong(format!("{}: {error}", own.display())))?;
    write(&other).inspect_err(|_| {
        // Only an empty folder is left, and the write's error matters more.
        let _ = fs::remove_dir(&own);
    })?;
    Ok(other)
}

/// Makes a folder for this user alone.
fn make(folder: &Path) -> std::io::Result<()> {
    DirBuilder::new().mode(0o700).create(folder)
}
