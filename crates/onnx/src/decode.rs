//! Decodes a file, and names its faults.

use std::path::Path;

use prost::Message;
use tightfit_units::Error;

use super::proto::ModelProto;
use super::stream::Stream;

/// Decodes a file; payloads over `longest` bytes become empty, and at most `most` bytes are read.
pub(super) fn decode(path: &Path, longest: usize, most: u64) -> Result<ModelProto, Error> {
    let wrong = |what: &str, source: Box<dyn std::error::Error + Send + Sync>| Error::File {
        path: path.to_owned(),
        what: what.to_owned(),
        source: Some(source),
    };
    let unreadable = "cannot be read as an ONNX model";
    let mut stream = Stream::open(path, longest, most).map_err(|error| wrong(unreadable, error.into()))?;
    let decoded = ModelProto::decode(&mut stream);
    match (stream.fault(), decoded) {
        (Some(fault), _) => Err(wrong(unreadable, fault.into())),
        (None, Err(error)) => Err(wrong("is not an ONNX model, or is cut off or damaged", error.into())),
        (None, Ok(model)) => Ok(model),
    }
}

/// An error in the content of a file.
pub(super) fn file_error(path: &Path, what: String) -> Error {
    Error::File { path: path.to_owned(), what, source: None }
}
