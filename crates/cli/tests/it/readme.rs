//! The README's commands run as printed, and what it shows of them is what they print.

use std::path::Path;

use crate::folder::{TIGHTFIT, clean};

#[test]
fn readme_console_blocks_match_real_output() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let mut shown = 0;
    for block in readme.split("```console\n").skip(1) {
        let block = block.split("```").next().unwrap();
        let (command, expected) = block.split_once('\n').unwrap();
        let arguments = command.strip_prefix("$ tightfit ").expect(command);
        let output = clean(TIGHTFIT)
            .args(arguments.split_whitespace())
            .current_dir(&root)
            .env("TIGHTFIT_CACHE", "none")
            .output()
            .unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected, "{command}");
        shown += 1;
    }
    assert!(shown >= 2, "the README has lost its examples");
}
