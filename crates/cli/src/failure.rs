//! How a command ends when it fails.

use std::io::ErrorKind;
use std::path::Path;
use std::process::ExitCode;

use tightfit_core::{Error, output};

use crate::message;

/// The exit code of a command that was asked to stop: that of a program which Ctrl-C ends.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The options make no sense together (exit code 2).
    Usage(String),
    /// Something answered wrongly, such as a verification (exit code 1).
    Wrong(String),
    /// More memory than the machine has would be taken (exit code 3).
    TooLarge(String),
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
        match &error {
            Error::File { source: Some(source), .. } if is_unread(&**source) => Failure::Closed,
            _ => Failure::Error(error),
        }
    }
}

/// Whether the reader of an output went away.
fn is_unread(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

impl From<tightfit_train::Error> for Failure {
    fn from(error: tightfit_train::Error) -> Failure {
        match error {
            tightfit_train::Error::Core(error) => Failure::Error(error),
            error => Failure::Train(error),
        }
    }
}

impl Failure {
    /// Writes the message to standard error, causes on lines of their own, and gives the exit code. `kept` is where
    /// measurements are kept, if they are.
    pub fn report(&self, kept: Option<&Path>) -> ExitCode {
        match self {
            Failure::Usage(text) => message::error(format_args!("{text}\n\nFor more information, try '--help'.")),
            Failure::Stopped(text) => message::say(text),
            Failure::Error(Error::Interrupted) => message::error(match kept {
                Some(_) => "interrupted; what was measured is kept, and the same command goes on from there",
                None => "interrupted; nothing was kept",
            }),
            Failure::Error(error @ Error::DeviceLost { .. }) => {
                message::error(described(error));
                if kept.is_some() {
                    message::note("what was measured before is kept, and the same command goes on from there");
                }
            }
            Failure::Wrong(_) | Failure::TooLarge(_) | Failure::Error(_) | Failure::Train(_) => {
                message::error(self.text())
            }
            Failure::Closed => {}
        }
        ExitCode::from(self.code())
    }

    /// What failed, with causes on lines of their own.
    pub fn text(&self) -> String {
        match self {
            Failure::Usage(text) | Failure::Wrong(text) | Failure::TooLarge(text) | Failure::Stopped(text) => {
                text.clone()
            }
            Failure::Error(error) => described(error),
            Failure::Train(error) => described(error),
            Failure::Closed => "the reader of the output went away".to_owned(),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::Stopped(_) | Failure::Error(Error::Interrupted) => INTERRUPTED,
            Failure::Usage(_) => 2,
            Failure::Wrong(_) => 1,
            // A name or a size that cannot be read is wrong usage wherever it was noticed.
            Failure::Error(
                Error::UnknownWord { .. } | Error::Ambiguous { .. } | Error::BadOption { .. } | Error::BadSize { .. },
            ) => 2,
            Failure::TooLarge(_) => 3,
            Failure::Error(error) if error.is_does_not_fit() => 3,
            Failure::Train(error) if error.is_does_not_fit() => 3,
            Failure::Error(_) | Failure::Train(_) => 1,
        }
    }
}

/// An error and what caused it, each on a line. A cause that the error has told already is left out.
fn described(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause| cause.source()).map(ToString::to_string);
    for cause in causes {
        if !text.contains(&cause) {
            text += &format!("\n  caused by: {cause}");
        }
    }
    text
}

/// The first failure of several results; the others are said as warnings. That nobody reads the output counts least.
///
/// # Errors
/// The first failure.
pub fn first(results: impl IntoIterator<Item = Result<(), Failure>>) -> Result<(), Failure> {
    let mut first = None;
    for failure in results.into_iter().filter_map(Result::err) {
        match (&first, &failure) {
            (None | Some(Failure::Closed), _) => first = Some(failure),
            (Some(_), Failure::Closed) => {}
            (Some(_), _) => message::warn(failure.text()),
        }
    }
    first.map_or(Ok(()), Err)
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
    Ok(output::check(path)?)
}

/// Writes a file whole or not at all; see [`output`].
///
/// # Errors
/// [`Error::File`] naming it; [`Failure::Closed`] for a pipe whose reader went away.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    Ok(output::write(path, content)?)
}
