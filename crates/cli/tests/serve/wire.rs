//! Heads, frames, keys and origins: what passes the gate.

use crate::client::{Served, read, request};
use serde_json::json;
use std::io::{Read, Write};
use std::time::{Duration, Instant};

const BODY: &str = "{\"prompt\": \"a\", \"max_tokens\": 1}";

#[test]
fn bodies_are_limited_in_size_kind_and_time() {
    let served = Served::start(&["--max-body-bytes", "100000", "--body-timeout", "3"]);
    let declared = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{";
    assert_eq!(served.raw(declared.as_bytes()).status, 413, "A24");
    let head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
    let endless = [head.as_bytes(), &b"4\r\nxxxx\r\n".repeat(50_000)].concat();
    assert_eq!(served.raw(&endless).status, 413, "A24");
    for (line, status) in [
        ("Content-Encoding: gzip\r\n", 415),
        ("Content-Encoding: br\r\n", 415),
        ("Content-Encoding: identity\r\n", 200),
    ] {
        assert_eq!(served.post_with("/v1/completions", BODY, line).status, status, "A25");
    }
    let form = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n{BODY}",
        BODY.len()
    );
    assert_eq!(served.raw(form.as_bytes()).status, 415, "a page of another origin can send this unasked");
    let mut slow = served.connect();
    slow.write_all(format!("{head}1\r\n{{\r\n").as_bytes()).unwrap();
    let started = Instant::now();
    assert_eq!(read(slow).status, 408, "A28");
    assert!(started.elapsed() < Duration::from_secs(10));
    assert_eq!(served.post("/v1/completions", BODY).status, 200);
}

#[test]
fn heads_are_limited_and_whole() {
    let served = Served::start(&["--header-timeout", "1"]);
    let get = |line: &str| format!("GET /live HTTP/1.1\r\nHost: localhost\r\n{line}\r\n");
    let many: String = (0..10_000).map(|i| format!("x{i}: y\r\n")).collect();
    for (id, bytes, statuses) in [
        ("A26", get(&many), &[431, 0][..]),
        ("A26", get(&format!("x: {}\r\n", "y".repeat(1 << 20))), &[431, 0]),
        ("A26", format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(10_000)), &[414]),
        ("A26", format!("GET /{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "a".repeat(1 << 20)), &[414, 431, 0]),
        ("A32", get("Content-Length: 1\r\nContent-Length: 2\r\n"), &[400]),
        ("A32", get("Transfer-Encoding: xchunked\r\n"), &[400]),
        ("A32", get("x : y\r\n"), &[400]),
        ("A32", get("x: y\r\n z\r\n"), &[400]),
        ("A33", "GET /live\r\n\r\n".into(), &[400]),
        ("A33", get("").replace("GET", "TRACE"), &[405]),
        ("A33", "CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n".into(), &[405]),
        ("A33", get("Connection: close\r\nUpgrade: h2c\r\n"), &[200]),
        ("A34", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(), &[0, 400, 505]),
        ("A38", get("Connection: close\r\n").replace("localhost", "evil.example"), &[403]),
        ("405", get("Connection: close\r\n").replace("/live", "/v1/completions"), &[405]),
        ("404", get("Connection: close\r\n").replace("/live", "//v1/models"), &[404]),
    ] {
        let answer = served.raw(bytes.as_bytes());
        assert!(statuses.contains(&answer.status), "{id} {}: {answer:?}", &bytes[..bytes.len().min(80)]);
    }
    assert!(served.raw(get("").replace("GET", "TRACE").as_bytes()).head.contains("allow: "));
    let both = format!(
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        BODY.len()
    );
    assert_eq!(served.raw(both.as_bytes()).status, 400, "A32");
    // One connection, two requests at once.
    let mut pipelined = served.connect();
    let one = "GET /live HTTP/1.1\r\nHost: localhost\r\n";
    pipelined.write_all(format!("{one}\r\n{one}Connection: close\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    pipelined.read_to_string(&mut text).unwrap();
    assert_eq!(text.matches("HTTP/1.1 200 OK").count(), 2, "A33");
    let mut expecting = served.connect();
    let (head, body) = (request("/v1/completions", BODY.as_bytes(), "Expect: 100-continue\r\n"), BODY.len());
    expecting.write_all(&head[..head.len() - body]).unwrap();
    let mut first = [0; 25];
    expecting.read_exact(&mut first).unwrap();
    assert!(first.starts_with(b"HTTP/1.1 100"), "A33");
    expecting.write_all(BODY.as_bytes()).unwrap();
    assert_eq!(read(expecting).status, 200);
}

#[test]
fn keys_open_everything_and_nothing_is_open_without() {
    let served = Served::start(&["--api-key", "sk-one", "--api-key", "sk-two"]);
    let with = |key: &str| format!("Authorization: Bearer {key}\r\n");
    for path in [
        "/v1/models",
        "/v1//models",
        "/%76%31/models",
        "/metrics",
        "/tokenize",
        "/openapi.json",
        "/nothing",
        "/live/../metrics",
        "/app.js/",
    ] {
        let answer = served.get(path);
        assert_eq!(answer.status, 401, "A36 {path}");
        assert!(answer.head.contains("www-authenticate: bearer"));
    }
    for path in ["/live", "/ready", "/health"] {
        assert_eq!(served.get(path).status, 200, "{path}");
    }
    for path in ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"] {
        assert_eq!(served.post(path, BODY).status, 401, "A36 {path}");
    }
    for wrong in ["sk-on", "sk-onee", "sk-One", "", "sk-one sk-two"] {
        assert_eq!(
            served.post_with("/v1/completions", BODY, &with(wrong)).json()["error"]["code"],
            "invalid_api_key",
            "A35"
        );
    }
    // Keys share no cached work: who probes for another's prompt finds nothing.
    let long = json!({"prompt": "And God said, Let there be light. ".repeat(30), "max_tokens": 1}).to_string();
    let cached = |key: &str| {
        let answer = served.post_with("/v1/completions", &long, &with(key)).json();
        answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
    };
    assert_eq!((cached("sk-one"), cached("sk-two")), (0, 0), "A47");
    assert!(cached("sk-one") > 0);
    // A key is proof enough, whatever the server is called.
    let named = request("/v1/completions", BODY.as_bytes(), &with("sk-two"));
    let named = String::from_utf8(named).unwrap().replace("localhost", "models.example");
    assert_eq!(served.raw(named.as_bytes()).status, 200);
}

#[test]
fn pages_of_other_origins_read_nothing_unless_named() {
    let origin = |origin: &str| format!("Origin: {origin}\r\n");
    let preflight = "OPTIONS /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\nAccess-Control-Request-Method: POST\r\nConnection: close\r\n\r\n";
    let served = Served::start(&[]);
    let plain = served.post_with("/v1/completions", BODY, &origin("https://evil.example"));
    assert!(!plain.head.contains("access-control"), "A37");
    assert!(!served.raw(preflight.as_bytes()).head.contains("access-control"), "A37");
    drop(served);
    let served = Served::start(&["--cors-origin", "https://a.example", "--api-key", "k"]);
    let asked = served.raw(preflight.as_bytes());
    assert_eq!(asked.status, 204);
    assert!(asked.head.contains("access-control-allow-origin: https://a.example"), "{}", asked.head);
    let evil = preflight.replace("a.example", "evil.example");
    assert_eq!(served.raw(evil.as_bytes()).status, 401);
}
