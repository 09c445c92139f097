//! How a command ends when it fails.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use tightfit_units::{Error, output};

use crate::message;

/// The exit code of a command that was asked to stop, the same as for a program that Ctrl-C ends.
pub const INTERRUPTED: u8 = 130;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// The options make no sense together (exit code 2).
    Usage(String),
    /// A result is wrong, such as a failed verification (exit code 1).
    Wrong(String),
    /// The work would take more memory than the machine has (exit code 3).
    TooLarge(String),
    /// An error of the libraries (exit code 1, or 3 if more memory would help).
    Error(Error),
    /// The user asked to stop and was shown the results so far (exit code 130).
    Stopped(String),
    /// An error of training (exit code 1, or 3 if more memory would help).
    Train(tightfit_train::Error),
    /// The reader of the output exited, as `head` does; there is nothing to report.
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

/// Whether the reader of an output exited.
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
    /// Writes the message to standard error, with each cause on its own line, and returns the exit code. `kept` is the
    /// file of saved measurements, if any.
    pub fn report(&self, kept: Option<&Path>) -> u8 {
        match self {
            Failure::Usage(text) => message::error(format_args!("{text}\n\nFor more information, try '--help'.")),
            Failure::Stopped(text) => message::say(text),
            Failure::Error(Error::Interrupted) => message::error(match kept {
                Some(_) => "interrupted; measurements are saved, rerun the command to resume",
                None => "interrupted; nothing was saved",
            }),
            Failure::Error(error @ Error::DeviceLost { .. }) => {
                message::error(described(error));
                if kept.is_some() {
                    message::note("measurements made before the failure are saved; rerun the command to resume");
                }
            }
            Failure::Wrong(_) | Failure::TooLarge(_) | Failure::Error(_) | Failure::Train(_) => {
                message::error(self.text())
            }
            Failure::Closed => {}
        }
        self.code()
    }

    /// The failure, with each cause on its own line.
    pub fn text(&self) -> String {
        match self {
            Failure::Usage(text) | Failure::Wrong(text) | Failure::TooLarge(text) | Failure::Stopped(text) => {
                text.clone()
            }
            Failure::Error(error) => described(error) + core_advice(error),
            Failure::Train(error) => described(error) + &advice(error),
            Failure::Closed => "the reader of the output exited".to_owned(),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Closed => 0,
            Failure::Stopped(_) | Failure::Error(Error::Interrupted) => INTERRUPTED,
            Failure::Usage(_) => 2,
            Failure::Wrong(_) => 1,
            // An invalid name or size is wrong usage, no matter where it is detected.
            Failure::Error(
                Error::UnknownWord { .. }
                | Error::Ambiguous { .. }
                | Error::SeveralDevices { .. }
                | Error::BadOption { .. }
                | Error::BadSize { .. },
            ) => 2,
            Failure::TooLarge(_) => 3,
            Failure::Error(error) if error.is_over_limit() => 3,
            Failure::Train(error) if error.is_over_limit() => 3,
            Failure::Error(_) | Failure::Train(_) => 1,
        }
    }
}

/// The command-line options that help past a damaged cache, or to one of several devices; empty for other errors.
fn core_advice(error: &Error) -> &'static str {
    match error {
        Error::SeveralDevices { .. } => {
            "\n  name one with --devices NAME, where NAME is a part of its text that the others do not have"
        }
        Error::File { what, .. } if what.starts_with("is damaged") => {
            "\n  use --cache FILE for another cache, or --cache none"
        }
        _ => "",
    }
}

/// The command-line options to change after an error of training; empty for other errors.
fn advice(error: &tightfit_train::Error) -> String {
    use tightfit_train::Error::{DeviceMemory, HostMemory, LibraryMemory};
    match error {
        DeviceMemory { budget, .. } | LibraryMemory { budget, .. } if budget.0 >> 20 > 0 => {
            format!("\n  use --budget {}MiB or less", budget.0 >> 20)
        }
        HostMemory { .. } => "\n  use a smaller --host-budget".to_owned(),
        _ => String::new(),
    }
}

/// An error and its causes, one per line. Omits causes that the text already contains.
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

/// Returns the first failure among several results and prints the others as warnings. A closed output counts least.
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
/// [`Failure::Closed`] if the reader exited; [`Failure::Wrong`] if, for example, the disk is full.
pub fn print(text: &str) -> Result<(), Failure> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(|error| match error.kind() {
        std::io::ErrorKind::BrokenPipe => Failure::Closed,
        _ => Failure::Wrong(format!("cannot write to standard output: {error}")),
    })
}

/// Checks that a file can be written, before doing the work whose result it will hold. Leaves its content unchanged.
///
/// # Errors
/// [`Error::File`] naming it.
pub fn check_writable(path: &Path) -> Result<(), Failure> {
    Ok(output::check(path)?)
}

/// Checks that the files that options name can be written, as [`check_writable`] does, and that no two are the same.
///
/// # Errors
/// As [`check_writable`]; [`Failure::Usage`] with both options.
pub fn check_outputs<const N: usize>(outputs: [(&str, &Option<PathBuf>); N]) -> Result<(), Failure> {
    let mut before: Vec<(&str, &Path)> = Vec::new();
    for (option, path) in outputs {
        let Some(path) = path else { continue };
        if let Some((other, _)) = before.iter().find(|(_, other)| output::is_one_file(path, other)) {
            return Err(Failure::Usage(format!("{other} and {option} both name {}; name two files", path.display())));
        }
        check_writable(path)?;
        before.push((option, path));
    }
    Ok(())
}

/// Writes a file completely or not at all; see [`output`].
///
/// # Errors
/// [`Error::File`] naming it; [`Failure::Closed`] for a pipe whose reader exited.
pub fn write_file(path: &Path, content: impl AsRef<[u8]>) -> Result<(), Failure> {
    Ok(output::write(path, content)?)
}
