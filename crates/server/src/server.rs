//! The server as a whole: bound before the model is loaded, so that a port that is taken shows at once, and whoever waits
//! for it is told to wait.

use crate::app::{App, Serving};
use crate::engine::EngineHandle;
use crate::error::ServerError;
use crate::model::Model;
use crate::options::Options;
use crate::{accept, drain, routes};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tombolo_engine::Runner;

/// Threads for connections: the rest of the machine is the model's.
const THREADS: usize = 2;
/// Threads for work on text, and those that wait for such.
const BLOCKING_THREADS: usize = 16;

/// A server that listens.
pub struct Server {
    app: Arc<App>,
    address: SocketAddr,
    runtime: Runtime,
    end: JoinHandle<Result<(), ServerError>>,
}

impl Server {
    /// Binds the address and answers from now on: that the model is not there yet.
    ///
    /// # Errors
    /// [`ServerError::Bind`] where the address is not to be had; others where the system has no threads or signals.
    pub fn start(options: Options) -> Result<Self, ServerError> {
        let address = options.address;
        let bind = |source| ServerError::Bind { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(bind)?;
        listener.set_nonblocking(true).map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        raise_file_limit();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(THREADS).max_blocking_threads(BLOCKING_THREADS).thread_name("http").enable_all();
        let runtime = builder.build().map_err(ServerError::Runtime)?;
        let app = Arc::new(App::new(options));
        let (closing, is_closing) = watch::channel(false);
        let end = {
            let _inside = runtime.enter();
            let signals = drain::Signals::new()?;
            let listener = TcpListener::from_std(listener).map_err(bind)?;
            runtime.spawn(accept::accept(app.clone(), routes::routes(app.clone()), listener, is_closing));
            runtime.spawn(drain::watch(app.clone(), signals, closing))
        };
        Ok(Self { app, address, runtime, end })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves a model until the process is told to end (SIGTERM, SIGINT), and what ran is finished.
    ///
    /// # Errors
    /// The engine has stopped, or its thread could not be started.
    pub fn serve(self, model: Model, runner: Runner) -> Result<(), ServerError> {
        let (metrics, progress) = (self.app.metrics.clone(), self.app.progress.clone());
        let engine = EngineHandle::start(runner, metrics, progress).map_err(ServerError::Runtime)?;
        // It lives as long as the program, and streams refer to it.
        let model = Box::leak(Box::new(model));
        // Empty until now: this is the only place that fills it, and it takes the server away.
        let _ = self.app.serving.set(Serving { model, engine });
        let end = self.runtime.block_on(self.end);
        self.runtime.shutdown_timeout(Duration::from_secs(1));
        end.unwrap_or_else(|fault| Err(ServerError::Engine(fault.to_string())))
    }
}

/// As many files as the system lets a process have: connections are files.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, fewer connections are taken.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}
