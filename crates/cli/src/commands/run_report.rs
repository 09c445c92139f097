//! The report of a program before it has run anything: `run` writes it, and the library puts its own in its place when the
//! program ends, if it ran a convolution. A program that was not reached has this one.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tightfit_core::Bytes;
use tightfit_core::candidate::Limit;

use crate::failure::{Failure, write_file};

/// Writes the report of no convolutions, where `path` is a file or nothing yet; `%p` becomes this process's number, which
/// the program will have. A pipe or a terminal gets the program's own report alone.
///
/// # Errors
/// As [`write_file`].
pub fn write(path: &Path, limit: Limit, cudnn: &Path) -> Result<(), Failure> {
    let path = with_number(path, std::process::id());
    if std::fs::metadata(&path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
        return Ok(());
    }
    write_file(&path, format!("{:#}", json(limit, cudnn)))
}

/// The form in which the library writes it (`report` in crates/preload).
fn json(limit: Limit, cudnn: &Path) -> Value {
    let (name, Bytes(bytes)) = match limit {
        Limit::Total(_) => ("total_workspace_bytes", limit.bytes()),
        _ => ("workspace_limit_bytes", limit.bytes()),
    };
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "cudnn": cudnn.to_string_lossy(),
        "device": null,
        "kernels": [],
        "passed_through": [],
        "totals": {
            "workspace_peak_avoided_bytes": 0,
            "time_gained_us": 0.0,
            "tuning_us": 0.0,
            "tuning_measurements": 0,
            "cache_hits": 0,
            "planned_only": 0,
        },
        name: bytes,
    })
}

/// A path with a number in place of every `%p`.
fn with_number(path: &Path, number: u32) -> PathBuf {
    let (mut filled, mut rest) = (Vec::new(), path.as_os_str().as_bytes());
    while let Some(at) = rest.windows(2).position(|pair| pair == b"%p") {
        filled.extend_from_slice(&rest[..at]);
        filled.extend_from_slice(number.to_string().as_bytes());
        rest = &rest[at + 2..];
    }
    filled.extend_from_slice(rest);
    OsString::from_vec(filled).into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn every_place_of_the_number_is_filled_in_whatever_the_bytes() {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        assert_eq!(with_number(path(b"/a/%p/\xff-%p.json%"), 17), path(b"/a/17/\xff-17.json%"));
    }
}
