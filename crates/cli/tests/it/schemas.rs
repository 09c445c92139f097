//! The schemas in `docs/output.md` match the JSON and CSV that the commands print.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::documents::{PageFolder, ROOT, blocks};
use crate::folder::{json, text};

/// Adds the keys of a document, as in `kernels[].time_us`; a list of all has keys such as `[].name`. Objects in a list may
/// have different keys.
fn keys(value: &Value, at: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                keys(value, &if at.is_empty() { name.clone() } else { format!("{at}.{name}") }, found);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            items.iter().for_each(|item| keys(item, &format!("{at}[]"), found));
        }
        _ => drop(found.insert(at.to_owned())),
    }
}

/// The keys that a section documents, and whether each is always printed.
fn documented(section: &str) -> Vec<(String, bool)> {
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let fields = rows.map(|row| row.trim_matches('|').split_once(" | ").expect(row));
    fields
        .flat_map(|(names, meaning)| {
            let always = !meaning.trim().starts_with("If ");
            names.split('`').skip(1).step_by(2).map(move |name| (name.to_owned(), always))
        })
        .collect()
}

/// Runs a section's commands, of which the last one prints, and compares its formats with the section.
fn check(section: &str) {
    let commands = blocks(section).into_iter().find(|(language, _)| *language == "sh").expect(section).1;
    let (before, command) = commands.trim_end().rsplit_once('\n').unwrap_or(("", commands.trim_end()));
    let place = PageFolder::new();
    before.lines().for_each(|line| place.succeed("output.md", line));
    let printed = |format: &str| {
        let output = place.shell(&format!("{command} --format {format}"));
        // A check of the environment fails where it finds something missing.
        assert!(output.status.success() || command.contains("doctor"), "{command}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let mut found = BTreeSet::new();
    keys(&json(&printed("json")), "", &mut found);
    let for_people: Vec<&String> = found.iter().filter(|name| !is_for_programs(name)).collect();
    assert!(
        for_people.is_empty(),
        "{command}: keys with more than small letters, digits and underscores: {for_people:?}"
    );
    let documented = documented(section);
    for (name, always) in &documented {
        assert!(found.contains(name) || !always, "{command} prints no {name}");
    }
    let missing: Vec<&String> =
        found.iter().filter(|name| !documented.iter().any(|(known, _)| known == *name)).collect();
    assert!(missing.is_empty(), "{command}: docs/output.md lacks {missing:?}");
    let columns = section.split("CSV columns: `").nth(1).unwrap_or_else(|| panic!("{command}: no CSV columns"));
    let columns = columns.split('`').next().unwrap();
    assert_eq!(printed("csv").lines().next(), Some(columns), "{command}");
    assert!(columns.split(',').all(is_for_programs), "{command}: {columns}");
}

/// Whether a key or a column can be written without quotes. Kinds of bytes are values, and have hyphens.
fn is_for_programs(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_.[]".contains(&byte);
    name.bytes().all(|byte| letter(byte) || name.starts_with("bytes_by_kind.") && byte == b'-')
}

#[test]
fn names_for_people_differ_from_names_for_programs() {
    assert!(
        ["time_us", "[].f32", "kernels[].workspace_bytes", "bytes_by_kind.weight-gradients"].map(is_for_programs)
            == [true; 4]
    );
    assert!(["time [µs]", "what it is", "mini-batches", "GMAC"].map(is_for_programs) == [false; 4]);
}

#[test]
fn output_for_programs_has_the_documented_keys_and_columns() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/output.md")).unwrap();
    // A comparison needs PyTorch; `commands::compare` checks its keys.
    let sections: Vec<&str> = page.split("\n## ").skip(1).filter(|section| !section.starts_with("`compare`")).collect();
    for sections in sections.chunks(2) {
        std::thread::scope(|scope| sections.iter().for_each(|section| drop(scope.spawn(|| check(section)))));
    }
}

#[test]
fn lists_of_a_training_run_have_an_entry_per_step() {
    let train = "tightfit train digits-net --batch 32 --data digits --steps 3 --backend cpu --cache none --format json";
    let run = json(&text(&PageFolder::new().shell(train).stdout));
    for key in ["losses", "correct", "step_times_us"] {
        assert_eq!(run[key].as_array().map(Vec::len), Some(3), "{key}: {run:#}");
    }
    assert!(run["correct"].as_array().unwrap().iter().all(|correct| correct.as_u64().unwrap() <= 32), "{run:#}");
}

#[test]
fn missing_numbers_are_null_in_lists() {
    let rows = json(&text(
        &PageFolder::new().shell("tightfit plan lenet --batch 16 --assume --sweep 50..100:50 --format json").stdout,
    ));
    let (small, whole) = (&rows[0], &rows[1]);
    for key in ["peak_bytes", "step_time_us", "offloaded_bytes", "recomputed_us"] {
        assert!(small[key].is_null() && whole[key].is_number(), "{key}: {rows:#}");
    }
    assert!(
        small["needed_bytes"].as_u64() > small["budget_bytes"].as_u64() && whole["needed_bytes"].is_null(),
        "{rows:#}"
    );
}

/// Commands that print no results in any format.
const WITHOUT_RESULTS: [&str; 4] = ["run", "completions", "man", "help"];

#[test]
fn every_command_with_results_has_a_section() {
    let page = std::fs::read_to_string(format!("{ROOT}/docs/output.md")).unwrap();
    let headings: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("## ")).collect();
    let help = text(&PageFolder::new().shell("tightfit --help").stdout);
    // By purpose, one line each.
    let list = help.split("Usage:").nth(1).unwrap().split("\nOptions:\n").next().unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next()).collect();
    assert!(names.len() >= 14 && names.contains(&"plan"), "{names:?}");
    for name in names.into_iter().filter(|name| !name.is_empty() && !WITHOUT_RESULTS.contains(name)) {
        assert!(headings.iter().any(|heading| heading.contains(&format!("`{name}"))), "no section for `{name}`");
    }
}
