//! A hub in a thread: the API that `tombolo pull` speaks, over plain sockets, as honest or not as a test needs it.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// How files are sent.
#[derive(Clone, Default)]
pub(crate) struct Manner {
    /// Ranges are not understood: always the whole.
    pub(crate) ignores_range: bool,
    /// Bytes after which a connection breaks off.
    pub(crate) breaks_after: Option<usize>,
    /// Of the first so many connections only.
    pub(crate) breaks: usize,
    /// Other bytes than the list promises.
    pub(crate) lies: bool,
    /// Files are elsewhere: at this base.
    pub(crate) redirects_to: Option<String>,
    /// What is listed instead of the files.
    pub(crate) list: Option<Value>,
    /// Entries of a page of the list.
    pub(crate) page: Option<usize>,
    /// The list as its bytes.
    pub(crate) list_text: Option<&'static str>,
    /// The status of everything.
    pub(crate) status: Option<u16>,
    /// The status of the first so many files that are asked for.
    pub(crate) refuses: (usize, u16),
    /// Seconds or a date that go with a status.
    pub(crate) again: Option<&'static str>,
    /// Where files are, whole, on this host or elsewhere.
    pub(crate) location: Option<String>,
    pub(crate) token: Option<&'static str>,
}

/// A request as it came: its first line, and what it said of ranges and of itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Seen {
    pub(crate) path: String,
    pub(crate) range: Option<String>,
    pub(crate) token: Option<String>,
}

struct State {
    files: HashMap<String, Vec<u8>>,
    order: Vec<String>,
    manner: Manner,
    seen: Mutex<Vec<Seen>>,
    breaks: Mutex<usize>,
    refused: Mutex<usize>,
    base: String,
}

pub(crate) struct Hub {
    pub(crate) base: String,
    state: Arc<State>,
}

impl Hub {
    pub(crate) fn start(files: &[(&str, &[u8])], manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(State {
            files: files.iter().map(|(name, bytes)| ((*name).to_string(), bytes.to_vec())).collect(),
            order: files.iter().map(|(name, _)| (*name).to_string()).collect(),
            breaks: Mutex::new(manner.breaks),
            refused: Mutex::default(),
            manner,
            seen: Mutex::default(),
            base: base.clone(),
        });
        let shared = state.clone();
        // Ends with the test's process.
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = shared.clone();
                std::thread::spawn(move || {
                    let _ = serve(&state, stream);
                });
            }
        });
        Self { base, state }
    }

    /// What was asked so far.
    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.state.seen.lock().unwrap().clone()
    }

    /// The ranges that were asked for of files.
    pub(crate) fn ranges(&self) -> Vec<Option<String>> {
        self.seen().into_iter().filter(|seen| seen.path.contains("/resolve/")).map(|seen| seen.range).collect()
    }
}

pub(crate) fn sum(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// One request a connection.
fn serve(state: &State, stream: TcpStream) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut seen = Seen::default();
    let mut line = String::new();
    lines.read_line(&mut line)?;
    seen.path = line.split(' ').nth(1).unwrap_or_default().to_string();
    loop {
        line.clear();
        lines.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "range" => seen.range = Some(value.into()),
            "authorization" => seen.token = Some(value.into()),
            _ => {}
        }
    }
    let seen_now = seen.clone();
    state.seen.lock().unwrap().push(seen);
    answer(state, &seen_now, stream)
}

fn answer(state: &State, seen: &Seen, mut stream: TcpStream) -> std::io::Result<()> {
    let manner = &state.manner;
    let token = manner.token.map(|token| format!("Bearer {token}"));
    if token.is_some() && token != seen.token {
        return head(&mut stream, "401 Unauthorized", "", 0);
    }
    if let Some(status) = manner.status {
        let again = manner.again.map(|again| format!("Retry-After: {again}\r\n")).unwrap_or_default();
        return head(&mut stream, &format!("{status} Status"), &again, 0);
    }
    if seen.path.starts_with("/api/models/o/m/tree/main") {
        return list(state, seen, stream);
    }
    if let Some(name) = seen.path.strip_prefix("/moved/") {
        return file(state, seen, &state.files[name], stream);
    }
    let Some(name) = seen.path.strip_prefix("/o/m/resolve/main/") else {
        return head(&mut stream, "404 Not Found", "", 0);
    };
    let mut refused = state.refused.lock().unwrap();
    if *refused < manner.refuses.0 {
        *refused += 1;
        let again = manner.again.map(|again| format!("Retry-After: {again}\r\n")).unwrap_or_default();
        return head(&mut stream, &format!("{} Status", manner.refuses.1), &again, 0);
    }
    drop(refused);
    if let Some(location) = &manner.location {
        return head(&mut stream, "307 Temporary Redirect", &format!("Location: {location}\r\n"), 0);
    }
    if let Some(elsewhere) = &manner.redirects_to {
        let to = format!("Location: {elsewhere}{}\r\n", seen.path);
        return head(&mut stream, "302 Found", &to, 0);
    }
    match state.files.get(&name.replace("%20", " ")) {
        Some(bytes) => file(state, seen, bytes, stream),
        None => head(&mut stream, "404 Not Found", "", 0),
    }
}

fn head(stream: &mut TcpStream, status: &str, more: &str, length: usize) -> std::io::Result<()> {
    write!(stream, "HTTP/1.1 {status}\r\nConnection: close\r\n{more}Content-Length: {length}\r\n\r\n")
}

fn list(state: &State, seen: &Seen, mut stream: TcpStream) -> std::io::Result<()> {
    let entry = |name: &String| {
        let bytes = &state.files[name];
        json!({"type": "file", "path": name, "size": bytes.len(), "oid": "0",
            "lfs": {"oid": sum(bytes), "size": bytes.len(), "pointerSize": 130}})
    };
    let mut all = state.manner.list.clone().unwrap_or_else(|| state.order.iter().map(entry).collect());
    let mut more = String::new();
    if let (Some(size), Value::Array(entries)) = (state.manner.page, &mut all) {
        let page: usize = seen.path.split("page=").nth(1).and_then(|page| page.parse().ok()).unwrap_or(0);
        if (page + 1) * size < entries.len() {
            let next = format!("{}/api/models/o/m/tree/main?recursive=true&page={}", state.base, page + 1);
            more = format!("Link: <{next}>; rel=\"next\"\r\n");
        }
        *entries = entries.iter().skip(page * size).take(size).cloned().collect();
    }
    let body = state.manner.list_text.map_or_else(|| all.to_string(), str::to_string);
    head(&mut stream, "200 OK", &more, body.len())?;
    stream.write_all(body.as_bytes())
}

fn file(state: &State, seen: &Seen, bytes: &[u8], mut stream: TcpStream) -> std::io::Result<()> {
    let manner = &state.manner;
    let bytes = if manner.lies { bytes.iter().map(|byte| byte ^ 1).collect() } else { bytes.to_vec() };
    let range = seen.range.as_ref().filter(|_| !manner.ignores_range);
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let rest = match from {
        Some(from) if from >= bytes.len() => return head(&mut stream, "416 Range Not Satisfiable", "", 0),
        Some(from) => {
            let range = format!("Content-Range: bytes {from}-{}/{}\r\n", bytes.len() - 1, bytes.len());
            head(&mut stream, "206 Partial Content", &range, bytes.len() - from)?;
            &bytes[from..]
        }
        None => {
            head(&mut stream, "200 OK", "", bytes.len())?;
            &bytes[..]
        }
    };
    let mut breaks = state.breaks.lock().unwrap();
    let is_broken = *breaks > 0;
    *breaks = breaks.saturating_sub(1);
    drop(breaks);
    match manner.breaks_after.filter(|_| is_broken) {
        Some(after) => stream.write_all(&rest[..after.min(rest.len())])?,
        None => stream.write_all(rest)?,
    }
    // Closed only once the other end has all of it.
    stream.shutdown(std::net::Shutdown::Write)?;
    let _ = stream.read(&mut [0; 16]);
    Ok(())
}
