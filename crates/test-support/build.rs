//! Compiles the C client in its two forms, against a cuDNN of empty functions: which cuDNN it runs on is chosen when it runs.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_PRELOAD").is_none() {
        return Ok(());
    }
    println!("cargo:rerun-if-env-changed=CC");
    println!("cargo:rerun-if-changed=client");
    println!("cargo:rerun-if-changed={SYMBOLS}");
    println!("cargo:rerun-if-changed={HEADER}");
    let out = env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let cudnn = out.join("libcudnn.so.9");
    let source = out.join("cudnn.c");
    fs::write(&source, empty_functions()?)?;
    // Named and versioned as the real one, so that the client asks for both.
    let named = ["-shared", "-fPIC", "-fuse-ld=bfd", "-Wl,-soname,libcudnn.so.9,--default-symver"];
    compile(cc().args(named).arg("-o").arg(&cudnn).arg(&source))?;
    for (form, linked) in [("Linked", true), ("Loaded", false)] {
        let mut client = cc();
        client.args(["-O1", "-Wall", "-Werror", "-pthread", "-o"]).arg(out.join(form)).arg("client/client.c");
        if linked {
            // DT_RPATH, as in PyTorch's wheel: it is looked at before LD_LIBRARY_PATH.
            client.arg("-DLINKED").arg(&cudnn).arg("-Wl,--disable-new-dtags,-rpath,$ORIGIN");
        }
        compile(client.arg("-ldl"))?;
    }
    Ok(())
}

/// The header of the library to preload.
const HEADER: &str = "../preload/include/tightfit.h";
/// Names of all functions of cuDNN.
const SYMBOLS: &str = "../preload/symbols.tsv";

fn empty_functions() -> Result<String, Box<dyn Error>> {
    let text = fs::read_to_string(SYMBOLS)?;
    let mut code = String::new();
    for name in text.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split('\t').next()) {
        writeln!(code, "void {name}(void) {{}}")?;
    }
    Ok(code)
}

fn cc() -> Command {
    Command::new(env::var_os("CC").unwrap_or("cc".into()))
}

fn compile(command: &mut Command) -> Result<(), Box<dyn Error>> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{command:?}: {status}").into()),
        Err(error) => Err(format!("{command:?}: {error}; tests need a C compiler, which CC names").into()),
    }
}
