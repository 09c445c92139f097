//! Targets that are written in place: a pipe, a device, an open descriptor.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{ErrorKind, Result, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use super::open;

/// Time between attempts to write to a full pipe.
const PAUSE: Duration = Duration::from_millis(2);

/// A target opened without blocking, and written with limited patience.
pub struct Stream {
    file: File,
    patience: Option<Duration>,
}

/// Whether it is a pipe.
pub fn is_pipe(metadata: &Metadata) -> bool {
    metadata.file_type().is_fifo()
}

impl Stream {
    /// Opens an existing target. Without `patience`, waits for a slow reader forever.
    ///
    /// # Errors
    /// An error of opening: `ENXIO` for a pipe without a reader.
    pub fn open(path: &Path, patience: Option<Duration>) -> Result<Stream> {
        let mut options = OpenOptions::new();
        // A descriptor may refer to a file with other writers, so its content stays.
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
