//! Faults of a cache file, with remedies.

use std::path::Path;
use std::time::Duration;

use rusqlite::ErrorCode;
use tightfit_units::Error;

/// The version of the table layout; a file with another version is left unchanged.
pub(super) const SCHEMA_VERSION: i32 = 1;
/// The longest wait while another process writes.
pub(super) const BUSY: Duration = Duration::from_secs(10);

pub(super) enum Fault {
    Foreign,
    Version(i32),
    Damaged(String),
    Sql(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sql(error)
    }
}

/// The error that reports a fault of a file.
pub(super) fn refuse(path: &Path, fault: Fault) -> Error {
    let code = match &fault {
        Fault::Sql(error) => error.sqlite_error_code(),
        _ => None,
    };
    let what = match &fault {
        Fault::Foreign => "is a database, but not a tightfit cache; name another file".to_owned(),
        Fault::Version(version) => format!(
            "is a tightfit cache of version {version}, but this program reads version {SCHEMA_VERSION}; name another \
             file, or export the cache with the program that wrote it and import the export here"
        ),
        Fault::Damaged(answer) => damaged(answer),
        Fault::Sql(error) => match code {
            Some(ErrorCode::NotADatabase) => "is not a tightfit cache; name another file".to_owned(),
            Some(ErrorCode::DatabaseCorrupt) => damaged(&error.to_string()),
            Some(ErrorCode::DiskFull | ErrorCode::SystemIoFailure) => {
                "cannot be written, perhaps because the disk is full; free some space, or name a file elsewhere"
                    .to_owned()
            }
            Some(ErrorCode::ReadOnly) => "is read-only; copy it and use the copy".to_owned(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "is locked by another program; try again".to_owned()
            }
            _ => "cannot be used as a cache; name another file".to_owned(),
        },
    };
    let source: Option<Box<dyn std::error::Error + Send + Sync>> = match fault {
        Fault::Sql(error) => Some(Box::new(error)),
        _ => None,
    };
    Error::File { path: path.to_owned(), what, source }
}

/// Whether the cause is another program that writes to the file.
pub(super) fn is_locked(error: &Error) -> bool {
    let Error::File { source: Some(source), .. } = error else { return false };
    let code = source.downcast_ref::<rusqlite::Error>().and_then(rusqlite::Error::sqlite_error_code);
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

fn damaged(how: &str) -> String {
    format!("is damaged ({how}); move it away to start a new one, or use another file")
}
