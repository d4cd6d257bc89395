//! What is said on standard error, for machines: every line a JSON object, from the first to the last.

use crate::client::Served;
use crate::common::{Ran, scratch, text, tombolo};
use serde_json::{Value, json};
use std::net::TcpListener;
use std::time::Duration;

/// The lines, each with a time, a level and a message or fields.
#[track_caller]
fn objects<'a>(lines: impl Iterator<Item = &'a str>) -> Vec<Value> {
    let read = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let (time, level) = (object["timestamp"].as_str().unwrap(), object["level"].as_str().unwrap());
        assert!(time.len() == 27 && time.ends_with('Z'), "{line}");
        assert!(["ERROR", "WARN", "INFO"].contains(&level), "{line}");
        object
    };
    lines.map(read).collect()
}

#[test]
fn a_server_says_all_of_it_as_json() {
    let path = scratch("json.toml");
    std::fs::write(&path, "[serve]\nmax-num-seqs = 2\n").unwrap();
    let mut served = Served::start(&["--log-json", "--log-level", "info", "--config", text(&path)]);
    assert_eq!(served.complete(&json!({"prompt": "a", "max_tokens": 2})).status, 200);
    served.signal(rustix::process::Signal::TERM);
    assert_eq!(served.exit_code(Duration::from_secs(30)), Some(0));
    let log = served.log();
    let said = objects(log.iter().map(String::as_str));
    let messages: Vec<&str> = said.iter().filter_map(|object| object["message"].as_str()).collect();
    for part in ["max-num-seqs 2", "listening on http://127.0.0.1:", "loaded ", "2 sequences", "Ctrl-C ends"] {
        assert!(messages.iter().any(|message| message.contains(part)), "no '{part}' in {messages:?}");
    }
}

#[test]
fn its_last_line_is_json_too() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let path = scratch("wrong.toml");
    std::fs::write(&path, "[serve]\nlog-json = true\nmax-waiting = -1\n").unwrap();
    let by_file = scratch("by-file.toml");
    std::fs::write(&by_file, "[serve]\nlog-json = true\nmodel = \"/nowhere.gguf\"\nport = 0\n").unwrap();
    for (args, part) in [
        (&["--log-json", "--port", &port][..], "in use"),
        (&["--log-json", "--port", "0", "/nowhere.gguf"], "/nowhere.gguf"),
        (&["--log-json", "--host", "0.0.0.0"], "opens the server"),
        (&["--prot", "1", "--log-json"], "--prot"),
        (&["--log-json", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (&["--config", text(&path)], "max-waiting"),
        (&["--config", text(&by_file)], "by-file.toml: line 3: /nowhere.gguf"),
    ] {
        let ran: Ran = tombolo(&[&["serve"], args].concat()).output().unwrap().into();
        assert_ne!(ran.code, Some(0), "{args:?}: {}", ran.err);
        let said = objects(ran.err.lines());
        let last = said.last().unwrap();
        assert_eq!(last["level"], "ERROR", "{}", ran.err);
        assert!(last["message"].as_str().unwrap().contains(part), "{args:?}: {}", ran.err);
    }
}
