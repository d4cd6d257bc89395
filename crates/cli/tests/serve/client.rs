//! Starts the server on a free port, and speaks to it over plain sockets, so that heads and bodies can be as wrong as a
//! test needs them.

use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A server of the real binary, ended with the test.
pub(crate) struct Served {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
    log: Arc<Mutex<Vec<String>>>,
    reader: Option<JoinHandle<()>>,
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The JSON of a stream's events, without the last, which is `[DONE]`.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<Value> {
        let mut events: Vec<&str> = self.body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(events.pop(), Some("[DONE]"), "{}", self.body);
        events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }

    /// The text of a stream of completions.
    #[track_caller]
    pub(crate) fn streamed_text(&self) -> String {
        let events = self.events();
        let text = |event: &Value| event["choices"][0]["text"].as_str().map(str::to_string);
        events.iter().filter_map(text).collect()
    }
}

impl Served {
    /// The demo model on the processor; ready when this returns.
    pub(crate) fn start(more: &[&str]) -> Self {
        let served = Self::start_unready(more);
        let deadline = Instant::now() + Duration::from_secs(60);
        while served.get("/ready").status != 200 {
            assert!(Instant::now() < deadline, "the server does not become ready");
            std::thread::sleep(Duration::from_millis(20));
        }
        served
    }

    pub(crate) fn start_unready(more: &[&str]) -> Self {
        Self::start_at(0, more)
    }

    /// At a port, or at any that is free for 0.
    pub(crate) fn start_at(port: u16, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
        command.args(["serve", "--port", &port.to_string(), "--device", "cpu", "-t", "1"]).args(more);
        command.env("CUDA_VISIBLE_DEVICES", "").env("TOMBOLO_CONFIG", "none");
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary starts");
        let mut lines = BufReader::new(child.stderr.take().unwrap());
        let (mut line, mut said) = (String::new(), Vec::new());
        while !line.contains("http://") {
            line.clear();
            assert!(lines.read_line(&mut line).unwrap() > 0, "no address in: {said:?}");
            said.push(line.trim_end().to_string());
        }
        let address = line.split("http://").nth(1).and_then(|rest| rest.split(',').next());
        let address = address.and_then(|address| address.trim().parse().ok());
        let address = address.unwrap_or_else(|| panic!("no address in: {line}"));
        // Whatever else it says is read, so that it never waits for us.
        let log = Arc::new(Mutex::new(said));
        let kept = log.clone();
        let reader = std::thread::spawn(move || {
            lines.lines().map_while(Result::ok).for_each(|line| kept.lock().unwrap().push(line))
        });
        Self { child, address, log, reader: Some(reader) }
    }

    /// All that it said, once it has ended.
    pub(crate) fn log(&mut self) -> Vec<String> {
        let _ = self.reader.take().map(JoinHandle::join);
        self.log.lock().unwrap().clone()
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    }

    /// Sends bytes, and reads the answer to its end.
    pub(crate) fn raw(&self, bytes: &[u8]) -> Answer {
        let mut stream = self.connect();
        // Whoever refuses a request may close before it is all there.
        let _ = stream.write_all(bytes);
        read(stream)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.raw(format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").as_bytes())
    }

    pub(crate) fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.post_with(path, body, "")
    }

    /// With more lines of the head.
    pub(crate) fn post_with(&self, path: &str, body: impl AsRef<[u8]>, more: &str) -> Answer {
        self.raw(&request(path, body.as_ref(), more))
    }

    pub(crate) fn complete(&self, body: &Value) -> Answer {
        self.post("/v1/completions", body.to_string())
    }

    pub(crate) fn chat(&self, body: &Value) -> Answer {
        self.post("/v1/chat/completions", body.to_string())
    }

    /// A number of `/metrics`.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let line = page.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name} in {page}"));
        line.rsplit(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until nothing runs, and gives the part of the KV cache that is in use then.
    #[track_caller]
    pub(crate) fn when_idle(&self) -> f64 {
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") > 0.0 {
            assert!(Instant::now() < deadline, "requests do not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        self.metric("vllm:kv_cache_usage_perc")
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for a line on standard error that holds this.
    #[track_caller]
    pub(crate) fn said(&self, part: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let log = self.log.lock().unwrap().clone();
            if let Some(line) = log.iter().find(|line| line.contains(part)) {
                return line.clone();
            }
            assert!(Instant::now() < deadline, "no '{part}' in {log:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Memory that the process has in RAM.
    pub(crate) fn resident_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    }

    /// The exit code, within a time.
    #[track_caller]
    pub(crate) fn exit_code(&mut self, within: Duration) -> Option<i32> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < deadline, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn request(path: &str, body: &[u8], more: &str) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n{more}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Reads an answer until the connection ends.
pub(crate) fn read(mut stream: TcpStream) -> Answer {
    let mut bytes = Vec::new();
    // A reset after the answer does not take it back.
    let _ = stream.read_to_end(&mut bytes);
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let head = head.to_ascii_lowercase();
    let body = if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_string() };
    Answer { status, head, body }
}

fn unchunked(mut body: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = body.split_once("\r\n") {
        let size = usize::from_str_radix(size.trim(), 16).unwrap_or(0);
        if size == 0 || rest.len() < size {
            break;
        }
        out.push_str(&rest[..size]);
        body = rest[size..].trim_start_matches("\r\n");
    }
    out
}
