//! What a file may hold: its length, its head comment, and words that must not be left in it.

use super::{Fault, File};

/// Longest source file, in lines. Markdown is prose and exempt.
const LINES: usize = 800;
/// Code that must not be left, and why. Written in two halves so that this file does not hold them itself.
const LEFTOVERS: [(&str, &str, &str); 6] = [
    ("to", "do!", "finish it"),
    ("unimple", "mented!", "finish it"),
    ("db", "g!", "remove it"),
    ("TO", "DO", "file an issue instead"),
    ("FIX", "ME", "file an issue instead"),
    ("process::", "abort", "return an error"),
];
/// Beginnings of paths that exist on one machine only.
const MACHINE_PATHS: [(&str, &str); 3] = [("/ho", "me/"), ("/ro", "ot/"), ("/wo", "rk/")];
/// Who may read the environment: the command line, chores, builds and tests, and what looks for the driver's libraries
/// where a system keeps them. Everything else is told.
const READS_ENVIRONMENT: [&str; 3] = ["crates/cli/", "crates/cuda/src/driver/", "xtask/"];

pub(super) fn check(file: &File) -> Vec<Fault> {
    let mut faults = Vec::new();
    let path = &file.path;
    let is_rust = path.ends_with(".rs");
    let is_kernel = path.ends_with(".cu") || path.ends_with(".cuh");
    let is_code = is_rust || is_kernel || path.ends_with(".py") || path.ends_with(".sh");
    let lines = file.text.lines().count();
    if is_code && lines > LINES {
        faults.push(format!("{path}: {lines} lines; split it, {LINES} is the most"));
    }
    if is_rust && path.contains("/src/") && !file.text.starts_with("//!") {
        faults.push(format!("{path}: begins without a `//!` comment that says what lives here"));
    }
    if is_kernel && !(file.text.starts_with("//") || file.text.starts_with("/*")) {
        faults.push(format!("{path}: begins without a comment that says what it computes"));
    }
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        faults.push(format!("{path}: must end with exactly one newline"));
    }
    for (number, line) in file.text.lines().enumerate() {
        faults.extend(check_line(path, line, is_code).into_iter().map(|why| format!("{path}:{}: {why}", number + 1)));
    }
    faults
}

fn check_line(path: &str, line: &str, is_code: bool) -> Vec<String> {
    let mut faults = Vec::new();
    if line.ends_with([' ', '\t']) && !path.ends_with(".md") {
        faults.push("white space at the end of the line".to_string());
    }
    if ["<".repeat(7), ">".repeat(7)].iter().any(|mark| line.starts_with(&format!("{mark} "))) {
        faults.push("a merge was not finished".to_string());
    }
    for (a, b) in MACHINE_PATHS {
        if line.contains(&format!("{a}{b}")) {
            faults.push(format!("'{a}{b}' is a path of one machine"));
        }
    }
    if is_code {
        for (a, b, advice) in LEFTOVERS {
            if line.contains(&format!("{a}{b}")) {
                faults.push(format!("'{a}{b}': {advice}"));
            }
        }
    }
    let tests = path.contains("/tests/") || path.ends_with("build.rs");
    let free = tests || !path.ends_with(".rs") || READS_ENVIRONMENT.iter().any(|p| path.starts_with(p));
    if !free && (line.contains("env::var(") || line.contains("env::var_os(")) {
        faults.push("reads an environment variable: make it a flag that the command line hands down".to_string());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::super::file;
    use super::check;

    fn faults(path: &str, text: &str) -> usize {
        check(&file(path, text)).len()
    }

    #[test]
    fn a_good_file_passes() {
        assert_eq!(faults("crates/x/src/a.rs", "//! What lives here.\nfn f() {}\n"), 0);
        assert_eq!(faults("README.md", "two spaces break a line  \nin Markdown\n"), 0);
    }

    #[test]
    fn leftovers_are_found() {
        for line in [concat!("to", "do!()"), concat!("// TO", "DO"), "let a = 1; ", concat!("\"/wo", "rk/x\"")] {
            assert_eq!(faults("crates/x/src/a.rs", &format!("//! Head.\n{line}\n")), 1, "{line}");
        }
        assert_eq!(faults("crates/x/src/a.rs", "//! Head.\nstd::env::var(\"A\")\n"), 1);
        assert_eq!(faults("crates/cli/src/a.rs", "//! Head.\nstd::env::var(\"A\")\n"), 0);
    }

    #[test]
    fn unfinished_merges_are_found() {
        let mark = |sign: &str| format!("a\n{} main\n", sign.repeat(7));
        assert_eq!((faults("A.md", &mark("<")), faults("A.md", &mark(">"))), (1, 1));
        assert_eq!(faults("A.md", "<<<<< main\n"), 0);
    }

    #[test]
    fn shape_is_checked() {
        assert_eq!(faults("crates/x/src/a.rs", "fn f() {}\n"), 1);
        assert_eq!(faults("crates/x/src/a.cu", "void f();\n"), 1);
        assert_eq!(faults("crates/x/src/a.rs", "//! Head."), 1);
        let long = "//! Head.\n".to_string() + &"// x\n".repeat(800);
        assert_eq!(faults("crates/x/src/a.rs", &long), 1);
    }
}
