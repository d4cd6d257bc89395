//! Connections: accepted up to a number, each with a deadline for every request and its head. hyper speaks HTTP/1.1; axum's own
//! loop has no timer, so that its deadlines would never come.

use crate::app::App;
use crate::gate;
use crate::io::{HeadTimer, Patient, Turn};
use crate::limits::{HEAD_BYTES, HEADERS};
use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch::Receiver;
use tokio::time::{sleep, timeout};

/// What one connection too many is told.
const FULL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nretry-after: 1\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
/// After the system had no room for a connection.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections until `closing` says true.
pub(crate) async fn accept(app: Arc<App>, routes: Router, listener: TcpListener, mut closing: Receiver<bool>) {
    loop {
        let accepted = tokio::select! {
            _ = closing.wait_for(|closing| *closing) => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, peer)) = accepted else {
            // Out of file descriptors, most likely: others will end.
            sleep(PAUSE).await;
            continue;
        };
        let guard = Open::new(app.clone());
        if guard.count > app.options.connections_max {
            tokio::spawn(refuse(stream, guard));
        } else {
            tokio::spawn(serve(guard, routes.clone(), stream, peer, closing.clone()));
        }
    }
}

/// Counts a connection as long as it lives.
struct Open {
    app: Arc<App>,
    count: usize,
}

impl Open {
    fn new(app: Arc<App>) -> Self {
        let count = 1 + app.connections.fetch_add(1, Ordering::AcqRel);
        Self { app, count }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.app.connections.fetch_sub(1, Ordering::AcqRel);
    }
}

async fn refuse(mut stream: TcpStream, _guard: Open) {
    // Whether it is heard or not, the connection ends.
    let _ = timeout(Duration::from_secs(1), stream.write_all(FULL)).await;
}

async fn serve(guard: Open, routes: Router, stream: TcpStream, peer: SocketAddr, mut closing: Receiver<bool>) {
    // Events are small, and each is waited for.
    let _ = stream.set_nodelay(true);
    let timeouts = guard.app.options.timeouts;
    let turn = Turn::default();
    let io = TokioIo::new(Patient::new(stream, timeouts, turn.clone()));
    let timer = HeadTimer(turn.clone());
    let app = guard.app.clone();
    let service = service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
        turn.request();
        let (app, routes) = (app.clone(), routes.clone());
        async move { Ok::<_, Infallible>(gate::answer(app, routes, peer, request.map(Body::new)).await) }
    });
    let mut builder = http1::Builder::new();
    // The connection has its own deadlines; this one tells it when they begin.
    builder.timer(timer).header_read_timeout(timeouts.idle + timeouts.header);
    builder.max_buf_size(HEAD_BYTES).max_headers(HEADERS);
    let mut connection = pin!(builder.serve_connection(io, service));
    tokio::select! {
        // How a connection ended concerns nobody: what ran for it was cancelled with it.
        _ = connection.as_mut() => return,
        _ = closing.wait_for(|closing| *closing) => {}
    }
    connection.as_mut().graceful_shutdown();
    let _ = connection.await;
}
