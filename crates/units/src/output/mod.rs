//! Writes all output files in one way: a file is complete or absent, and a device, pipe or other special file is never replaced by a regular one.
//!
//! ```text
//! a file, or nothing yet            part file next to it -> written -> flushed to disk -> renamed over it
//! a link                            the same for the file that it leads to; the link stays
//! device, pipe, terminal, /dev/fd   opened and written into
//! ```
//!
//! `place` resolves links, `part` writes regular files, `stream` writes in place, and `space` reports free space.

mod part;
mod place;
mod space;
mod stream;

use std::fs::{File, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::Path;
use std::time::Duration;

use part::PartFile;
use place::Target;

pub use part::abandon;
pub use place::folder;

use crate::{Bytes, Error};

/// Writes `content` to `path`: a regular file is replaced as a whole or left unchanged; any other file is written to.
///
/// An existing file keeps its permissions. A pipe must have a reader, and a slow reader is waited for.
///
/// # Errors
/// [`Error::File`] with the obstacle; no partial file is left behind.
pub fn write(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Error> {
    write_sized(path, None, content.as_ref())
}

/// Like [`write()`], but `fill` writes the content piece by piece. Small pieces are fine, because they are buffered.
///
/// # Errors
/// The errors of [`write()`] and of `fill`.
pub fn write_with(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<(), Error> {
    fill_place(path, None, fill).map_err(|error| fault(path, None, error))
}

/// Like [`write()`], but fails on a pipe whose reader reads nothing for `patience`.
///
/// # Errors
/// As [`write()`].
pub fn write_within(path: &Path, content: &[u8], patience: Duration) -> Result<(), Error> {
    write_sized(path, Some(patience), content)
}

fn write_sized(path: &Path, patience: Option<Duration>, content: &[u8]) -> Result<(), Error> {
    let size = Bytes(content.len() as u64);
    fill_place(path, patience, |out| out.write_all(content)).map_err(|error| fault(path, Some(size), error))
}

/// Checks that `path` can be written, before doing the work whose result it will hold. Changes nothing that exists.
///
/// Creates and removes a part file of one byte, which fails on a full disk too. Does not touch pipes and devices:
/// opening a pipe and closing it again would end its reader.
///
/// # Errors
/// As [`write()`].
pub fn check(path: &Path) -> Result<(), Error> {
    let check = || match Target::of(path)? {
        Target::File(target) => PartFile::beside(&target)?.file().write_all(b"\n"),
        Target::Open(_) | Target::Standard(_) => Ok(()),
    };
    check().map_err(|error| fault(path, None, error))
}

/// Whether both paths lead to one regular file, so that a write to one replaces the other. Pipes and devices accept both.
pub fn is_one_file(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| match Target::of(path) {
        Ok(Target::File(target)) => Some(place::folder(&target).canonicalize().ok()?.join(target.file_name()?)),
        _ => None,
    };
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// Checks that the disk has room for a file of this many bytes in addition to the file that it replaces. Passes if the free space is unknown, and for
/// special files.
///
/// # Errors
/// [`Error::File`] with the bytes needed and free.
pub fn check_room(path: &Path, needed: Bytes) -> Result<(), Error> {
    match space::free(path) {
        Some(free) if free < needed => {
            Err(Error::File { path: path.to_owned(), what: space::full(path, Some(needed)), source: None })
        }
        _ => Ok(()),
    }
}

/// Whether `path` leads to this process's own standard output, where nothing else should be printed then.
pub fn is_standard_output(path: &Path) -> bool {
    matches!(Target::of(path), Ok(Target::Standard(place::Standard::Output)))
}

fn fill_place(
    path: &Path,
    patience: Option<Duration>,
    fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let through = |file: &mut dyn Write| {
        let mut out = BufWriter::new(file);
        let filled = fill(&mut out).and_then(|()| out.flush());
        // After a failure, dropping the buffer must not try to write the rest again.
        drop(out.into_parts());
        filled
    };
    match Target::of(path)? {
        Target::File(target) => {
            let part = PartFile::beside(&target)?;
            through(&mut part.file())?;
            part.replace(&target)
        }
        Target::Open(target) => through(&mut stream::Stream::open(&target, patience)?),
        Target::Standard(standard) => through(&mut standard.file()?),
    }
}

/// Converts an I/O error into one with a remedy; `needed` is the size of the content, if known.
fn fault(path: &Path, needed: Option<Bytes>, error: std::io::Error) -> Error {
    let folder = || {
        let target = place::target(path).unwrap_or_else(|_| path.to_owned());
        place::folder(&target).display().to_string()
    };
    let what = match error.kind() {
        _ if path.as_os_str().is_empty() => "the output file name is empty".to_owned(),
        _ if error.raw_os_error() == Some(libc::ENXIO) => match std::fs::metadata(path) {
            Ok(there) if stream::is_pipe(&there) => "is a pipe that nobody reads; start its reader first".to_owned(),
            _ => "cannot be written to; name a file or a pipe".to_owned(),
        },
        ErrorKind::IsADirectory => "is a folder; name a file in it".to_owned(),
        // Some file systems, such as /proc, report a new file as missing.
        ErrorKind::NotFound if Path::new(&folder()).is_dir() => {
            format!("cannot be written: the folder {} takes no new files; name another", folder())
        }
        ErrorKind::NotFound => format!("cannot be written: there is no folder {}; make it, or name another", folder()),
        ErrorKind::NotADirectory => format!("cannot be written: {} is not a folder", folder()),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("cannot be written: no permission for the file or its folder {}; name another", folder())
        }
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => space::full(path, needed),
        ErrorKind::FileTooLarge => {
            let size = needed.map_or(String::new(), |needed| format!(" of {needed}"));
            format!(
                "cannot be written: a file{size} is over the limit of this process or of the disk; raise it (`ulimit -f`), \
                     or name a file on another disk"
            )
        }
        ErrorKind::TimedOut => "is a pipe whose reader does not read".to_owned(),
        _ => "cannot be written".to_owned(),
    };
    Error::File { path: path.to_owned(), what, source: Some(error.into()) }
}

/// Opens an existing target for writing, without changing it.
fn open(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    options.write(true).open(path)
}
