//! A hub's API, as Hugging Face has it: the list of a repository's files (`/api/models/REPO/tree/REVISION`) and the files
//! themselves (`/REPO/resolve/REVISION/PATH`). What a hub says is not trusted: names, sizes and counts are checked.

use super::hop;
use crate::certificates;
use crate::error::{Error, failure, input};
use crate::limits::{DOWNLOAD_BYTES_MAX, HOPS_MAX, LISTING_BYTES_MAX, LISTING_PAGES_MAX};
use crate::output;
use serde::Deserialize;
use serde::de::IgnoredAny;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use ureq::http::Response;
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::{Agent, Body};

/// A file of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemoteFile {
    /// From the repository's root, with `/`.
    pub(super) path: String,
    pub(super) bytes: u64,
    /// In lower case; a hub has none of files that it keeps without LFS.
    pub(super) sha256: Option<String>,
}

impl RemoteFile {
    /// Its name without folders: what it is called here.
    pub(super) fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// One entry of a listing.
#[derive(Deserialize)]
struct Entry {
    r#type: String,
    path: String,
    #[serde(default)]
    size: u64,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Entry {
    /// `None`: no file, or one that no honest hub has.
    fn file(self) -> Option<RemoteFile> {
        let (bytes, sha256) = match self.lfs {
            Some(lfs) => (lfs.size, Some(lfs.oid.to_ascii_lowercase())),
            None => (self.size, None),
        };
        let is_sum = |sum: &String| sum.len() == 64 && sum.bytes().all(|byte| byte.is_ascii_hexdigit());
        let is_good = self.r#type == "file"
            && is_path(&self.path)
            && (1..=DOWNLOAD_BYTES_MAX).contains(&bytes)
            && sha256.as_ref().is_none_or(is_sum);
        is_good.then_some(RemoteFile { path: self.path, bytes, sha256 })
    }
}

/// A relative path whose parts are names of files here, too: no way up, nothing hidden, nothing that is not text.
fn is_path(path: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('.')
            && part.len() <= 200
            && part == output::one_line(part)
            && !part.contains(['\\', ':'])
    };
    path.len() <= 1024 && path.split('/').all(is_part)
}

/// A path as it stands in an address.
fn encoded(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for &byte in path.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Why there is no answer, or not all of one.
pub(super) enum Stop {
    /// Asking again may bring the rest, not before so long where the hub says so.
    Broken(String, Option<Duration>),
    Final(Error),
}

impl From<Stop> for Error {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Broken(why, _) => failure(why),
            Stop::Final(error) => error,
        }
    }
}

/// A hub.
pub(super) struct Hub {
    agent: Agent,
    /// Without `/` at its end.
    endpoint: String,
    token: Option<String>,
}

impl Hub {
    /// `patience`: longest wait for the next bytes.
    pub(super) fn new(
        endpoint: &str,
        token: Option<&str>,
        ca_file: Option<&Path>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let named = endpoint;
        let endpoint = endpoint.trim_end_matches('/');
        let is_text = endpoint.bytes().all(|byte| byte.is_ascii_graphic());
        if !endpoint.starts_with("https://") && !endpoint.starts_with("http://") || !is_text {
            return Err(input(format!("--endpoint {named}: an address with https:// or http:// is needed")));
        }
        // What is wrong with it is told without it.
        if token.is_some_and(|token| !token.bytes().all(|byte| byte.is_ascii_graphic())) {
            return Err(input(
                "--token, HF_TOKEN: a blank, a line end or another character that no token has is in it",
            ));
        }
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // They are followed here.
            .max_redirects(0)
            .timeout_connect(Some(patience))
            .timeout_recv_response(Some(patience))
            .timeout_per_read(Some(patience))
            .user_agent(concat!("tombolo/", env!("CARGO_PKG_VERSION")));
        // Files may come from elsewhere than the list: over TLS, too, where that came without.
        match tls(ca_file) {
            Ok(tls) => config = config.tls_config(tls),
            Err(error) if endpoint.starts_with("https://") || ca_file.is_some() => return Err(error),
            Err(_) => {}
        }
        Ok(Self { agent: config.build().new_agent(), endpoint: endpoint.into(), token: token.map(str::to_string) })
    }

    /// The files of a repository; those with impossible names are left out.
    pub(super) fn files(&self, repo: &str, revision: &str) -> Result<Vec<RemoteFile>, Error> {
        let mut url = format!("{}/api/models/{repo}/tree/{}?recursive=true", self.endpoint, encoded(revision));
        let (mut files, mut odd) = (Vec::new(), 0);
        for _ in 0..LISTING_PAGES_MAX {
            let response = self.get(&url, None)?;
            let next = next_page(&response);
            let response = self.checked(response, &format!("{repo} at {revision}"))?;
            let body = response.into_body().into_with_config().limit(LISTING_BYTES_MAX).read_to_vec();
            let body = body.map_err(|error| failure(format!("the list of {repo}'s files: {error}")))?;
            let entries = elements(&body)
                .map_err(|error| failure(format!("the list of {repo}'s files is not as a hub has it: {error}")))?;
            for entry in entries {
                // One by one: what is wrong with one of them says nothing of the others.
                match serde_json::from_slice::<Entry>(entry).ok() {
                    Some(entry) if entry.r#type == "directory" => {}
                    entry => match entry.and_then(Entry::file) {
                        Some(file) => files.push(file),
                        None => odd += 1,
                    },
                }
            }
            match next {
                // The token goes nowhere else.
                Some(next) if next.starts_with(&format!("{}/", self.endpoint)) => url = next,
                _ => {
                    if odd > 0 {
                        let files = if odd == 1 {
                            "1 file with an impossible name or size is"
                        } else {
                            &format!("{odd} files with impossible names or sizes are")
                        };
                        output::say(&format!("warning: {files} left out"));
                    }
                    return Ok(files);
                }
            }
        }
        Err(failure(format!("{repo} lists more files than {LISTING_PAGES_MAX} pages")))
    }

    /// Where a file is.
    pub(super) fn file_url(&self, repo: &str, revision: &str, path: &str) -> String {
        format!("{}/{repo}/resolve/{}/{}", self.endpoint, encoded(revision), encoded(path))
    }

    /// Asks for bytes from `from` on, wherever redirects lead; every other status is an answer. The token is for the hub,
    /// and goes nowhere else.
    pub(super) fn get(&self, url: &str, from: Option<u64>) -> Result<Response<Body>, Stop> {
        let mut url = url.to_string();
        for _ in 0..=HOPS_MAX {
            let mut request = self.agent.get(&url);
            if let Some(token) = self.token.as_ref().filter(|_| hop::is_same(&url, &self.endpoint)) {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            if let Some(from) = from {
                request = request.header("range", format!("bytes={from}-"));
            }
            let called = request.call();
            let response = called.map_err(|error| Stop::Broken(unreached(hop::origin(&url), &error), None))?;
            if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                return Ok(response);
            }
            let location = response.headers().get("location").and_then(|value| value.to_str().ok());
            let next = hop::next(&url, location.unwrap_or_default());
            url = next.map_err(|why| Stop::Final(failure(format!("{}: a redirect {why}", hop::origin(&url)))))?;
        }
        Err(Stop::Final(failure(format!("{}: more than {HOPS_MAX} redirects, one after the other", self.endpoint))))
    }

    /// A success, or one line on what the status means.
    pub(super) fn checked(&self, response: Response<Body>, what: &str) -> Result<Response<Body>, Error> {
        let status = response.status().as_u16();
        let later = || again(&response).map_or("later".into(), |(when, _)| when);
        let hint = match (status, &self.token) {
            (200..=299, _) => return Ok(response),
            (401 | 403, None) => "it asks for a token (--token), or does not exist".into(),
            (401 | 403, Some(_)) => "the token does not open it, or its terms are not accepted yet".into(),
            (404, _) => "the hub does not have it".into(),
            (429, _) => format!("too many requests: try again {}", later()),
            _ => format!("the hub failed: try again {}", later()),
        };
        let line = format!("{what}: {hint} ({status} from {})", self.endpoint);
        Err(if matches!(status, 401 | 403 | 404) { input(line) } else { failure(line) })
    }
}

/// Why there is no answer from a place.
fn unreached(origin: &str, error: &ureq::Error) -> String {
    let why = error.to_string();
    format!("{origin}: {}{}", why.trim_start_matches("io: "), certificates::hint(&why))
}

/// When a hub wants to be asked again, in words, and how long that is (`Retry-After`, RFC 9110 10.2.3: seconds or a date).
pub(super) fn again(response: &Response<Body>) -> Option<(String, Option<Duration>)> {
    let text = response.headers().get("retry-after")?.to_str().ok()?.trim();
    match text.parse::<u64>() {
        Ok(seconds) => Some((format!("in {seconds} s"), Some(Duration::from_secs(seconds)))),
        Err(_) if text.is_empty() => None,
        Err(_) => Some((format!("after {}", output::shortened(text, 40)), None)),
    }
}

/// The elements of a JSON list, whatever they are.
fn elements(list: &[u8]) -> Result<Vec<&[u8]>, String> {
    let begin = list.trim_ascii_start().strip_prefix(b"[").ok_or("no list")?;
    let mut rest = begin.trim_ascii_start();
    let mut found = Vec::new();
    if rest.first() == Some(&b']') {
        return Ok(found);
    }
    loop {
        let mut elements = serde_json::Deserializer::from_slice(rest).into_iter::<IgnoredAny>();
        elements.next().ok_or("it ends early")?.map_err(|error| error.to_string())?;
        let (element, behind) = rest.split_at(elements.byte_offset());
        found.push(element);
        rest = match behind.trim_ascii_start() {
            [b',', rest @ ..] => rest,
            [b']', ..] => return Ok(found),
            _ => return Err("it ends early".into()),
        };
    }
}

/// The address of the next page (`Link: <…>; rel="next"`, RFC 8288).
fn next_page(response: &Response<Body>) -> Option<String> {
    let links = response.headers().get("link")?.to_str().ok()?;
    let next = links.split(',').find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    rest.split_once('>').map(|(url, _)| url.to_string())
}

fn tls(ca_file: Option<&Path>) -> Result<TlsConfig, Error> {
    let trusted = certificates::trusted(ca_file)?;
    let certificates = trusted.iter().map(|certificate| Certificate::from_der(certificate).to_owned()).collect();
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::Specific(Arc::new(certificates)))
        .unversioned_rustls_crypto_provider(certificates::provider())
        .build())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_lead_elsewhere_are_none() {
        assert!(is_path("Q4_K_M/Model v1-Q4_K_M-00001-of-00002.gguf"));
        assert!(is_path("é.gguf"));
        for wrong in
            ["", "/a", "a/", "../a", "a/../b", "a//b", ".a", "a/.b", "a\\b", "a\nb", "a\u{202e}b", "c:a", "a/./b"]
        {
            assert!(!is_path(wrong), "{wrong:?}");
        }
        assert!(!is_path(&"a".repeat(201)) && !is_path(&"a/".repeat(600)));
    }

    #[test]
    fn entries_are_checked() {
        let entry = |json: &str| serde_json::from_str::<Entry>(json).unwrap().file();
        let sum = "AB".repeat(32);
        let good = entry(&format!(
            r#"{{"type":"file","path":"a.gguf","size":130,"lfs":{{"oid":"{sum}","size":7,"pointerSize":130}}}}"#
        ));
        let expected = RemoteFile { path: "a.gguf".into(), bytes: 7, sha256: Some(sum.to_lowercase()) };
        assert_eq!(good, Some(expected));
        assert_eq!(entry(r#"{"type":"directory","path":"a"}"#), None);
        assert_eq!(entry(r#"{"type":"file","path":"a","size":0}"#), None);
        assert_eq!(entry(r#"{"type":"file","path":"a","size":18446744073709551615}"#), None);
        assert_eq!(entry(r#"{"type":"file","path":"a","lfs":{"oid":"zz","size":7}}"#), None);
    }

    #[test]
    fn a_list_is_read_element_by_element() {
        let read = |text: &'static str| elements(text.as_bytes()).map(|found| found.len());
        assert_eq!([read(" [ ] "), read("[]")], [Ok(0), Ok(0)]);
        assert_eq!(
            elements(b"[{\"a\": [1e999, \"]\"]}, -5 ,null]").unwrap(),
            [&b"{\"a\": [1e999, \"]\"]}"[..], b" -5", b"null"]
        );
        for wrong in ["", "{}", "[", "[1", "[1,", "[1,]", "[1 2]", "[{]", "[\"a]"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_are_encoded() {
        assert_eq!(encoded("a b/ü?#%.gguf"), "a%20b/%C3%BC%3F%23%25.gguf");
    }
}
