//! What tests over the mock libraries share.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of this build's libraries, with those of these packages built.
pub fn libraries(packages: &[&str]) -> PathBuf {
    let folder = Path::new(env!("CARGO_BIN_EXE_tightfit")).parent().unwrap();
    let profile = match folder.file_name().unwrap().to_str().unwrap() {
        "debug" => "dev",
        profile => profile,
    };
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--profile", profile]);
    for package in packages {
        build.args(["-p", &format!("tightfit-{package}")]);
    }
    build.current_dir(env!("CARGO_MANIFEST_DIR")).env("CARGO_TARGET_DIR", folder.parent().unwrap());
    assert!(build.status().unwrap().success(), "the libraries do not build");
    folder.to_owned()
}
