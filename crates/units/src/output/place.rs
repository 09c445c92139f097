//! Resolves the target of a path: a regular file, this process's own output, or a special file.

use std::fs::File;
use std::io::{ErrorKind, Result, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where an output goes.
pub enum Target {
    /// A file, or nothing yet; not a link.
    File(PathBuf),
    /// A device, a pipe, or an open descriptor.
    Open(PathBuf),
    /// A standard stream of this process, connected to anything.
    Standard(Standard),
}

/// A standard stream to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standard {
    /// Standard output.
    Output,
    /// Standard error.
    Error,
}

/// The number of links to follow before they count as a loop; the same limit as in Linux.
const MOST_LINKS: usize = 40;

impl Target {
    /// Follows the links of `path`.
    ///
    /// # Errors
    /// [`ErrorKind::IsADirectory`] for a folder; an error of the lookup.
    pub fn of(path: &Path) -> Result<Target> {
        if path.as_os_str().as_bytes().ends_with(b"/") {
            return Err(ErrorKind::IsADirectory.into());
        }
        let target = target(path)?;
        if let Some(number) = descriptor(&target) {
            return Ok(match number {
                Some(1) => Target::Standard(Standard::Output),
                Some(2) => Target::Standard(Standard::Error),
                _ => Target::Open(target),
            });
        }
        match std::fs::metadata(&target) {
            Ok(there) if there.is_dir() => Err(ErrorKind::IsADirectory.into()),
            Ok(there) if !there.is_file() => Ok(Target::Open(target)),
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ if target.file_name().is_none() => Err(ErrorKind::NotFound.into()),
            _ => Ok(Target::File(target)),
        }
    }
}

impl Standard {
    /// The stream itself, so that writing continues at the process's position, even in a file with other writers.
    pub fn file(self) -> Result<File> {
        let descriptor = match self {
            Standard::Output => {
                let mut out = std::io::stdout();
                out.flush()?;
                out.as_fd().try_clone_to_owned()
            }
            Standard::Error => std::io::stderr().as_fd().try_clone_to_owned(),
        };
        Ok(File::from(descriptor?))
    }
}

/// The last path of a chain of links, which may lead to nothing. Descriptors under `/proc` are not followed.
pub fn target(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let is_link = std::fs::symlink_metadata(&path).is_ok_and(|there| there.is_symlink());
        if !is_link || descriptor(&path).is_some() {
            return Ok(path);
        }
        path = folder(&path).join(std::fs::read_link(&path)?);
    }
    Err(std::io::Error::from_raw_os_error(libc::ELOOP))
}

/// The folder that a file is in.
pub fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// The kind of open descriptor that a path names, if any, and its number if it belongs to this process.
fn descriptor(path: &Path) -> Option<Option<u32>> {
    let folder = folder(path).canonicalize().ok()?;
    let mut parts = folder.strip_prefix("/proc").ok()?.iter();
    let process = parts.next()?;
    if parts.next_back()? != "fd" {
        return None;
    }
    let is_own = process == std::process::id().to_string().as_str();
    Some(if is_own { path.file_name()?.to_str()?.parse().ok() } else { None })
}
