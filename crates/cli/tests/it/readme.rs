//! The commands of the README and of the guide run as printed, what is shown of them is what they print, and links lead
//! somewhere.
//!
//! ```text
//! ```console   `$ tightfit ..` with all of its output, or with its last lines (`| tail -5`)
//! ```sh        commands without their output; those that need a GPU, a program or minutes are only parsed
//! ```

use std::path::{Path, PathBuf};

use crate::folder::{TIGHTFIT, clean, text};

/// Pages whose commands need files: models, which [`crate::own_models`] provides, and weights, in [`crate::saved`].
const IN_FOLDERS: [&str; 2] = ["own-models.md", "training.md"];

/// Words of commands that need more than this machine has, or take minutes.
const ELSEWHERE: [&str; 10] =
    [" run ", "venv", "report", "verify", "train.py", "images/", "--epochs 10", "mine", "profile ", "H200"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The README and the pages of the guide, with their names.
fn pages() -> Vec<(PathBuf, String)> {
    let guide = std::fs::read_dir(root().join("docs/guide")).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> = guide.filter(|path| path.extension().is_some_and(|kind| kind == "md")).collect();
    paths.sort();
    paths.insert(0, root().join("README.md"));
    paths.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The blocks of a language on a page.
fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let start = format!("```{language}\n");
    page.split(&start).skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// Runs a command line, without the word `tightfit`, in the root of the repository.
fn run(arguments: &str) -> std::process::Output {
    let mut command = clean(TIGHTFIT);
    command.args(arguments.split_whitespace()).current_dir(root());
    command.env("TIGHTFIT_CACHE", "none").output().unwrap()
}

#[test]
fn console_blocks_match_real_output() {
    let mut shown = 0;
    for (path, page) in pages().into_iter().filter(|(path, _)| !IN_FOLDERS.iter().any(|page| path.ends_with(page))) {
        for block in blocks(&page, "console") {
            let (command, expected) = block.split_once('\n').unwrap();
            let command = command.strip_prefix("$ tightfit ").expect(command);
            let (arguments, last) = match command.split_once(" | tail -") {
                Some((arguments, last)) => (arguments, last.parse().unwrap()),
                None => (command, usize::MAX),
            };
            let output = run(arguments);
            assert!(output.status.success(), "{command}: {}", text(&output.stderr));
            let found = text(&output.stdout);
            let lines: Vec<&str> = found.lines().collect();
            let found = lines[lines.len().saturating_sub(last)..].join("\n") + "\n";
            assert_eq!(found, expected, "{}: {command}", path.display());
            shown += 1;
        }
    }
    assert!(shown >= 3, "the pages have lost their examples");
}

#[test]
fn commands_of_the_pages_are_accepted_and_run() {
    let files = tempfile::tempdir().unwrap();
    let (mut ran, mut parsed) = (0, 0);
    for (path, page) in pages() {
        for line in blocks(&page, "sh").into_iter().flat_map(str::lines) {
            let line = line.split(" #").next().unwrap().split(" > ").next().unwrap().trim();
            let Some(arguments) = line.strip_prefix("tightfit ") else { continue };
            let options = arguments.split(" -- ").next().unwrap();
            let accepted = run(&format!("{options} --help"));
            assert!(accepted.status.success(), "{}: {line}: {}", path.display(), text(&accepted.stderr));
            parsed += 1;
            // A check of an environment answers for the environment.
            if ELSEWHERE.iter().any(|word| line.contains(word)) || line.contains("doctor") {
                continue;
            }
            let mut command = clean(TIGHTFIT);
            command.args(arguments.split_whitespace()).current_dir(files.path()).env("TIGHTFIT_CACHE", "none");
            let output = command.output().unwrap();
            assert!(output.status.success(), "{}: {line}: {}", path.display(), text(&output.stderr));
            ran += 1;
        }
    }
    assert!(ran >= 6 && parsed >= 14, "{ran} ran, {parsed} parsed: the pages have lost their commands");
}

#[test]
fn links_and_pictures_of_the_pages_exist() {
    let mut links = 0;
    for (path, page) in pages() {
        for target in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let page = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(page.exists(), "{}: {target} does not exist", path.display());
            if !anchor.is_empty() {
                let headings = std::fs::read_to_string(&page).unwrap();
                let words = |line: &str| line.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect();
                let has = headings.lines().filter_map(|line| line.strip_prefix('#')).any(|line| {
                    let heading: String = words(line.trim_start_matches('#').trim());
                    heading.to_lowercase().replace(' ', "-") == anchor
                });
                assert!(has, "{}: {target} has no such heading", path.display());
            }
            links += 1;
        }
    }
    assert!(links >= 20, "{links} links");
}

#[test]
fn the_readme_is_a_first_page() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.lines().count() <= 150, "the first page has at most 150 lines; details go to docs/guide");
}

/// Adds the keys of a document, as in `kernels[].time_us`. Objects in a list may have different keys.
fn keys(value: &serde_json::Value, at: &str, found: &mut std::collections::BTreeSet<String>) {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                keys(value, &if at.is_empty() { name.clone() } else { format!("{at}.{name}") }, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| keys(item, &format!("{at}[]"), found));
        }
        _ => {
            found.insert(at.to_owned());
        }
    }
}

#[test]
fn output_for_programs_has_the_documented_keys_and_columns() {
    let page = std::fs::read_to_string(root().join("docs/output.md")).unwrap();
    let mut checked = 0;
    for section in page.split("\n## ").skip(1) {
        let Some(command) = blocks(section, "sh").first().map(|block| block.trim().to_owned()) else { continue };
        let arguments = command.strip_prefix("tightfit ").expect(&command);
        let printed = |format: &str| {
            let output = run(&format!("{arguments} --format {format}"));
            assert!(output.status.success(), "{command}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        let mut found = std::collections::BTreeSet::new();
        keys(&crate::folder::json(&printed("json")), "", &mut found);
        let mut documented = std::collections::BTreeSet::new();
        for row in section.lines().filter(|line| line.starts_with("| `")) {
            let (names, meaning) = row.trim_matches('|').split_once(" | ").expect(row);
            for name in names.split('`').filter(|name| !name.trim_matches([',', ' ']).is_empty()) {
                documented.insert(name.to_owned());
                assert!(found.contains(name) || meaning.starts_with("If "), "{command} prints no {name}");
            }
        }
        let missing: Vec<&String> = found.difference(&documented).collect();
        assert!(missing.is_empty(), "{command}: docs/output.md lacks {missing:?}");
        if let Some(columns) = section.split("CSV columns: `").nth(1) {
            let columns = columns.split('`').next().unwrap();
            let header = printed("csv").lines().next().unwrap().to_owned();
            assert!(header == columns, "{command}: {header}");
        }
        checked += 1;
    }
    assert_eq!(checked, 5);
}
