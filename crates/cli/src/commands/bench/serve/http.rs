//! HTTP/1.1 to one server: connections, plain or over TLS, used again where the server keeps them. What is asked lives in `body`, what
//! is streamed in `events`.

use super::tls::Tls;
use crate::limits::ANSWER_BYTES_MAX;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request};
use hyper_util::rt::TokioIo;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// Where a server is: `http[s]://HOST[:PORT][/PATH]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) is_tls: bool,
    host: String,
    port: u16,
    /// Before every path; empty or beginning with `/`, without one at its end.
    path: String,
}

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, String> {
        let plain = "an address such as http://127.0.0.1:8000 is needed";
        let (is_tls, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(plain.into()),
        };
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let bracket = authority.rfind(']').unwrap_or(0);
        let (host, port) = match authority[bracket..].rfind(':') {
            Some(at) => {
                let (host, port) = authority.split_at(bracket + at);
                (host, port[1..].parse().map_err(|_| plain)?)
            }
            None => (authority, if is_tls { 443 } else { 80 }),
        };
        let is_text = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic() && !b"?#@\\".contains(&byte));
        if host.trim_matches(['[', ']']).is_empty() || !is_text(rest) {
            return Err(plain.into());
        }
        Ok(Self { is_tls, host: host.into(), port, path: path.trim_end_matches('/').into() })
    }

    /// The host without the brackets of an address.
    pub(super) fn host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }

    /// A path on the server. One that begins as the address ends (`/v1`) is not said twice.
    fn target(&self, path: &str) -> String {
        match path.strip_prefix(&self.path) {
            Some(rest) if !self.path.is_empty() && rest.starts_with('/') => path.to_string(),
            _ => format!("{}{path}", self.path),
        }
    }

    /// The server's own path, not the API's.
    fn root(&self) -> &str {
        self.path.strip_suffix("/v1").unwrap_or(&self.path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}:{}{}", self.host, self.port, self.path)
    }
}

/// Why there is no answer, or not all of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nobody listens.
    Connect(String),
    /// Somebody does, and not as he should.
    Tls(String),
    /// The connection broke.
    Broken(String),
    /// Nothing came for so long.
    TimedOut(Duration),
    /// The server said no.
    Status(u16, String),
    /// What came is not what the API sends.
    Odd(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Connect(why) => write!(f, "cannot connect: {why}"),
            Fault::Tls(why) => write!(f, "no TLS: {why}"),
            Fault::Broken(why) => write!(f, "the connection broke: {why}"),
            Fault::TimedOut(time) => write!(f, "nothing came for {} s", time.as_secs()),
            Fault::Status(status, why) => write!(f, "{status}: {why}"),
            Fault::Odd(why) => write!(f, "not an answer of this API: {why}"),
        }
    }
}

/// Says what is behind an error: hyper's own text often only names its kind.
fn broken(error: &hyper::Error) -> Fault {
    let cause = std::error::Error::source(error);
    Fault::Broken(cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}")))
}

/// Speaks to one server.
pub(super) struct Client {
    pub(super) address: Address,
    tls: Option<Tls>,
    key: Option<String>,
    /// Longest wait for the next bytes.
    patience: Duration,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Client {
    /// `key` goes with every request.
    pub(super) fn new(address: Address, tls: Option<Tls>, key: Option<String>, patience: Duration) -> Self {
        Self { address, tls, key, patience, idle: Mutex::default() }
    }

    /// Sends and gives the answer once its head is there. Every status is an answer.
    pub(super) async fn send(&self, method: Method, path: &str, body: Bytes) -> Result<Answer<'_>, Fault> {
        self.within(self.send_to(method, self.address.target(path), body)).await?
    }

    /// Gives the status and the whole body of a path that is the server's and not the API's (`/metrics`, `/tokenize`).
    pub(super) async fn whole_of_root(&self, method: Method, path: &str, body: Bytes) -> Result<(u16, Bytes), Fault> {
        let target = format!("{}{path}", self.address.root());
        self.within(self.send_to(method, target, body)).await??.whole().await
    }

    async fn send_to(&self, method: Method, target: String, body: Bytes) -> Result<Answer<'_>, Fault> {
        loop {
            let kept = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let is_kept = kept.is_some();
            let mut connection = match kept {
                Some(connection) if !connection.is_ready() => continue,
                Some(connection) => connection,
                None => self.connect().await?,
            };
            let request = self.request(method.clone(), &target, body.clone())?;
            match connection.send_request(request).await {
                Ok(response) => {
                    let status = response.status().as_u16();
                    let body = response.into_body();
                    return Ok(Answer { client: self, status, body, connection: Some(connection) });
                }
                // The server closed it while it was idle: that is no fault of this request.
                Err(_) if is_kept => {}
                Err(error) => return Err(broken(&error)),
            }
        }
    }

    fn request(&self, method: Method, target: &str, body: Bytes) -> Result<Request<Full<Bytes>>, Fault> {
        let Address { host, port, .. } = &self.address;
        let mut request = Request::builder().method(method).uri(target).header("host", format!("{host}:{port}"));
        if !body.is_empty() {
            request = request.header("content-type", "application/json");
        }
        if let Some(key) = &self.key {
            request = request.header("authorization", format!("Bearer {key}"));
        }
        request.body(Full::new(body)).map_err(|error| Fault::Odd(format!("{target}: {error}")))
    }

    async fn connect(&self) -> Result<SendRequest<Full<Bytes>>, Fault> {
        let to = (self.address.host(), self.address.port);
        let stream = TcpStream::connect(to).await.map_err(|error| Fault::Connect(error.to_string()))?;
        // A prompt must not wait for the acknowledgement of its head.
        let _ = stream.set_nodelay(true);
        match &self.tls {
            Some(tls) => shake(tls.connect(stream).await?).await,
            None => shake(stream).await,
        }
    }

    async fn within<T>(&self, work: impl Future<Output = T>) -> Result<T, Fault> {
        tokio::time::timeout(self.patience, work).await.map_err(|_| Fault::TimedOut(self.patience))
    }
}

/// Begins HTTP on a connection.
async fn shake(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<SendRequest<Full<Bytes>>, Fault> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| broken(&error))?;
    tokio::spawn(connection);
    Ok(sender)
}

/// An answer whose head is there.
pub(super) struct Answer<'a> {
    client: &'a Client,
    pub(super) status: u16,
    body: Incoming,
    connection: Option<SendRequest<Full<Bytes>>>,
}

impl Answer<'_> {
    /// The next bytes; `None`: that was all.
    pub(super) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            let Some(frame) = self.client.within(self.body.frame()).await? else {
                if let Some(connection) = self.connection.take() {
                    self.client.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
                }
                return Ok(None);
            };
            // Trailers are nothing to us.
            if let Ok(bytes) = frame.map_err(|error| broken(&error))?.into_data() {
                return Ok(Some(bytes));
            }
        }
    }

    /// The status and all that comes.
    pub(super) async fn whole(mut self) -> Result<(u16, Bytes), Fault> {
        let mut all = Vec::new();
        while let Some(bytes) = self.next().await? {
            if all.len() + bytes.len() > ANSWER_BYTES_MAX {
                return Err(Fault::Odd(format!("longer than {ANSWER_BYTES_MAX} bytes")));
            }
            all.extend_from_slice(&bytes);
        }
        Ok((self.status, all.into()))
    }

    /// What an answer that is no success says.
    pub(super) async fn refusal(self) -> Fault {
        let status = self.status;
        let body = match self.whole().await {
            Ok((_, body)) => body,
            Err(fault) => return fault,
        };
        let json = serde_json::from_slice::<serde_json::Value>(&body).ok();
        let told = json.as_ref().and_then(|json| json.get("error").or(json.get("detail")).or(json.get("message")));
        let text = told.map_or_else(|| String::from_utf8_lossy(&body).trim().to_string(), super::events::message);
        Fault::Status(status, if text.is_empty() { "no reason given".into() } else { text })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read() {
        let parse = |url: &str| Address::parse(url).map(|address| address.to_string());
        assert_eq!(parse("http://127.0.0.1:8000").unwrap(), "http://127.0.0.1:8000");
        assert_eq!(parse("http://[::1]:8000/").unwrap(), "http://[::1]:8000");
        assert_eq!(parse("http://[::1]").unwrap(), "http://[::1]:80");
        assert_eq!(parse("http://host/a/v1/").unwrap(), "http://host:80/a/v1");
        assert_eq!(parse("https://host/v1").unwrap(), "https://host:443/v1");
        for wrong in
            ["127.0.0.1:8000", "http://", "http://a:b", "http://a:99999", "ftp://a", "http://a b", "http://u@h"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_path_that_the_address_ends_with_is_not_said_twice() {
        let target = |url: &str, path: &str| Address::parse(url).unwrap().target(path);
        assert_eq!(target("http://h", "/v1/completions"), "/v1/completions");
        assert_eq!(target("http://h/v1", "/v1/completions"), "/v1/completions");
        assert_eq!(target("http://h/proxy", "/v1/completions"), "/proxy/v1/completions");
        assert_eq!(Address::parse("http://h/a/v1").unwrap().root(), "/a");
    }
}
