//! The links of the README and the guide lead somewhere, and the README stays a first page.

use crate::documents::{ROOT, pages};

#[test]
fn links_and_pictures_of_the_pages_exist() {
    let mut links = 0;
    for (path, page) in pages() {
        for target in page.split("](").skip(1).map(|rest| rest.split(')').next().unwrap()) {
            if target.starts_with("https://") {
                continue;
            }
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
    let readme = std::fs::read_to_string(format!("{ROOT}/README.md")).unwrap();
    assert!(readme.lines().count() <= 120, "the first page has at most 120 lines; details go to docs/guide");
}
