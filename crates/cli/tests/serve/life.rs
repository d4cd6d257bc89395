//! How connections and the server begin and end.

use crate::client::{Served, read, request};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

/// A request that goes on for long.
fn long(stream: bool) -> Vec<u8> {
    let body = json!({"prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": stream});
    request("/v1/completions", body.to_string().as_bytes(), "")
}

/// A stream whose first event was read.
fn begun(served: &Served) -> BufReader<TcpStream> {
    let mut stream = served.connect();
    stream.write_all(&long(true)).unwrap();
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(reader.read_line(&mut line).unwrap() > 0, "the stream ends early");
    }
    reader
}

#[test]
fn whoever_leaves_is_not_worked_for() {
    let served = Served::start(&[]);
    let expected =
        served.complete(&json!({"prompt": "a", "max_tokens": 16, "temperature": 0})).json()["choices"].clone();
    for round in 0..40 {
        let mut stream = served.connect();
        let bytes = long(round % 2 == 0);
        // In the head, in the body, before, at, and after the first token.
        let cut = if round % 5 == 0 { bytes.len() * (round % 7) / 7 } else { bytes.len() };
        stream.write_all(&bytes[..cut]).unwrap();
        std::thread::sleep(Duration::from_millis(round as u64 % 8 * 3));
        if round % 3 == 0 {
            // Unread data and a close is a reset.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
        }
        drop(stream);
    }
    assert_eq!(served.when_idle(), 0.0, "A30");
    assert!(
        served.metric("vllm:request_success_total{engine=\"0\",model_name=\"demo\",finished_reason=\"abort\"}") >= 10.0
    );
    assert_eq!(
        served.complete(&json!({"prompt": "a", "max_tokens": 16, "temperature": 0})).json()["choices"],
        expected
    );
    // A client that says it is done sending, and waits, has not left for HTTP; either end is right, a hang is not.
    let mut half = served.connect();
    half.write_all(&request("/v1/completions", b"{\"prompt\": \"a\", \"max_tokens\": 2}", "")).unwrap();
    half.shutdown(Shutdown::Write).unwrap();
    read(half);
    served.when_idle();
}

#[test]
fn silent_connections_are_closed_and_hinder_nobody() {
    let served = Served::start(&["--header-timeout", "1"]);
    let started = Instant::now();
    let silent: Vec<TcpStream> = (0..200)
        .map(|i| {
            let mut stream = served.connect();
            stream.write_all(&b"GET /live HTTP/1.1\r\nHost: loc"[..i % 20]).unwrap();
            stream
        })
        .collect();
    let body = json!({"prompt": "a", "max_tokens": 8});
    assert_eq!(served.complete(&body).status, 200, "A27");
    for mut stream in silent {
        let mut rest = Vec::new();
        // A reset is an end, too.
        let _ = stream.read_to_end(&mut rest);
    }
    assert!(started.elapsed() < Duration::from_secs(15));
    assert!(served.metric("tombolo:connections") <= 2.0);
}

#[test]
fn connections_are_counted() {
    let served = Served::start(&["--max-connections", "3", "--header-timeout", "5"]);
    std::thread::sleep(Duration::from_millis(100));
    let held: Vec<TcpStream> = (0..3).map(|_| served.connect()).collect();
    std::thread::sleep(Duration::from_millis(100));
    let refused = served.get("/live");
    assert_eq!(refused.status, 503);
    assert!(refused.head.contains("retry-after"));
    drop(held);
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(served.get("/live").status, 200);
}

#[test]
fn a_reader_that_stalls_is_left() {
    // Every event bears the name: they fill the sockets' buffers soon.
    let name = "x".repeat(32 << 10);
    let served = Served::start(&["--write-timeout", "1", "--max-num-seqs", "2", "--served-model-name", &name]);
    let mut stalled = served.connect();
    stalled.write_all(&long(true)).unwrap();
    assert_eq!(served.complete(&json!({"prompt": "a", "max_tokens": 4})).status, 200, "A29");
    assert_eq!(served.when_idle(), 0.0);
    let page = served.get("/metrics").body;
    let aborted = page.lines().find(|line| line.contains("finished_reason=\"abort\"")).unwrap();
    assert!(aborted.ends_with(" 1.0"), "{}", aborted.replace(&name, "…"));
    let mut all = Vec::new();
    // A reset is an end, too.
    let _ = stalled.read_to_end(&mut all);
    let text = String::from_utf8_lossy(&all);
    assert!(!text.contains("\"finish_reason\":\"length\""), "an answer with a gap");
}

#[test]
fn a_full_queue_says_when_to_come_again() {
    let served = Served::start(&["--max-num-seqs", "1", "--max-waiting", "1"]);
    let running = begun(&served);
    let mut waiting = served.connect();
    waiting.write_all(&long(false)).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while served.metric("vllm:num_requests_waiting{") < 1.0 {
        assert!(Instant::now() < deadline);
    }
    let refused = served.complete(&json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (429, &json!("queue_full")), "A45");
    assert!(refused.head.contains("retry-after: 1"));
    assert_eq!(served.complete(&json!({"prompt": "a", "n": 2})).status, 429);
    drop((running, waiting));
    assert_eq!(served.when_idle(), 0.0);
    assert_eq!(served.complete(&json!({"prompt": "a"})).status, 200);
}

#[test]
fn told_to_end_it_finishes_what_runs() {
    let mut served = Served::start(&[]);
    let body = json!({"prompt": "a", "max_tokens": 600, "ignore_eos": true, "stream": true, "temperature": 0});
    let mut stream = served.connect();
    stream.write_all(&request("/v1/completions", body.to_string().as_bytes(), "")).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while served.metric("vllm:num_requests_running{") < 1.0 {
        assert!(Instant::now() < deadline);
    }
    served.signal(Signal::TERM);
    let mut ready = served.get("/ready");
    while ready.status == 200 && Instant::now() < deadline {
        ready = served.get("/ready");
    }
    assert_eq!(ready.status, 503);
    assert_eq!(served.get("/live").status, 200);
    assert_eq!(served.get("/health").status, 200);
    let refused = served.complete(&json!({"prompt": "a"}));
    assert_eq!((refused.status, &refused.json()["error"]["code"]), (503, &json!("stopping")));
    assert!(refused.head.contains("retry-after"));
    let events = read(stream).events();
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(served.exit_code(Duration::from_secs(10)), Some(0));
}

#[test]
fn told_twice_it_ends_at_once_and_what_takes_too_long_is_ended() {
    let mut served = Served::start(&["--max-model-len", "0"]);
    let stream = begun(&served);
    served.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(100));
    served.signal(Signal::INT);
    assert_eq!(served.exit_code(Duration::from_secs(3)), Some(0));
    drop(stream);
    let mut served = Served::start(&["--shutdown-timeout", "0"]);
    let mut stream = begun(&served);
    served.signal(Signal::TERM);
    let mut rest = String::new();
    stream.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("\"code\":\"stopping\"") && rest.contains("[DONE]"), "{rest}");
    assert_eq!(served.exit_code(Duration::from_secs(10)), Some(0));
}

#[test]
fn what_cannot_be_is_said_before_anything_is_loaded() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    for (args, part) in [
        (&["--port", &*port][..], "in use"),
        (&["--host", "0.0.0.0"], "--api-key"),
        (&["--host", "::"], "--api-key"),
        (&["--host", "here"], "IP address"),
        (&["--max-num-seqs", "0"], "--max-num-seqs"),
        (&["-c", "100000000"], "trained for"),
        (&["--kv-cache-tokens", "10"], "--kv-cache-tokens"),
        (&["--port", "0", "/nowhere.gguf"], "nowhere"),
    ] {
        let base = ["serve", "--device", "cpu"];
        let free = if args.contains(&"--port") { &[][..] } else { &["--port", "0"] };
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command.args(base).args(free).args(args).env("TOMBOLO_CONFIG", "none");
        let output = command.output().unwrap();
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.lines().last().unwrap().starts_with("error: ") && err.contains(part), "{args:?}: {err}");
    }
}

#[test]
fn what_leads_nowhere_is_shaped_like_everything_else() {
    let served = Served::start(&[]);
    for answer in [served.get("/nothing"), served.get("/v1/completions"), served.post("/live", "{}")] {
        let error: Value = answer.json()["error"].clone();
        assert!(error["message"].is_string() && error["code"].is_string(), "{error}");
        assert!(answer.head.contains("x-request-id: "), "{}", answer.head);
    }
    let named = served.post_with("/v1/completions", "{}", "X-Request-Id: mine\r\n");
    assert!(named.head.contains("x-request-id: mine"));
}

#[test]
fn requests_are_told_of_where_that_is_asked_for() {
    let served = Served::start(&["--log-level", "debug", "--log-json"]);
    let asked = json!({"prompt": "a", "max_tokens": 3, "ignore_eos": true}).to_string();
    served.post_with("/v1/completions", asked, "X-Request-Id: mine\r\n");
    let line: Value = serde_json::from_str(&served.said("generated")).unwrap();
    assert_eq!((&line["completion_tokens"], &line["end"]), (&json!(3), &json!("whole")));
    assert_eq!((&line["span"]["id"], &line["span"]["path"]), (&json!("mine"), &json!("/v1/completions")));
    assert!(served.said("answered").contains("\"status\":"));
    let step: Value = serde_json::from_str(&served.said("\"step\"")).unwrap();
    assert!(step["rows"].as_u64() >= Some(1) && step["run_us"].is_u64(), "{step}");
    // Nobody who asks writes lines of their own, or paints.
    let head =
        "GET /a%0d%0a%1b[31m HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: \u{9b}31m\r\n\r\n";
    served.raw(head.as_bytes());
    let line = served.said("404");
    assert!(!line.chars().any(char::is_control), "{line}");
}
