//! `tombolo bench serve` against the real server: the figures, what is saved, and what is said where nothing works.

use crate::client::Served;
use serde_json::Value;
use std::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn bench(url: &str, more: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.args(["bench", "serve", "--base-url", url]).args(more).env_remove("OPENAI_API_KEY");
    command.env("TOMBOLO_CONFIG", "none");
    let output = command.output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn url(served: &Served) -> String {
    format!("http://{}", served.address)
}

/// A value of the table.
#[track_caller]
fn row(table: &str, name: &str) -> f64 {
    let line = table.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {table}"));
    line.rsplit_once(':').unwrap().1.trim().parse().unwrap()
}

#[test]
fn a_closed_loop_sends_exact_lengths_and_is_told_in_full() {
    let served = Served::start(&[]);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}.json", std::process::id()));
    let shape =
        ["--num-prompts", "6", "--max-concurrency", "2", "--random-input-len", "40", "--random-prefix-len", "80"];
    let more = ["--random-output-len", "8", "--ignore-eos", "--goodput", "ttft:60000", "--save-detailed"];
    let name = ["--result-filename", file.to_str().unwrap()];
    let ran = bench(&url(&served), &[&shape[..], &more, &name].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for (name, value) in [
        ("Successful requests", 6.0),
        ("Failed requests", 0.0),
        ("Maximum request concurrency", 2.0),
        ("Total input tokens", 720.0),
        ("Total generated tokens", 48.0),
        ("Peak concurrent requests", 2.0),
    ] {
        assert_eq!(row(&ran.out, name), value, "{name}");
    }
    assert!(row(&ran.out, "Of them from the server's cache") >= 6.0 * 64.0, "{}", ran.out);
    assert!(row(&ran.out, "Mean E2EL (ms)") >= row(&ran.out, "Mean TTFT (ms)"));
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((&saved["completed"], &saved["total_output_tokens"]), (&6.into(), &48.into()));
    assert_eq!((&saved["request_rate"], &saved["model_id"]), (&"inf".into(), &"demo".into()));
    assert_eq!(saved["request_goodput"], saved["request_throughput"]);
    assert_eq!(saved["ttfts"].as_array().unwrap().len(), 6);
    let itls = saved["itls"][0].as_array().unwrap().len();
    assert!((1..8).contains(&itls), "{itls}");
    // The server's own figures know of the same tokens, and of the trial's.
    assert_eq!(served.metric("vllm:generation_tokens_total"), 56.0);
}

#[test]
fn text_has_as_many_tokens_as_ids() {
    let served = Served::start(&[]);
    let shape = ["--num-prompts", "2", "--random-input-len", "50", "--random-output-len", "2", "--random-text"];
    let ran = bench(&url(&served), &shape);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(row(&ran.out, "Total input tokens"), 100.0);
}

#[test]
fn chats_arrive_at_a_rate() {
    let served = Served::start(&[]);
    let base = format!("{}/v1", url(&served));
    let load = ["--endpoint", "/v1/chat/completions", "--num-prompts", "5", "--request-rate", "50"];
    let ran = bench(&base, &[&load[..], &["--random-input-len", "10", "--random-output-len", "4"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!((row(&ran.out, "Successful requests"), row(&ran.out, "Request rate configured")), (5.0, 50.0));
    assert!(ran.err.contains("chat template"), "{}", ran.err);
}

#[test]
fn prompts_come_from_a_file() {
    let served = Served::start(&[]);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("prompts-{}.jsonl", std::process::id()));
    std::fs::write(&file, "{\"prompt\": \"In the beginning\", \"output_tokens\": 3}\n{\"prompt\": \"And\"}\n").unwrap();
    let data = ["--dataset-name", "custom", "--dataset-path", file.to_str().unwrap(), "--output-len", "5"];
    let ran = bench(&url(&served), &[&data[..], &["--ignore-eos", "--num-prompts", "9"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!((row(&ran.out, "Successful requests"), row(&ran.out, "Total generated tokens")), (2.0, 10.0));
    assert!(ran.err.contains("2 prompts only"), "{}", ran.err);
}

/// Ends with this code and one line that holds all parts.
#[track_caller]
fn fails(url: &str, more: &[&str], code: i32, parts: &[&str]) {
    let ran = bench(url, more);
    assert_eq!((ran.code, ran.out.as_str()), (Some(code), ""), "{}", ran.err);
    let last = ran.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && parts.iter().all(|part| last.contains(part)), "{parts:?}: {}", ran.err);
}

#[test]
fn what_is_wrong_is_one_line() {
    let served = Served::start(&["--api-key", "right"]);
    let url = url(&served);
    fails(&url, &[], 1, &["wants a key", "--api-key"]);
    fails(&url, &["--api-key", "wrong"], 1, &["does not take the key"]);
    let with = ["--api-key", "right", "--num-prompts", "2"];
    fails(&url, &[&with[..], &["--model", "other"]].concat(), 2, &["no model 'other'", "demo"]);
    fails(&url, &[&with[..], &["--endpoint", "/v2/completions"]].concat(), 1, &["/v2/completions"]);
    fails(&url, &[&with[..], &["--random-input-len", "100000"]].concat(), 1, &["400", "context"]);
    let data = ["--extra-body", "{\"logit_bias\": {\"x\": 1}}"];
    fails(&url, &[&with[..], &data].concat(), 1, &["400", "logit_bias"]);
    fails("http://127.0.0.1:1", &[], 1, &["no server at http://127.0.0.1:1", "--base-url"]);
    fails("ftp://localhost", &[], 2, &["--base-url ftp://localhost", "http://127.0.0.1:8000"]);
    fails(&url, &["--num-prompts", "0"], 2, &["--num-prompts 0"]);
    fails(&url, &["--request-rate", "0"], 2, &["--request-rate"]);
    fails(&url, &["--endpoint", "/v1/embeddings"], 2, &["/v1/chat/completions"]);
    fails(&url, &["--dataset-name", "custom"], 2, &["--dataset-path"]);
}

/// The certificate of this machine, which nobody else vouches for.
fn certificate() -> String {
    format!("{}/tests/data/localhost.pem", env!("CARGO_MANIFEST_DIR"))
}

/// A proxy that speaks TLS, before a server; its port. Ends with the test's process.
fn proxy(served: &Served, ip: &str) -> u16 {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    let chain = vec![CertificateDer::from_pem_file(certificate()).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate().replace(".pem", "-key.pem")).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let versions = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = versions.with_no_client_auth().with_single_cert(chain, key).unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
    let listener = std::net::TcpListener::bind((ip, 0)).unwrap();
    listener.set_nonblocking(true).unwrap();
    let (port, to) = (listener.local_addr().unwrap().port(), served.address);
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    let mut near = acceptor.accept(stream).await?;
                    let mut far = tokio::net::TcpStream::connect(to).await?;
                    tokio::io::copy_bidirectional(&mut near, &mut far).await
                });
            }
        });
    });
    port
}

#[test]
fn a_server_behind_tls_is_measured_where_it_is_trusted() {
    let served = Served::start(&[]);
    let url = format!("https://localhost:{}", proxy(&served, "127.0.0.1"));
    let shape =
        ["--num-prompts", "4", "--max-concurrency", "2", "--random-input-len", "20", "--random-output-len", "3"];
    let ran = bench(&url, &[&shape[..], &["--ca-file", &certificate(), "--ignore-eos"]].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!((row(&ran.out, "Successful requests"), row(&ran.out, "Total generated tokens")), (4.0, 12.0));
    let address = url.replace("localhost", "127.0.0.1");
    assert_eq!(bench(&address, &[&shape[..], &["--ca-file", &certificate()]].concat()).code, Some(0));
    // Another name of this machine, which the certificate does not have.
    let other = format!("https://127.0.0.2:{}", proxy(&served, "127.0.0.2"));
    fails(&other, &["--ca-file", &certificate()], 1, &["127.0.0.2", "not valid for name"]);
    let system = std::path::Path::new("/etc/ssl/certs/ca-certificates.crt");
    if system.exists() {
        fails(&url, &["--ca-file", system.to_str().unwrap()], 1, &[&url, "no TLS", "--ca-file names"]);
    }
    fails(&url, &["--ca-file", "/nowhere"], 2, &["--ca-file /nowhere: No such file"]);
    let plain = format!("https://{}", served.address);
    fails(&plain, &["--ca-file", &certificate()], 1, &["does not speak TLS: is http:// meant?"]);
}

#[test]
fn a_failure_among_successes_is_exit_code_1_with_the_table() {
    let served = Served::start(&[]);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("mixed-{}.jsonl", std::process::id()));
    let long = "word ".repeat(60_000);
    std::fs::write(&file, format!("{{\"prompt\": \"In\"}}\n{{\"prompt\": \"{long}\"}}\n")).unwrap();
    let data = ["--dataset-name", "custom", "--dataset-path", file.to_str().unwrap(), "--output-len", "2"];
    let ran = bench(&url(&served), &data);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert_eq!((row(&ran.out, "Successful requests"), row(&ran.out, "Failed requests")), (1.0, 1.0));
    assert!(ran.err.contains("1 requests failed: 400"), "{}", ran.err);
}
