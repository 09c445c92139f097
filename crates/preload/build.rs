//! Writes a trampoline for every function of cuDNN that is only forwarded, and gives the library cuDNN's SONAME with its
//! version node. Only GNU ld knows `--default-symver`.
//!
//! The crate `tightfit-preload-plain` links the same code without SONAME and version node.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// Functions that the library answers itself; the rest are trampolines.
const INTERCEPTED: [&str; 26] = [
    "cudnnDestroy",
    "cudnnBackendCreateDescriptor",
    "cudnnBackendDestroyDescriptor",
    "cudnnBackendSetAttribute",
    "cudnnBackendGetAttribute",
    "cudnnBackendFinalize",
    "cudnnBackendExecute",
    "cudnnBackendPopulateCudaGraph",
    "cudnnBackendUpdateCudaGraph",
    "cudnnGetExecutionPlanWorkspaceSize",
    "cudnnConvolutionForward",
    "cudnnConvolutionBackwardData",
    "cudnnConvolutionBackwardFilter",
    "cudnnConvolutionBiasActivationForward",
    "cudnnGetConvolutionForwardWorkspaceSize",
    "cudnnGetConvolutionBackwardDataWorkspaceSize",
    "cudnnGetConvolutionBackwardFilterWorkspaceSize",
    "cudnnGetConvolutionForwardAlgorithm_v7",
    "cudnnGetConvolutionBackwardDataAlgorithm_v7",
    "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
    "cudnnFindConvolutionForwardAlgorithm",
    "cudnnFindConvolutionBackwardDataAlgorithm",
    "cudnnFindConvolutionBackwardFilterAlgorithm",
    "cudnnFindConvolutionForwardAlgorithmEx",
    "cudnnFindConvolutionBackwardDataAlgorithmEx",
    "cudnnFindConvolutionBackwardFilterAlgorithmEx",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let list = Path::new("symbols.tsv");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", list.display());
    if env::var("CARGO_CFG_TARGET_ARCH")? != "x86_64" {
        println!("cargo:warning=the library to preload is empty: its trampolines are assembly of x86-64");
        return Ok(());
    }
    // Not `rustc-cdylib-link-arg`: Cargo passes that on to every library that links this crate, and a Python module named
    // libcudnn.so.9 keeps the real one from being loaded (rust-lang/cargo#9562).
    println!("cargo:rustc-link-arg=-fuse-ld=bfd");
    println!("cargo:rustc-link-arg=-Wl,-soname,libcudnn.so.9,--default-symver");
    let text = fs::read_to_string(list)?;
    let symbols: Vec<(&str, &str)> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('\t'))
        .map(|(name, rest)| (name, rest.split('\t').next().unwrap_or("?")))
        .collect();
    let mut code = format!("/// How many functions cuDNN has.\npub const COUNT: usize = {};\n\n", symbols.len());
    code += "/// Their names and what each returns, by index.\npub static SYMBOLS: [(&std::ffi::CStr, ReturnType); COUNT] = [\n";
    for (name, returned) in &symbols {
        let returned = match *returned {
            "cudnnStatus_t" => "Status",
            "size_t" => "Size",
            "const char *" => "Text",
            "void" => "Nothing",
            _ => "Unknown",
        };
        writeln!(code, "    (c\"{name}\", ReturnType::{returned}),")?;
    }
    code += "];\n\n/// Places in the table by name.\n#[allow(non_upper_case_globals, missing_docs, dead_code)]\npub mod index {\n";
    for (index, (name, _)) in symbols.iter().enumerate() {
        writeln!(code, "    pub const {name}: usize = {index};")?;
    }
    code += "}\n";
    let folder = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(folder.join("symbols.rs"), code)?;
    let mut code = String::new();
    for (index, (name, _)) in symbols.iter().enumerate() {
        if !INTERCEPTED.contains(name) {
            writeln!(code, "trampoline!({name}, {index});")?;
        }
    }
    fs::write(folder.join("trampolines.rs"), code)?;
    Ok(())
}
