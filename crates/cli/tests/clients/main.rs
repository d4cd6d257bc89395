//! The real server, spoken to by clients that others made, unmodified: OpenAI's packages for Python and npm, curl, and a
//! browser on the page. The scripts are in `tools/clients`, whose `install` fetches what they need.
#![allow(missing_docs)]

#[allow(dead_code)]
#[path = "../serve/client.rs"]
mod client;
mod scripted;

use client::Served;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn url(served: &Served) -> String {
    format!("http://{}", served.address)
}

/// Runs a client to its end, and shows what it said where that is not a good one.
#[track_caller]
fn succeeds(command: &mut Command) {
    // A proxy of the machine is not for servers on it.
    let command = command.env("NO_PROXY", "*").env_remove("OPENAI_API_KEY").env_remove("OPENAI_BASE_URL");
    let output = command.output().unwrap_or_else(|error| panic!("{error}: tools/clients/install was not run"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
}

/// The demo model for everybody, the same with a key and little room, and one that calls tools.
fn servers() -> [Served; 3] {
    let keyed = ["--api-key", "right", "--max-num-seqs", "1", "--max-waiting", "1"];
    let model = scripted::model();
    let tool = [model.to_str().unwrap(), "--served-model-name", "scripted"];
    [Served::start(&[]), Served::start(&keyed), Served::start(&tool)]
}

#[test]
#[ignore = "needs tools/clients/install"]
fn openai_python() {
    let servers = servers();
    let mut command = Command::new(root().join("target/clients/venv/bin/python"));
    succeeds(command.arg(root().join("tools/clients/openai_python.py")).args(servers.iter().map(url)));
    assert_eq!(servers[0].when_idle(), 0.0);
}

#[test]
#[ignore = "needs tools/clients/install"]
fn openai_npm() {
    let servers = servers();
    let mut command = Command::new("node");
    command.env("NODE_PATH", root().join("target/clients/node_modules"));
    succeeds(command.arg(root().join("tools/clients/openai_npm.cjs")).args(servers.iter().map(url)));
    assert_eq!(servers[0].when_idle(), 0.0);
}

#[test]
#[ignore = "needs tools/clients/install"]
fn page_in_chromium() {
    let open = Served::start(&[]);
    let keyed = Served::start(&["--api-key", "right"]);
    let mut command = Command::new("python3");
    succeeds(command.arg(root().join("tools/clients/page.py")).args([&open, &keyed].map(url)));
    assert_eq!(open.when_idle(), 0.0);
}

#[test]
#[ignore = "needs tools/clients/install"]
fn curl() {
    let served = Served::start(&["--api-key", "right"]);
    let ask = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "*", "-N"]).args(more);
        let output = command.output().unwrap_or_else(|error| panic!("{error}: tools/clients/install was not run"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let base = url(&served);
    let path = |path: &str| format!("{base}{path}");
    let [key, json] = ["Authorization: Bearer right", "Content-Type: application/json"];
    let body = r#"{"prompt": "In the beginning", "max_tokens": 3, "stream": true}"#;
    let events = ask(&[&path("/v1/completions"), "-H", key, "-H", json, "-d", body]);
    assert!(
        events.ends_with("data: [DONE]\n\n") && events.starts_with("data: {") && events.contains("\"length\""),
        "{events}"
    );
    // A page in a browser could send a body without saying what it is.
    let unsaid = ask(&[&path("/v1/completions"), "-H", key, "-d", r#"{"prompt": "In", "max_tokens": 1}"#]);
    assert!(unsaid.contains("`Content-Type: application/json`"), "{unsaid}");
    assert_eq!(ask(&[&path("/v1/models"), "-o", "/dev/null", "-w", "%{http_code}"]), "401");
    assert_eq!(ask(&["-I", &path("/health"), "-o", "/dev/null", "-w", "%{http_code}"]), "200");
    // A large body is announced first (Expect: 100-continue).
    let large = format!(r#"{{"prompt": "{}", "max_tokens": 1}}"#, "word ".repeat(300_000));
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("large-{}.json", std::process::id()));
    std::fs::write(&file, large).unwrap();
    let from = format!("@{}", file.display());
    let expect = "Expect: 100-continue";
    let refused = ask(&[&path("/v1/completions"), "-H", key, "-H", json, "-H", expect, "--data-binary", &from]);
    assert!(refused.contains("\"error\""), "{refused}");
}
