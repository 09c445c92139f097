//! The report of a program that has not run anything yet: `run` writes it, and the library replaces it when the program
//! exits, if it ran a convolution. A program that was not intercepted keeps this one.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tightfit_units::Bytes;

use crate::failure::{Failure, write_file};
use crate::options::AutoOrBytes;

/// Which workspace is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Limit {
    /// The workspace of each kernel.
    PerKernel(AutoOrBytes),
    /// The workspace of all kernels of a GPU together.
    Total(Bytes),
}

/// Writes a report without convolutions, if `path` is a file or does not exist yet; `%p` becomes this process's ID,
/// which the program will keep. A pipe or a terminal gets only the program's own report.
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

/// The same form as the library writes (`report` in crates/preload).
fn json(limit: Limit, cudnn: &Path) -> Value {
    let (name, limit) = match limit {
        Limit::PerKernel(AutoOrBytes::Auto) => ("workspace_limit", json!("auto")),
        Limit::PerKernel(AutoOrBytes::Bytes(each)) => ("workspace_limit_bytes", json!(each.0)),
        Limit::Total(total) => ("total_workspace_bytes", json!(total.0)),
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
            "shipped_hits": 0,
            "less_accurate": 0,
            "planned_only": 0,
            "undecided": 0,
        },
        name: limit,
    })
}

/// A path with every `%p` replaced by a number.
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
    fn every_percent_p_is_replaced_in_any_bytes() {
        let path = |bytes| Path::new(OsStr::from_bytes(bytes));
        assert_eq!(with_number(path(b"/a/%p/\xff-%p.json%"), 17), path(b"/a/17/\xff-17.json%"));
    }
}
