//! Where cargo put the libraries that tests load. A package that is also a Rust library is built whole, its C library with it,
//! before anything that depends on it; this crate depends on all of them.

use std::path::{Path, PathBuf};

/// The folder of this build's libraries.
pub fn folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    // target/PROFILE/deps/TEST or target/PROFILE/examples/EXAMPLE
    let folder = program.parent().unwrap();
    if folder.ends_with("examples") { folder.with_file_name("deps") } else { folder.to_owned() }
}

/// The library of a package: `mock_cuda` is from tightfit-mock-cuda.
pub fn library(name: &str) -> PathBuf {
    let path = folder().join(format!("libtightfit_{name}.so"));
    assert!(Path::is_file(&path), "{} was not built: is tightfit-test-support a dependency?", path.display());
    path
}
