//! The libraries that `tightfit run` preloads, as compressed bytes in the command, so that only the command has to be installed.
//!
//! If a package is both a C library and a Rust library, cargo builds both before any dependent. So the crate that uses this macro depends on
//! `tightfit-preload` and `tightfit-preload-plain` and never names them in its code: the compiler gets the paths of their Rust libraries
//! (`--extern`), and their C libraries are in the same folder. Nothing is built twice. Stable Rust has no other way to depend on the C library of
//! another package (artifact dependencies).
//!
//! Empty if nothing can be embedded or used: when code is only checked, on processors that the libraries do not support, and in unoptimized builds,
//! whose libraries cargo puts in the folder of the command. The feature `unoptimized` embeds them even then.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use flate2::Compression;
use flate2::write::GzEncoder;
use proc_macro::{Literal, TokenStream, TokenTree};

/// The packages, in the order of the result.
const PACKAGES: [&str; 2] = ["tightfit_preload", "tightfit_preload_plain"];

/// The libraries, as `&[(&str, &str, &[u8])]`: file name, a hash of the content as hexadecimal digits, and the content,
/// compressed by gzip.
#[proc_macro]
pub fn libraries(_: TokenStream) -> TokenStream {
    let arguments: Vec<String> = std::env::args().collect();
    let mut items = String::new();
    let mut contents = Vec::new();
    if is_wanted(&arguments) {
        for package in PACKAGES {
            match library(&arguments, package).and_then(|path| packed(&path).ok()) {
                Some((hash, content)) => {
                    items += &format!("(\"lib{package}.so\", {hash:?}, CONTENT),");
                    contents.push(content);
                }
                None => {
                    return parse(&format!(
                        "compile_error!(\"the library of {package} is not where the compiler was told to look for it\")"
                    ));
                }
            }
        }
    }
    filled(parse(&format!("&[{items}]")), &mut contents.into_iter())
}

/// Whether the code is compiled, and optimized, for a processor that the libraries support.
fn is_wanted(arguments: &[String]) -> bool {
    let is_optimized = arguments.iter().any(|word| word.contains("opt-level=") && !word.ends_with("opt-level=0"));
    let target = arguments.iter().position(|word| word == "--target").and_then(|at| arguments.get(at + 1));
    let is_supported = target.map_or(cfg!(target_arch = "x86_64"), |target| target.starts_with("x86_64"));
    let is_checked = arguments.iter().any(|word| word.ends_with(".rmeta") && word.contains(PACKAGES[0]));
    (is_optimized || cfg!(feature = "unoptimized")) && is_supported && !is_checked
}

/// The C library of a package that the compiler got by `--extern`: in the folder of its Rust library, with the same name.
fn library(arguments: &[String], package: &str) -> Option<PathBuf> {
    let path = arguments.iter().find_map(|word| {
        let (name, path) = word.split_once('=')?;
        // Options may stand before the name: `priv:name=path`.
        (name.rsplit(':').next() == Some(package)).then_some(path)
    })?;
    Some(Path::new(path).with_extension("so"))
}

/// A hash of a file, and its compressed content.
fn packed(path: &Path) -> std::io::Result<(String, Vec<u8>)> {
    let content = fs::read(path)?;
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&content)?;
    Ok((format!("{:016x}", hasher.finish()), encoder.finish()?))
}

fn parse(text: &str) -> TokenStream {
    TokenStream::from_str(text).unwrap_or_default()
}

/// Replaces the placeholder word by the contents.
fn filled(stream: TokenStream, contents: &mut impl Iterator<Item = Vec<u8>>) -> TokenStream {
    let fill = |tree| match tree {
        TokenTree::Group(group) => {
            TokenTree::Group(proc_macro::Group::new(group.delimiter(), filled(group.stream(), contents)))
        }
        TokenTree::Ident(word) if word.to_string() == "CONTENT" => {
            TokenTree::Literal(Literal::byte_string(&contents.next().unwrap_or_default()))
        }
        tree => tree,
    };
    stream.into_iter().map(fill).collect()
}
