//! Many at once: thousands that say nothing, a thousand that do not read, ten thousand that leave, one that asks the same
//! again and again. Others are served as if they were alone, and memory does not grow with them.

use crate::client::{Served, request};
use serde_json::json;
use std::collections::HashSet;
use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

const COMPLETIONS: &str = "/v1/completions";

/// Connections of this process: as many as the system allows.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
}

/// Waits until a number of `/metrics` is at most this.
#[track_caller]
fn until(served: &Served, name: &str, most: f64, within: Duration) {
    let deadline = Instant::now() + within;
    while served.metric(name) > most {
        assert!(Instant::now() < deadline, "{name} stays at {}", served.metric(name));
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn thousands_that_say_nothing_hinder_nobody() {
    raise_file_limit();
    let served = Served::start(&["--header-timeout", "5"]);
    let body = json!({"prompt": "a", "max_tokens": 8, "temperature": 0});
    let expected = served.complete(&body).json()["choices"].clone();
    let before = served.resident_mib();
    let silent: Vec<TcpStream> = (0..2000)
        .map(|i| {
            let mut stream = served.connect();
            stream.write_all(&b"POST /v1/completions HTTP/1.1\r\nHost: loc"[..i % 40]).unwrap();
            stream
        })
        .collect();
    assert!(served.metric("tombolo:connections") >= 2000.0);
    for _ in 0..20 {
        let started = Instant::now();
        assert_eq!(served.complete(&body).json()["choices"], expected);
        assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    }
    let grown = served.resident_mib().saturating_sub(before);
    assert!(grown < 150, "{grown} MiB for 2000 connections");
    until(&served, "tombolo:connections", 4.0, Duration::from_secs(20));
    drop(silent);
}

#[test]
fn a_thousand_that_do_not_read_hinder_nobody() {
    raise_file_limit();
    // Every event bears the name: a few fill the sockets' buffers.
    let name = "x".repeat(32 << 10);
    let more = ["--api-key", "theirs", "--api-key", "ours", "--served-model-name", &name];
    let served = Served::start(&[&more[..], &["--write-timeout", "2", "--max-waiting", "2000"]].concat());
    let body = json!({"prompt": "a", "max_tokens": 16, "ignore_eos": true, "stream": true}).to_string();
    let asked = request(COMPLETIONS, body.as_bytes(), "Authorization: Bearer theirs\r\n");
    let before = served.resident_mib();
    let stalled: Vec<TcpStream> = (0..1000)
        .map(|_| {
            let mut stream = served.connect();
            rustix::net::sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
            stream.write_all(&asked).unwrap();
            stream
        })
        .collect();
    let mut most = 0;
    for _ in 0..10 {
        let started = Instant::now();
        let answer = served.post_with(
            COMPLETIONS,
            json!({"prompt": "a", "max_tokens": 4}).to_string(),
            "Authorization: Bearer ours\r\n",
        );
        assert_eq!(answer.status, 200, "{}", answer.body.chars().take(200).collect::<String>());
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        most = most.max(served.resident_mib());
    }
    let grown = most.saturating_sub(before);
    assert!(grown < 400, "{grown} MiB for 1000 readers");
    drop(stalled);
    let deadline = Instant::now() + Duration::from_secs(60);
    let metric = |name: &str| {
        let page = served.raw(
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer ours\r\n\r\n",
        );
        let line = page.body.lines().find(|line| line.starts_with(name)).unwrap_or("? nan").to_string();
        line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    while metric("vllm:num_requests_running") + metric("vllm:num_requests_waiting{") != 0.0 {
        assert!(Instant::now() < deadline, "requests do not end");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(metric("vllm:kv_cache_usage_perc"), 0.0);
}

/// Descriptors and threads of the server.
fn held(served: &Served) -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/{}/{what}", served.pid())).unwrap().count();
    (count("fd"), count("task"))
}

/// In the head, in the body, while others wait, before and after the first token; orderly and by reset.
#[test]
#[ignore = "takes a minute"]
fn ten_thousand_that_leave_leave_nothing() {
    raise_file_limit();
    let served = Served::start(&["--max-num-seqs", "4"]);
    let same = json!({"prompt": "a", "max_tokens": 16, "temperature": 0});
    let expected = served.complete(&same).json()["choices"].clone();
    until(&served, "tombolo:connections", 1.0, Duration::from_secs(20));
    let (before, memory) = (held(&served), served.resident_mib());
    std::thread::scope(|scope| {
        for worker in 0..4u64 {
            let served = &served;
            scope.spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15 ^ (worker << 32);
                for _ in 0..2500 {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    let body =
                        json!({"prompt": "a", "max_tokens": 4000, "ignore_eos": true, "stream": random % 2 == 0});
                    let bytes = request(COMPLETIONS, body.to_string().as_bytes(), "");
                    let cut = if random % 4 == 0 { (random >> 8) as usize % bytes.len() } else { bytes.len() };
                    let mut stream = served.connect();
                    stream.write_all(&bytes[..cut]).unwrap();
                    std::thread::sleep(Duration::from_micros((random >> 24) % 20_000));
                    if random % 3 == 0 {
                        // Unread data and a close is a reset.
                        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(served.when_idle(), 0.0, "blocks of the KV cache");
    until(&served, "tombolo:connections", 1.0, Duration::from_secs(20));
    // Threads that waited on files and forms stay for some seconds.
    let deadline = Instant::now() + Duration::from_secs(60);
    while held(&served).0 > before.0 || held(&served).1 > before.1 {
        assert!(Instant::now() < deadline, "descriptors and threads: {before:?}, then {:?}", held(&served));
        std::thread::sleep(Duration::from_millis(200));
    }
    let grown = served.resident_mib().saturating_sub(memory);
    assert!(grown < 100, "{grown} MiB");
    assert_eq!(served.complete(&same).json()["choices"], expected);
}

#[test]
fn the_same_long_prompt_again_and_again_costs_once() {
    let served = Served::start(&["-c", "1024"]);
    let prompt: Vec<u32> = (0..900).map(|i| 5 + i * 7 % 3000).collect();
    let body = json!({"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": true});
    let asked = request(COMPLETIONS, body.to_string().as_bytes(), "");
    let expected = served.complete(&body).json()["choices"].clone();
    let before = served.resident_mib();
    for round in 0..60 {
        let mut stream = served.connect();
        stream.write_all(&asked).unwrap();
        std::thread::sleep(Duration::from_millis(round % 6 * 4));
    }
    assert_eq!(served.when_idle(), 0.0, "blocks of the KV cache are lost");
    let answer = served.complete(&body).json();
    assert_eq!(answer["choices"], expected);
    assert!(answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64() >= Some(864), "{}", answer["usage"]);
    let grown = served.resident_mib().saturating_sub(before);
    assert!(grown < 64, "{grown} MiB for 60 rounds");
}

#[test]
fn nothing_listens_but_the_api() {
    let served = Served::start(&["-tp", "2"]);
    assert_eq!(served.complete(&json!({"prompt": "a", "max_tokens": 2})).status, 200);
    let directory = format!("/proc/{}", served.pid());
    let links = std::fs::read_dir(format!("{directory}/fd")).unwrap().flatten();
    let sockets: HashSet<String> = links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_string()))
        .collect();
    let mut listening = Vec::new();
    for (table, state, inode) in [("tcp", 3, 9), ("tcp6", 3, 9)] {
        let text = std::fs::read_to_string(format!("{directory}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let words: Vec<&str> = line.split_whitespace().collect();
            // 0A: listening.
            if words.get(state) == Some(&"0A") && words.get(inode).is_some_and(|inode| sockets.contains(*inode)) {
                listening.push(words[1].to_string());
            }
        }
    }
    assert_eq!(listening.len(), 1, "{listening:?}");
    assert!(listening[0].ends_with(&format!(":{:04X}", served.port())), "{listening:?}");
    let unix = std::fs::read_to_string(format!("{directory}/net/unix")).unwrap_or_default();
    // Flag 00010000: it accepts connections.
    let ours = |line: &&str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(3) == Some(&"00010000") && words.get(6).is_some_and(|inode| sockets.contains(*inode))
    };
    assert_eq!(unix.lines().filter(ours).count(), 0);
}
