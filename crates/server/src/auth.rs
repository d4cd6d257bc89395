//! API keys: hashed at start, and compared so that the time taken says nothing of how much was right.

use crate::ask::first_word;
use crate::limits::KEY_BYTES;
use hyper::HeaderMap;
use hyper::header::AUTHORIZATION;
use sha2::{Digest, Sha256};
use std::hint::black_box;
use std::net::IpAddr;

/// The keys that open the server; none: it is open.
#[derive(Debug)]
pub(crate) struct Keys {
    hashes: Vec<[u8; 32]>,
}

/// Who asks, as far as it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Callers get their turns in equal shares.
    pub(crate) owner: u64,
    /// Callers with different keys share no cached work.
    pub(crate) salt: u64,
}

impl Keys {
    pub(crate) fn new(keys: &[String]) -> Self {
        Self { hashes: keys.iter().map(|key| hash(key.as_bytes())).collect() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.hashes.is_empty()
    }

    /// Who asks; `None`: somebody without a key.
    pub(crate) fn caller(&self, headers: &HeaderMap, from: IpAddr) -> Option<Caller> {
        if self.hashes.is_empty() {
            let bytes = match from {
                IpAddr::V4(ip) => ip.octets().to_vec(),
                IpAddr::V6(ip) => ip.octets().to_vec(),
            };
            return Some(Caller { owner: first_word(&hash(&bytes)), salt: 0 });
        }
        let key = key(headers).filter(|key| key.len() <= KEY_BYTES)?;
        let given = hash(key);
        // All are looked at, whichever is right.
        let mut found = None;
        for known in &self.hashes {
            if is_equal(known, &given) {
                found = Some(first_word(known));
            }
        }
        let salts = self.hashes.len() > 1;
        found.map(|owner| Caller { owner, salt: if salts { owner } else { 0 } })
    }
}

/// `Authorization: Bearer KEY`, or `X-Api-Key: KEY`.
fn key(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.as_bytes().split_at_checked("Bearer ".len())?;
        scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
    });
    bearer.or_else(|| headers.get("x-api-key").map(|value| value.as_bytes()))
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn is_equal(a: &[u8; 32], b: &[u8; 32]) -> bool {
    let differs = a.iter().zip(b).fold(0u8, |differs, (a, b)| black_box(differs | (a ^ b)));
    black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    #[test]
    fn only_whole_keys_open() {
        let keys = Keys::new(&["sk-first".into(), "sk-second".into()]);
        let from = IpAddr::from([127, 0, 0, 1]);
        let with = |name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            keys.caller(&headers, from)
        };
        let first = with("authorization", "Bearer sk-first").unwrap();
        assert_eq!(with("authorization", "bearer sk-first"), Some(first));
        assert_eq!(with("x-api-key", "sk-first"), Some(first));
        assert_ne!(with("authorization", "Bearer sk-second").unwrap().salt, first.salt);
        for wrong in ["Bearer sk-firs", "Bearer sk-firstx", "Bearer ", "Bearer", "Basic sk-first", "sk-first"] {
            assert_eq!(with("authorization", wrong), None, "{wrong}");
        }
        assert_eq!(keys.caller(&HeaderMap::new(), from), None);
        assert!(Keys::new(&[]).caller(&HeaderMap::new(), from).is_some());
        assert_eq!(Keys::new(&["a".into()]).caller(&HeaderMap::new(), from), None);
    }
}
