//! TLS to the server, where its address begins with `https`.

use super::http::Fault;
use crate::certificates;
use crate::error::{Error, failure};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Connections to one host.
pub(super) struct Tls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl Tls {
    /// To `host`, which certificates in `ca_file`, or the system's, vouch for.
    pub(super) fn new(host: &str, ca_file: Option<&Path>) -> Result<Self, Error> {
        let name = ServerName::try_from(host.to_string()).map_err(|error| failure(format!("{host}: {error}")))?;
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates::trusted(ca_file)?);
        let versions =
            ClientConfig::builder_with_provider(certificates::provider()).with_safe_default_protocol_versions();
        let mut config = versions.map_err(failure)?.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(Self { connector: Arc::new(config).into(), name })
    }

    /// Speaks TLS from now on.
    pub(super) async fn connect(&self, stream: TcpStream) -> Result<TlsStream<TcpStream>, Fault> {
        self.connector.connect(self.name.clone(), stream).await.map_err(|error| {
            let why = error.to_string();
            Fault::Tls(format!("{why}{}", certificates::hint(&why)))
        })
    }
}
