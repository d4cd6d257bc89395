//! Tells the binary which commit it was built from, where that is known.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Grows with every commit; absent outside a clone, and then cargo looks at nothing else.
    if std::path::Path::new("../../.git/logs/HEAD").exists() {
        println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    }
    let commit = Command::new("git").args(["rev-parse", "--short=9", "HEAD"]).output();
    let commit = commit.ok().filter(|o| o.status.success()).and_then(|o| String::from_utf8(o.stdout).ok());
    println!("cargo::rustc-env=TOMBOLO_COMMIT={}", commit.as_deref().map_or("unknown", str::trim));
}
