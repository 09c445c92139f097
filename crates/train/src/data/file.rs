//! Reading data files: whole, unpacked where their name ends in `.gz`, with errors that name the file.

use std::io::Read;
use std::path::Path;

use crate::Error;

/// The error of data that are not what they should be.
pub fn bad(path: &Path, what: impl Into<String>) -> Error {
    Error::Data { path: path.to_owned(), what: what.into(), source: None }
}

/// The error of a file that something else failed on.
pub fn failed(path: &Path, what: &str, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::Data { path: path.to_owned(), what: what.to_owned(), source: Some(source.into()) }
}

/// The bytes of a file, unpacked if its name ends in `.gz`.
///
/// # Errors
/// [`Error::Data`] for a file that cannot be read or unpacked.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let bytes = std::fs::read(path).map_err(|source| failed(path, "cannot be read", source))?;
    if path.extension().is_none_or(|extension| extension != "gz") {
        return Ok(bytes);
    }
    unpack(&bytes).map_err(|source| failed(path, "cannot be unpacked; is it cut off?", source))
}

/// What a gzip file holds.
///
/// # Errors
/// Those of a file that is cut off or is none.
pub fn unpack(packed: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    flate2::read::MultiGzDecoder::new(packed).read_to_end(&mut bytes)?;
    Ok(bytes)
}
