//! What becomes of everybody when a rank fails: an error for each, `/health` says so, and the server ends by itself.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;
use tombolo_engine::{Runner, Settings};
use tombolo_model::{Backend, BackendError, Capacity, Step, StepOutput};
use tombolo_server::{Model, Options, Server};

/// Takes a step, thinks a while, and fails.
struct Fails;

impl Backend for Fails {
    fn describe(&self) -> String {
        "fails".into()
    }

    fn submit(&mut self, _: Arc<Step>) -> Result<(), BackendError> {
        Ok(())
    }

    fn collect(&mut self) -> Result<StepOutput, BackendError> {
        std::thread::sleep(Duration::from_millis(300));
        Err(BackendError::RankSilent { rank: 0, silent: 1, waited_ms: 300, what: "all-reduce 7 of a step".into() })
    }
}

fn send(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    // A reset after the answer does not take it back.
    let _ = stream.read_to_string(&mut answer);
    answer
}

fn get(address: SocketAddr, path: &str) -> String {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn complete(address: SocketAddr, body: &str) -> String {
    let head =
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n";
    send(address, &format!("{head}Content-Length: {}\r\n\r\n{body}", body.len()))
}

#[test]
fn a_rank_that_fails_ends_everything_in_order() {
    let server = Server::start(Options::new(([127, 0, 0, 1], 0).into())).unwrap();
    let address = server.address();
    assert!(get(address, "/ready").starts_with("HTTP/1.1 503"), "there is no model yet");
    assert!(get(address, "/live").starts_with("HTTP/1.1 200"));
    let model = Model {
        names: vec!["m".into()],
        tokenizer: None,
        template: None,
        tool_template: None,
        context: 64,
        vocabulary: 100,
        answer_tokens: None,
    };
    let capacity = Capacity { rows: 8, sequences: 2, logits: 2, context: 64, blocks: 4 };
    let settings = Settings {
        capacity,
        vocabulary: 100,
        groups: 1,
        waiting_max: 8,
        prefix_cache: true,
        drafts: Default::default(),
        max_itl_factor: None,
    };
    let end = std::thread::spawn(move || server.serve(model, Runner::new(vec![Box::new(Fails)], settings)));
    while !get(address, "/ready").starts_with("HTTP/1.1 200") {
        std::thread::sleep(Duration::from_millis(10));
    }
    let asked: Vec<_> = [false, true]
        .map(|stream| {
            let body = format!("{{\"prompt\": [1, 2], \"max_tokens\": 4, \"stream\": {stream}}}");
            std::thread::spawn(move || complete(address, &body))
        })
        .into_iter()
        .map(|thread| thread.join().unwrap())
        .collect();
    for answer in &asked {
        assert!(answer.contains("engine"), "{answer}");
        assert!(!answer.contains("finish_reason\":\"length"), "{answer}");
    }
    assert!(asked[0].starts_with("HTTP/1.1 50"), "{}", asked[0]);
    let health = get(address, "/health");
    assert!(health.starts_with("HTTP/1.1 503"), "{health}");
    assert!(get(address, "/ready").starts_with("HTTP/1.1 503"));
    assert!(complete(address, "{\"prompt\": [1], \"max_tokens\": 1}").starts_with("HTTP/1.1 503"));
    // It ends by itself, and says why.
    let error = end.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("rank 0 waited 300 ms for rank 1 in all-reduce 7 of a step"), "{error}");
}
