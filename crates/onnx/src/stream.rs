//! An ONNX file as a stream of bytes that reads little and seeks over the rest.
//!
//! ```text
//! file    | graph | node node .. | initializer: name dims | raw_data: 400 MB | initializer ..
//!           read ----------------------------------------> seek over ------>  read
//! ```
//!
//! A model is a small graph between large weights. Long payloads and unknown fields are skipped. The bytes read are bounded, whatever lengths the
//! file states.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use prost::bytes::{Buf, Bytes};

/// Bytes to read at once.
const CHUNK: usize = 1 << 16;

/// A file as a [`Buf`], from its current position to its end.
///
/// A `Buf` cannot report errors: after one, the stream ends early, and [`Stream::fault`] has it.
pub struct Stream {
    file: File,
    chunk: Vec<u8>,
    at: usize,
    /// Bytes from `at` to the end of the file.
    left: u64,
    /// Payloads longer than this are left out: they become empty.
    longest: usize,
    /// Bytes that may still be read.
    most: u64,
    fault: Option<io::Error>,
}

impl Stream {
    /// Opens a regular file. Reads at most `most` bytes, and leaves out payloads of more than `longest`.
    ///
    /// # Errors
    /// An error of opening the file; [`io::ErrorKind::InvalidInput`] for anything but a regular file.
    pub fn open(path: &Path, longest: usize, most: u64) -> io::Result<Stream> {
        // Opening a named pipe would wait for a writer.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        let mut stream = Stream { file, chunk: Vec::new(), at: 0, left, longest, most, fault: None };
        stream.refill();
        Ok(stream)
    }

    /// The error that ended the stream early, if any.
    pub fn fault(self) -> Option<io::Error> {
        self.fault
    }

    fn end(&mut self, fault: io::Error) {
        self.fault.get_or_insert(fault);
        (self.left, self.at) = (0, 0);
        self.chunk.clear();
    }

    /// Reads the next chunk once the current one is used up.
    fn refill(&mut self) {
        if self.at < self.chunk.len() || self.left == 0 {
            return;
        }
        let wanted = self.left.min(CHUNK as u64);
        if wanted > self.most {
            return self.end(io::Error::new(io::ErrorKind::InvalidData, "the graph without its weights is too large"));
        }
        self.chunk.resize(wanted as usize, 0);
        self.at = 0;
        match self.file.read_exact(&mut self.chunk) {
            Ok(()) => self.most -= wanted,
            Err(error) => self.end(error),
        }
    }
}

impl Buf for Stream {
    fn remaining(&self) -> usize {
        usize::try_from(self.left).unwrap_or(usize::MAX)
    }

    fn chunk(&self) -> &[u8] {
        &self.chunk[self.at..]
    }

    fn advance(&mut self, count: usize) {
        let count = count.min(self.remaining());
        let buffered = self.chunk.len() - self.at;
        self.left -= count as u64;
        if count <= buffered {
            self.at += count;
        } else {
            self.at = self.chunk.len();
            let over = i64::try_from(count - buffered).map_err(|_| io::ErrorKind::InvalidInput.into());
            if let Err(error) = over.and_then(|over| self.file.seek(SeekFrom::Current(over))) {
                self.end(error);
            }
        }
        self.refill();
    }

    fn copy_to_bytes(&mut self, len: usize) -> Bytes {
        let len = len.min(self.remaining());
        if len > self.longest {
            self.advance(len);
            return Bytes::new();
        }
        let mut copied = Vec::new();
        while copied.len() < len && self.left > 0 {
            let part = self.chunk().len().min(len - copied.len());
            copied.extend_from_slice(&self.chunk()[..part]);
            self.advance(part);
        }
        copied.into()
    }
}
