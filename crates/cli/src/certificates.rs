//! The certificates that other ends are judged by: a file that is named, or the system's.

use crate::error::{Error, failure, input};
use crate::limits::CERTIFICATES_BYTES_MAX;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

/// Where systems keep those that they trust.
const PLACES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];

/// The arithmetic of TLS.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Those in the file of `--ca-file`; without one, the system's.
pub(crate) fn trusted(ca_file: Option<&Path>) -> Result<Vec<CertificateDer<'static>>, Error> {
    // A variable that is there and empty says nothing.
    let ca_file = ca_file.filter(|path| !path.as_os_str().is_empty());
    let known = || PLACES.iter().map(Path::new).find(|path| path.is_file());
    let Some(path) = ca_file.or_else(known) else {
        return Err(failure("the system has no list of certificates: install ca-certificates, or give --ca-file"));
    };
    let option = if ca_file.is_some() { "--ca-file " } else { "" };
    let at = |error: &dyn std::fmt::Display| input(format!("{option}{}: {error}", path.display()));
    if path.metadata().is_ok_and(|data| !data.is_file()) {
        return Err(at(&"not a regular file"));
    }
    let mut pem = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| at(&error))?;
    file.take(CERTIFICATES_BYTES_MAX).read_to_end(&mut pem).map_err(|error| at(&error))?;
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok).collect();
    if certificates.is_empty() {
        return Err(at(&"holds no certificates as PEM"));
    }
    Ok(certificates)
}

/// What is said of an error of TLS beside its own words: a server without TLS answers no record of TLS.
pub(crate) fn hint(why: &str) -> &'static str {
    if why.contains("InvalidContentType") {
        "; it does not speak TLS: is http:// meant?"
    } else if why.contains("UnknownIssuer") {
        "; --ca-file names certificates to trust"
    } else {
        ""
    }
}
