//! What the documentation shows is what is printed.
#![allow(missing_docs)]

use std::path::Path;
use std::process::Command;

/// Runs every command of a page that stands alone in a block, and holds the block after it against what it prints.
fn check(page: &str) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    let text = std::fs::read_to_string(root.join(page)).unwrap();
    let blocks: Vec<&str> = text.split("```").skip(1).step_by(2).collect();
    let mut checked = 0;
    for pair in blocks.windows(2) {
        let command = pair[0].trim();
        let Some(arguments) = command.strip_prefix("tombolo ").filter(|_| command.lines().count() == 1) else {
            continue;
        };
        let shown = pair[1].trim();
        if shown.starts_with("tombolo ") {
            continue;
        }
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let ran = Command::new(env!("CARGO_BIN_EXE_tombolo"))
            .args(&arguments)
            .env("TOMBOLO_CONFIG", "none")
            .current_dir(root)
            .output()
            .unwrap();
        let printed = String::from_utf8(ran.stdout).unwrap();
        let plain = |text: &str| text.trim().lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        assert_eq!(plain(&printed), plain(shown), "{page}: `{command}` prints something else");
        checked += 1;
    }
    assert!(checked > 0, "{page} shows no output");
}

#[test]
fn doctor_prints_what_its_page_shows() {
    check("docs/doctor.md");
}

#[test]
fn plan_prints_what_its_page_shows() {
    check("docs/plan.md");
}
