//! Reads whole data files, decompressed if the name ends in `.gz`, with errors that name the file.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use crate::Error;

/// The error of invalid data.
pub fn bad(path: &Path, what: impl Into<String>) -> Error {
    Error::Data { path: path.to_owned(), what: what.into(), source: None }
}

/// The error of a file operation that failed with `source`.
pub fn failed(path: &Path, what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Data { path: path.to_owned(), what: what.to_owned(), source: Some(source.into()) }
}

/// The bytes of a file, unpacked if its name ends in `.gz`.
///
/// # Errors
/// [`Error::Data`] for a file that cannot be read or unpacked.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes).map_err(|source| failed(path, "cannot be read", source))?;
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(bytes);
    }
    unpack(&bytes).map_err(|source| failed(path, "cannot be decompressed; it may be truncated", source))
}

/// Opens a regular file. Refuses anything else without blocking, because a pipe may never have a writer.
///
/// # Errors
/// [`Error::Data`] for a file that cannot be opened, and for anything but a file.
pub fn open(path: &Path) -> Result<File, Error> {
    let refused = |source| failed(path, "cannot be read", source);
    // Check before opening, because opening alone affects some devices, and after, because the file may have been
    // replaced.
    check(path, &std::fs::metadata(path).map_err(refused)?)?;
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(refused)?;
    check(path, &file.metadata().map_err(refused)?)?;
    Ok(file)
}

/// Refuses anything but a regular file, naming its kind.
///
/// # Errors
/// [`Error::Data`].
pub fn check(path: &Path, found: &Metadata) -> Result<(), Error> {
    if found.is_file() { Ok(()) } else { Err(bad(path, format!("is {}, not a file", kind(found.file_type())))) }
}

fn kind(kind: FileType) -> &'static str {
    match kind {
        kind if kind.is_dir() => "a folder",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        _ => "a device",
    }
}

/// The unpacked content of a gzip file.
///
/// # Errors
/// The errors of a truncated file or one that is not in gzip format.
pub fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_but_a_file_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("train-images-idx3-ubyte");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        for (path, kind) in
            [(pipe.as_path(), "a pipe"), (folder.path(), "a folder"), (Path::new("/dev/zero"), "a device")]
        {
            let error = read(path).unwrap_err().to_string();
            assert!(error.contains(&format!("{}: is {kind}, not a file", path.display())), "{error}");
        }
    }
}
