//! The versions of cuDNN and of the kernel driver.

use std::fmt;

/// cuDNN's version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CudnnVersion(pub usize);

impl CudnnVersion {
    /// The oldest version with the interface used here.
    pub const LEAST: CudnnVersion = CudnnVersion(90_000);
}

impl fmt::Display for CudnnVersion {
    /// Major, minor and patch; before 9.0, the major version counted in thousands.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let major = if self.0 < 10_000 { 1_000 } else { 10_000 };
        write!(f, "{}.{}.{}", self.0 / major, self.0 % major / 100, self.0 % 100)
    }
}

/// The version of the kernel driver, which the driver's interface does not report: release and branch, as in `580.159`.
pub(crate) fn driver_version() -> Option<String> {
    version_in(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

fn version_in(text: &str) -> Option<String> {
    let digits =
        |word: &&str| word.contains('.') && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.');
    let version = text.lines().next()?.split_whitespace().find(digits)?;
    Some(version.split('.').take(2).collect::<Vec<_>>().join("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_both_numberings_print() {
        assert_eq!(CudnnVersion(91_900).to_string(), "9.19.0");
        assert_eq!(CudnnVersion(90_001).to_string(), "9.0.1");
        assert_eq!(CudnnVersion(8_907).to_string(), "8.9.7");
        assert!(CudnnVersion(8_907) < CudnnVersion::LEAST);
    }

    #[test]
    fn the_kernels_line_gives_release_and_branch() {
        let line =
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (builder)\nGCC 12.3";
        assert_eq!(version_in(line).as_deref(), Some("580.159"));
        assert_eq!(version_in(""), None);
    }
}
