//! Every block of the README and the guide: run as printed, or named with a reason in `documents.tsv`, the only such list.
//!
//! ```text
//! ```console   `$ COMMAND` and its output, where `..` stands for any lines, or for the rest of one
//! ```sh        commands alone, one per line
//! ```python    programs, run by crates/python/tests/test_guide.py and tests_torch/test_guide_torch.py, which read the same list
//! ```text      output that the text around it explains
//! ```
//!
//! A page runs from top to bottom in a separate folder, in a home without a cache. `python train.py` is a C program that
//! convolves on the mock cuDNN.

use std::collections::BTreeSet;
use std::io::Read;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;
use tightfit_test_support::client::{self, Form};
use tightfit_test_support::libraries::{self, library};

use crate::folder::{TIGHTFIT, clean, said, text};

pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// A page, a tab, a command or the first line of a program, a tab, and why it does not run here.
const NOT_RUN: &str = include_str!("documents.tsv");

/// The pages' name for a profile.
const PROFILE: &str = "replay:profiles/recorded/h200-legacy-alexnet-1col-all.jsonl.gz";

/// Answers what `tightfit run` asks of an interpreter, and runs the C program on the mock GPU otherwise.
const PYTHON: &str = r#"#!/bin/sh
case "$1" in
-c) printf '%s\n' "$0" 3.12.0 "$FOLDER/packages" ;;
*) TIGHTFIT_CUDA="$MOCK_CUDA" TIGHTFIT_MOCK_CUDA="$MOCK_CUDA" exec "$FOLDER/$1" engine=2 n=4 out=/dev/null ;;
esac
"#;

/// The README and the pages of the guide, with their names.
pub fn pages() -> Vec<(PathBuf, String)> {
    let root = Path::new(ROOT);
    let guide = std::fs::read_dir(root.join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = guide.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    paths.sort();
    paths.insert(0, root.join("README.md"));
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The language and the content of each block of a page.
pub fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<&str> = page.split("```").collect();
    let inside = parts.iter().skip(1).step_by(2);
    inside.map(|block| block.split_once('\n').unwrap_or_else(|| panic!("a block without an end: {block}"))).collect()
}

/// The commands and programs of a page that do not run.
fn not_run(name: &str) -> BTreeSet<&'static str> {
    let entries = NOT_RUN.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let fields: Vec<&str> = line.split('\t').collect();
        assert!(fields.len() == 3 && !fields[2].is_empty(), "page, command, reason: {line}");
        (fields[0], fields[1])
    });
    entries.filter(|(page, _)| *page == name).map(|(_, command)| command).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

/// A command without its comment.
fn command(line: &str) -> &str {
    line.split("  #").next().unwrap().trim()
}

/// A folder with everything that the pages' commands read.
pub struct PageFolder(TempDir);

impl PageFolder {
    pub fn new() -> PageFolder {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        for (exported, name) in [
            ("efficientnet_b0.script", "efficientnet_b0.onnx"),
            ("unet.script", "unet.onnx"),
            ("resnet50.script", "resnet50.onnx"),
            ("resnet50.inference", "served.onnx"),
        ] {
            let packed = std::fs::File::open(format!("{ROOT}/crates/onnx/tests/data/onnx/{exported}.onnx.gz")).unwrap();
            let mut bytes = Vec::new();
            flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
            std::fs::write(path.join(name), bytes).unwrap();
        }
        std::fs::copy(format!("{ROOT}/crates/train/tests/recorded/small.script.onnx"), path.join("small.onnx"))
            .unwrap();
        std::fs::copy(format!("{ROOT}/crates/profile/data/shipped.jsonl.gz"), path.join("decisions.jsonl.gz")).unwrap();
        for name in ["photos/1.png", "photos/2.png", "seven.png"] {
            std::fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
            image::GrayImage::from_pixel(12, 12, image::Luma([90])).save(path.join(name)).unwrap();
        }
        symlink(Path::new(ROOT).join("profiles").canonicalize().unwrap(), path.join("profiles")).unwrap();
        symlink(library("mock_cudnn"), path.join("libcudnn.so.9")).unwrap();
        client::install(Form::Linked, &path.join("train.py"));
        for folder in ["bin", "packages"] {
            std::fs::create_dir(path.join(folder)).unwrap();
        }
        symlink(TIGHTFIT, path.join("bin/tightfit")).unwrap();
        std::fs::write(path.join("bin/python"), PYTHON).unwrap();
        std::fs::set_permissions(path.join("bin/python"), std::fs::Permissions::from_mode(0o755)).unwrap();
        PageFolder(folder)
    }

    /// Runs a line in a shell.
    pub fn shell(&self, line: &str) -> Output {
        let folder = self.0.path();
        let search = std::env::var("PATH").unwrap();
        let mut shell: Command = clean("bash");
        shell.env("PATH", format!("{}:{search}", folder.join("bin").display())).env("HOME", folder);
        shell.env_remove("XDG_CACHE_HOME").env("FOLDER", folder).env("MOCK_CUDA", library("mock_cuda"));
        shell.env("TIGHTFIT_PRELOAD", libraries::folder()).env("TIGHTFIT_CUDNN", folder.join("libcudnn.so.9"));
        shell.env("TIGHTFIT_CUDA", folder.join("no-driver.so")).env("TIGHTFIT_THREADS", "2").env("P", PROFILE);
        shell.args(["-o", "pipefail", "-c", line]).current_dir(folder).output().unwrap()
    }

    pub fn succeed(&self, page: &str, line: &str) {
        let output = self.shell(line);
        assert!(output.status.success(), "{page}: {line}: {}", text(&output.stderr));
    }
}

/// Whether these lines were printed. `..` stands for any lines, and a line that ends in `..` shows only its beginning. An
/// empty block claims nothing.
fn is_shown(shown: &str, printed: &str) -> Result<(), String> {
    let mut printed = printed.lines();
    let mut skips = shown.is_empty();
    for wanted in shown.lines() {
        if wanted == ".." {
            skips = true;
            continue;
        }
        let is_it = |line: &str| match wanted.strip_suffix("..") {
            Some(begin) => line.starts_with(begin),
            None => line.trim_end() == wanted,
        };
        let found = if skips { printed.any(is_it) } else { printed.next().is_some_and(is_it) };
        if !found {
            return Err(format!("no {wanted:?}"));
        }
        skips = false;
    }
    match printed.next() {
        Some(more) if !skips => Err(format!("{more:?} is not shown")),
        _ => Ok(()),
    }
}

/// Runs the commands of a console block, and compares their output.
fn run_console(place: &PageFolder, page: &str, block: &str) {
    for shown in block.split("$ ").skip(1) {
        let (line, expected) = shown.split_once('\n').unwrap();
        let output = place.shell(line);
        let fails = expected.starts_with("error: ");
        assert_eq!(output.status.success(), !fails, "{page}: {line}: {}", text(&output.stderr));
        let said = if fails || expected.starts_with("note: ") { said(&output.stderr) } else { String::new() };
        let printed = said + &text(&output.stdout);
        is_shown(expected, &printed).unwrap_or_else(|fault| panic!("{page}: {line}: {fault}:\n{printed}"));
    }
}

/// Checks that the command line takes a command that does not run here.
fn parse(place: &PageFolder, page: &str, line: &str) {
    let line = line.replace("cargo run --release -- ", "tightfit ");
    let Some(arguments) = line.strip_prefix("tightfit ") else { return };
    let options = arguments.split(" -- ").next().unwrap().split(" > ").next().unwrap();
    place.succeed(page, &format!("tightfit {options} --help"));
}

fn check_page(path: &Path, page: &str) {
    let (place, page_name) = (PageFolder::new(), name(path));
    let mut named = not_run(&page_name);
    for (language, block) in blocks(page) {
        match language {
            "console" => run_console(&place, &page_name, block),
            "sh" => {
                for line in block.lines().map(command).filter(|line| !line.is_empty()) {
                    match named.remove(line) {
                        true => parse(&place, &page_name, line),
                        false => place.succeed(&page_name, line),
                    }
                }
            }
            // The Python tests check the list of blocks that do not run.
            "python" => drop(named.remove(block.lines().next().unwrap())),
            "text" => {}
            _ => panic!("{page_name}: no test knows blocks of {language:?}; write console, sh, python or text"),
        }
    }
    assert!(named.is_empty(), "documents.tsv names commands that {page_name} does not have: {named:?}");
}

#[test]
fn blocks_of_the_pages_run_and_print_what_is_shown() {
    let pages = pages();
    let names: BTreeSet<String> = pages.iter().map(|(path, _)| name(path)).collect();
    for page in NOT_RUN.lines().filter(|line| !line.starts_with('#')).map(|line| line.split('\t').next().unwrap()) {
        assert!(names.contains(page), "documents.tsv names a page that is not there: {page}");
    }
    std::thread::scope(|scope| {
        for (path, page) in &pages {
            scope.spawn(|| check_page(path, page));
        }
    });
}

#[test]
fn pages_with_other_blocks_or_output_are_refused() {
    let refused = |page: &str| {
        let page = page.to_owned();
        let checked = std::thread::spawn(move || check_page(Path::new("new-page.md"), &page)).join();
        *checked.unwrap_err().downcast::<String>().unwrap()
    };
    let run = "```console\n$ tightfit --version\ntightfit 9.9.9\n```\n";
    assert!(refused(run).contains("no \"tightfit 9.9.9\""));
    assert!(refused("```console\n$ tightfit completions bash\n_tightfit() {\n```\n").contains("is not shown"));
    assert!(refused("```sh\ntightfit plan lenet --bach 4\n```\n").contains("--bach"));
    assert!(refused("```sh\nno-such-program\n```\n").contains("no-such-program"));
    assert!(refused("```bash\ntrue\n```\n").contains("no test knows blocks of \"bash\""));
    check_page(Path::new("new-page.md"), "```console\n$ tightfit --version\ntightfit ..\n```\n");
}

/// The commands in tables and sentences, with placeholders filled in.
#[test]
fn commands_between_the_blocks_are_accepted() {
    let place = PageFolder::new();
    let mut parsed = BTreeSet::new();
    for (path, page) in pages() {
        for code in page.split("```").step_by(2).flat_map(|prose| prose.split('`').skip(1).step_by(2)) {
            let Some(arguments) = code.split(" -- ").next().unwrap().strip_prefix("tightfit ") else { continue };
            for (index, _) in arguments.split('|').enumerate() {
                let words = arguments.split_whitespace().filter(|word| *word != ".." && !word.starts_with('['));
                let filled = words.map(|word| match word.trim_end_matches("\\") {
                    "NETWORK" => "lenet",
                    "N" => "4",
                    "DIR" | "FILE" | "FILE.json" | "PYTHON" => "some",
                    "SHELL" => "bash",
                    word if word.contains("\\|") => word.split("\\|").nth(index).unwrap_or("list"),
                    word => word,
                });
                let line = filled.collect::<Vec<_>>().join(" ");
                // An option that is named without its value has one in use.
                let forms = [format!("tightfit {line} --help"), format!("tightfit {line} some --help")];
                if parsed.insert(line) && !place.shell(&forms[0]).status.success() {
                    place.succeed(&name(&path), &forms[1]);
                }
            }
        }
    }
    assert!(parsed.len() >= 30, "the pages have lost their commands: {parsed:?}");
}

#[test]
fn commands_of_the_papers_page_run() {
    let place = PageFolder::new();
    let page = std::fs::read_to_string(format!("{ROOT}/docs/guide/papers.md")).unwrap();
    let codes = page.split('`').skip(1).step_by(2).filter(|code| code.starts_with("tightfit "));
    let ran: Vec<&str> = codes.inspect(|line| place.succeed("papers.md", line)).collect();
    assert!(ran.len() >= 8, "{ran:?}");
}
