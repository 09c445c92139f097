//! How a command ends when it fails.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tightfit_core::Error;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The options make no sense together (exit code 2).
    Usage(String),
    /// Something answered wrongly, such as a verification (exit code 1).
    Wrong(String),
    /// An error of the libraries (exit code 1, or 3 where more memory would help).
    Error(Error),
    /// The person at the terminal asked to stop, and was told what there is (exit code 130).
    Stopped(String),
    /// An error of training (exit code 1, or 3 where more memory would help).
    Train(tightfit_train::Error),
    /// The reader of the output went away, as `head` does; nothing to say.
    Closed,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Error(error)
    }
}

impl From<tightfit_train::Error> for Failure {
    fn from(error: tightfit_train::Error) -> Failure {
        match error {
            tightfit_train::Error::Core(error) => Failure::Error(error),
            error => Failure::Train(error),
        }
    }
}

/// Writes an error and what caused it to standard error.
fn tell(error: &dyn std::error::Error) {
    eprintln!("error: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        eprintln!("  caused by: {source}");
        cause = source.source();
    }
}

impl Failure {
    /// Writes the message to standard error, causes on lines of their own, and gives the exit code.
    pub fn report(&self) -> ExitCode {
        match self {
            Failure::Usage(message) => {
                eprintln!("error: {message}\n\nFor more information, try '--help'.");
                ExitCode::from(2)
            }
            Failure::Wrong(message) => {
                eprintln!("error: {message}");
                ExitCode::from(1)
            }
            Failure::Error(error) => {
                tell(error);
                match error {
                    Error::Interrupted => ExitCode::from(130),
                    // A name or a size that cannot be read is wrong usage wherever it was noticed.
                    Error::UnknownWord { .. }
                    | Error::Ambiguous { .. }
                    | Error::BadOption { .. }
                    | Error::BadSize { .. } => ExitCode::from(2),
                    error if error.is_does_not_fit() => ExitCode::from(3),
                    _ => ExitCode::from(1),
                }
            }
            Failure::Stopped(message) => {
                eprintln!("{message}");
                ExitCode::from(130)
            }
            Failure::Train(error) => {
                tell(error);
                ExitCode::from(if error.is_does_not_fit() { 3 } else { 1 })
            }
            Failure::Closed => ExitCode::SUCCESS,
        }
    }
}

/// Writes to standard output.
///
/// # Errors
/// [`Failure::Closed`] where nobody reads any more; [`Failure::Wrong`] for a full disk behind a redirection.
pub fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Wrong(format!("standard output cannot be written: {error}")),
    })
}

/// Whether a file could be written, before the work whose result it is to hold. Leaves what is there as it is.
///
/// # Errors
/// [`Error::File`] naming it.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    if path.is_dir() {
        return Err(unwritable(path, std::io::ErrorKind::IsADirectory.into()));
    }
    let part = part(path);
    let written = std::fs::write(&part, "").and_then(|()| std::fs::remove_file(&part));
    written.map_err(|error| unwritable(path, error))
}

/// Writes a file whole or not at all.
///
/// # Errors
/// [`Error::File`] naming it.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    let part = part(path);
    let written = std::fs::write(&part, content).and_then(|()| std::fs::rename(&part, path));
    written.map_err(|error| {
        // The neighbor may not even exist; the error to report is the first one.
        let _ = std::fs::remove_file(&part);
        unwritable(path, error)
    })
}

/// The neighbor that a file is while it is being written.
fn part(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    path.with_file_name(name)
}

fn unwritable(path: &Path, error: std::io::Error) -> Failure {
    let what = "cannot be written; is the folder there, is it writable, is the disk full?".to_owned();
    Failure::Error(Error::File { path: path.to_owned(), what, source: Some(error.into()) })
}
