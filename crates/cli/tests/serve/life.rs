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

/// Sends a request on a connection that is kept, and reads the answer.
fn ask_on(stream: &mut BufReader<TcpStream>, request: &str) -> std::io::Result<String> {
    stream.get_mut().write_all(request.as_bytes())?;
    let (mut line, mut length, mut status) = (String::new(), 0, String::new());
    while line != "\r\n" {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        length = line.strip_prefix("content-length: ").map_or(length, |rest| rest.trim().parse().unwrap());
        if status.is_empty() {
            status = line.clone();
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(status)
}

const LIVE: &str = "GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n";

/// The clock of a head begins with its first byte: a connection that is kept waits for longer, but not for ever.
#[test]
fn a_connection_is_kept_for_longer_than_a_head_may_take() {
    let served = Served::start(&["--header-timeout", "1", "--keep-alive-timeout", "60"]);
    let mut kept = BufReader::new(served.connect());
    for pause in [0, 2500, 1500] {
        std::thread::sleep(Duration::from_millis(pause));
        let status = ask_on(&mut kept, LIVE).unwrap_or_else(|error| panic!("after {pause} ms: {error}"));
        assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    }
    // A next head that stops half way is cut off as a first one is.
    kept.get_mut().write_all(&LIVE.as_bytes()[..20]).unwrap();
    let started = Instant::now();
    let mut rest = Vec::new();
    let _ = kept.read_to_end(&mut rest);
    assert!(rest.is_empty() && started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    drop(served);
    let served = Served::start(&["--header-timeout", "60", "--keep-alive-timeout", "1"]);
    let mut slow = BufReader::new(served.connect());
    slow.get_mut().write_all(&LIVE.as_bytes()[..20]).unwrap();
    let mut idle = BufReader::new(served.connect());
    ask_on(&mut idle, LIVE).unwrap();
    let started = Instant::now();
    assert_eq!(idle.read_to_end(&mut rest).unwrap(), 0, "an end, and no reset");
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    std::thread::sleep(Duration::from_millis(500));
    assert!(ask_on(&mut slow, &LIVE[20..]).unwrap().starts_with("HTTP/1.1 200"), "a head has its own time");
}

/// Connections of a port, by the state that the kernel has them in (`/proc/net/tcp`).
fn connections_in_state(port: u16, state: &str) -> usize {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!("0100007F:{port:04X}");
    let is_one = |line: &&str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        fields.get(1) == Some(&local.as_str()) && fields.get(3) == Some(&state)
    };
    table.lines().filter(is_one).count()
}

/// What the kernel remembers of a server that was killed does not keep the next one from its port.
#[test]
fn killed_and_started_again_it_has_its_port_at_once() {
    let mut served = Served::start(&[]);
    let port = served.port();
    // The server ends these first: they are remembered on its side.
    for _ in 0..5 {
        assert_eq!(served.get("/live").status, 200);
    }
    assert!(connections_in_state(port, "06") > 0, "none is in TIME_WAIT");
    let (running, mut kept) = (begun(&served), BufReader::new(served.connect()));
    ask_on(&mut kept, LIVE).unwrap();
    served.child.kill().unwrap();
    served.child.wait().unwrap();
    let again = Served::start_at(port, &[]);
    assert!(connections_in_state(port, "06") > 0, "it waited until they were forgotten");
    assert_eq!((again.port(), again.get("/live").status), (port, 200));
    drop((running, kept));
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
