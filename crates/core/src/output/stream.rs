//! Something that is written into: a pipe, a device, an open descriptor.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::open;

/// Time between two tries to write into a full pipe.
const PAUSE: Duration = Duration::from_millis(2);

/// What was opened without waiting, and is written with as much patience as there is.
pub struct Stream {
    file: File,
    patience: Option<Duration>,
}

/// Whether it is a pipe.
pub fn is_pipe(metadata: &Metadata) -> bool {
    metadata.file_type().is_fifo()
}

impl Stream {
    /// Opens what is there; with no patience given, a slow reader is waited for without end.
    ///
    /// # Errors
    /// Those of opening: `ENXIO` for a pipe without a reader.
    pub fn open(path: &Path, patience: Option<Duration>) -> Result<Stream> {
        let mut options = OpenOptions::new();
        // A descriptor may be of a file, which others write too: what it has stays.
        let file = open(path, options.append(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY))?;
        Ok(Stream { file, patience })
    }
}

impl Write for Stream {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let begun = Instant::now();
        loop {
            match self.file.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if self.patience.is_some_and(|patience| begun.elapsed() >= patience) {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    std::thread::sleep(PAUSE);
                }
                done => return done,
            }
        }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.flush()
    }
}
