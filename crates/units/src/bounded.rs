//! Reads files in bounded memory: compressed or not, by lines or as a whole.
//!
//! Neither `/dev/zero` nor a small file that unpacks to gigabytes may exhaust the machine's memory.

use std::fs::File;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use flate2::read::MultiGzDecoder;

use crate::{Bytes, Error};

/// How compressed content begins.
const PACKED: [u8; 2] = [0x1f, 0x8b];

/// Opens a file; if it is compressed, decompresses it while reading. The content decides, not a name that ends in `.gz`.
///
/// Rejects named pipes, because opening one waits for a writer that may never come. Reads pipes that are already open,
/// such as the shell's `<(..)`.
///
/// # Errors
/// An error of opening it; [`io::ErrorKind::InvalidInput`] for a named pipe.
pub fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    let is_open = ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|folder| path.starts_with(folder));
    if !is_open && std::fs::metadata(path)?.file_type().is_fifo() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a named pipe; write it to a file first"));
    }
    let mut file = BufReader::new(File::open(path)?);
    let is_packed = file.fill_buf()?.starts_with(&PACKED);
    Ok(if is_packed { Box::new(BufReader::new(MultiGzDecoder::new(file))) } else { Box::new(file) })
}

/// The whole text of a file, decompressed as by [`open`].
///
/// # Errors
/// An error of reading it; [`io::ErrorKind::InvalidData`] if it is not UTF-8 or longer than `most`.
pub fn read_text(path: &Path, most: Bytes) -> io::Result<String> {
    let mut text = String::new();
    open(path)?.take(most.0.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() as u64 > most.0 { Err(too_long("the file", most)) } else { Ok(text) }
}

/// Reads a document with `parse` from the text of a file; see [`read_text`]. `kind` names it in errors, such as `plan`.
///
/// # Errors
/// [`Error::File`] with the reason as its source if the file cannot be read or its text is no such document.
pub fn read_document<T>(
    path: &Path,
    most: Bytes,
    kind: &str,
    parse: impl FnOnce(&str) -> Result<T, Error>,
) -> Result<T, Error> {
    let file = |what: String, source: Box<dyn std::error::Error + Send + Sync>| Error::File {
        path: path.to_owned(),
        what,
        source: Some(source),
    };
    let text = read_text(path, most);
    let text = text.map_err(|error| {
        // Other errors, such as a missing file, explain themselves.
        let is_damaged =
            matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput);
        let what = if is_damaged { "cannot be read; it may be truncated" } else { "cannot be read" };
        file(what.to_owned(), error.into())
    })?;
    parse(&text).map_err(|error| file(format!("is not a valid {kind}"), error.into()))
}

/// The lines of a text, with one bound for each line and another for all together.
pub struct Lines<R> {
    reader: R,
    line: Vec<u8>,
    most_line: Bytes,
    most: Bytes,
    read: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `reader`: `most_line` bounds the length of one, `most` their sum.
    pub fn new(reader: R, most_line: Bytes, most: Bytes) -> Lines<R> {
        Lines { reader, line: Vec::new(), most_line, most, read: 0 }
    }

    /// The next line, without its end; `None` after the last.
    ///
    /// # Errors
    /// An error of reading; [`io::ErrorKind::InvalidData`] for a line that is not UTF-8 or too long.
    pub fn next_line(&mut self) -> io::Result<Option<&str>> {
        self.line.clear();
        let bound = self.most_line.0.saturating_add(1);
        self.read += (&mut self.reader).take(bound).read_until(b'\n', &mut self.line)? as u64;
        if self.line.len() as u64 > self.most_line.0 {
            return Err(too_long("the line", self.most_line));
        }
        if self.read > self.most.0 {
            return Err(too_long("the file", self.most));
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        let text =
            std::str::from_utf8(&self.line).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        Ok(Some(text.strip_suffix('\r').unwrap_or(text)))
    }
}

fn too_long(what: &str, most: Bytes) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{what} is longer than {most}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_not_called_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plan.json.gz");
        let said = |path: &Path| read_document(path, Bytes::mib(1), "plan", |_| Ok(())).unwrap_err().to_string();
        assert!(said(&path).ends_with("cannot be read"));
        std::fs::write(&path, [0x1f, 0x8b, 8, 0]).unwrap();
        assert!(said(&path).ends_with("it may be truncated"));
    }

    fn lines(text: &[u8], most_line: u64, most: u64) -> io::Result<Vec<String>> {
        let mut lines = Lines::new(text, Bytes(most_line), Bytes(most));
        let mut all = Vec::new();
        while let Some(line) = lines.next_line()? {
            all.push(line.to_owned());
        }
        Ok(all)
    }

    #[test]
    fn lines_end_where_the_standard_library_ends_them() {
        for text in ["", "a", "a\n", "a\n\nb", "\n", "a\r\nb\r\n"] {
            let expected: Vec<String> = text.lines().map(str::to_owned).collect();
            assert_eq!(lines(text.as_bytes(), 10, 100).unwrap(), expected, "{text:?}");
        }
    }

    #[test]
    fn a_bound_counts_the_end_of_the_line() {
        assert_eq!(lines(b"abc\nabc\n", 4, 8).unwrap(), ["abc", "abc"]);
        assert!(lines(b"abcd\n", 4, 100).unwrap_err().to_string().contains("the line is longer than 4 B"));
        assert!(lines(b"abc\nabc\n", 4, 7).unwrap_err().to_string().contains("the file is longer than 7 B"));
    }

    #[test]
    fn endless_input_is_refused_at_the_bound() {
        let mut endless = Lines::new(BufReader::new(io::repeat(0)), Bytes::mib(1), Bytes::mib(4));
        assert!(endless.next_line().is_err());
        assert!(endless.line.capacity() as u64 <= 4 << 20, "{}", endless.line.capacity());
        if Path::new("/dev/zero").exists() {
            assert!(read_text(Path::new("/dev/zero"), Bytes::mib(1)).is_err());
        }
    }

    #[test]
    fn a_named_pipe_is_refused_and_an_open_one_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let refused = read_text(&pipe, Bytes::mib(1)).unwrap_err();
        assert!(refused.to_string().contains("named pipe"), "{refused}");

        let (reader, mut writer) = io::pipe().unwrap();
        io::Write::write_all(&mut writer, b"lenet").unwrap();
        drop(writer);
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        assert_eq!(read_text(Path::new(&path), Bytes::mib(1)).unwrap(), "lenet");
    }
}
