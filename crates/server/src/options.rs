//! What a server is told when it starts.

use crate::limits;
use std::net::SocketAddr;
use std::time::Duration;

/// How long things may take.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    /// From the first byte of a request's head to its last; of the first request, from the connection's beginning.
    pub header: Duration,
    /// From the end of an answer to the first byte of the next request.
    pub idle: Duration,
    /// For a body: this, and a second more for every [`BODY_BYTES_PER_SECOND`](Timeouts::BODY_BYTES_PER_SECOND) of it.
    pub body: Duration,
    /// A reader that takes nothing for so long is left.
    pub write: Duration,
    /// Without a sign of life from the engine for so long while it has work, the server is not ready.
    pub progress: Duration,
    /// What runs may go on for so long when the server is told to end.
    pub drain: Duration,
}

impl Timeouts {
    /// The least speed of a body.
    pub const BODY_BYTES_PER_SECOND: u64 = 16 << 10;
}

impl Default for Timeouts {
    fn default() -> Self {
        let [header, idle, body, write, progress, drain] = [10, 75, 20, 30, 60, 60].map(Duration::from_secs);
        Self { header, idle, body, write, progress, drain }
    }
}

/// See the fields.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where to listen.
    pub address: SocketAddr,
    /// Whoever has one of these may ask; empty: anybody.
    pub keys: Vec<String>,
    /// Origins whose pages may read answers.
    pub origins: Vec<String>,
    /// Names under which a browser may reach a server that needs no key, beside those of this machine's loopback.
    pub hosts: Vec<String>,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most bytes of a body.
    pub body_bytes_max: usize,
    /// How long things may take.
    pub timeouts: Timeouts,
}

impl Options {
    /// The defaults, at an address.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            keys: Vec::new(),
            origins: Vec::new(),
            hosts: Vec::new(),
            connections_max: limits::CONNECTIONS,
            body_bytes_max: limits::BODY_BYTES,
            timeouts: Timeouts::default(),
        }
    }
}
