//! How a server ends: told to, it takes nothing new, finishes what runs, and goes; told twice, it goes at once. Where the
//! engine has ended, so does the server, as soon as everybody knows.

use crate::app::App;
use crate::error::ServerError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch::Sender;
use tokio::time::{Instant, sleep};

/// Between two looks at how far things are.
const TICK: Duration = Duration::from_millis(50);
/// For connections to send what is left to send.
const GOODBYE: Duration = Duration::from_secs(5);
/// For probes to see that the engine has ended.
const OBITUARY: Duration = Duration::from_secs(2);

/// What tells the server to end.
pub(crate) struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on. Within a runtime only.
    pub(crate) fn new() -> Result<Self, ServerError> {
        let listen = |kind| signal(kind).map_err(ServerError::Signals);
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Waits for the end, and brings it about.
pub(crate) async fn watch(app: Arc<App>, mut signals: Signals, closing: Sender<bool>) -> Result<(), ServerError> {
    tokio::select! {
        why = engine_end(&app) => {
            sleep(OBITUARY).await;
            return Err(ServerError::Engine(why));
        }
        () = signals.next() => {}
    }
    if app.serving.get().is_none() {
        // Nothing runs, and loading does not listen.
        std::process::exit(0);
    }
    app.is_draining.store(true, Ordering::Release);
    let result = tokio::select! {
        result = finish(&app) => result,
        () = signals.next() => return Ok(()),
    };
    closing.send_replace(true);
    tokio::select! {
        () = until(GOODBYE, || app.connections.load(Ordering::Acquire) == 0) => {}
        () = signals.next() => {}
    }
    result
}

/// Lets what runs finish, as long as it may; then ends it.
async fn finish(app: &App) -> Result<(), ServerError> {
    let Some(serving) = app.serving.get() else { return Ok(()) };
    serving.engine.close();
    let is_done = || serving.engine.active() == 0;
    tokio::select! {
        why = engine_end(app) => return Err(ServerError::Engine(why)),
        () = until(app.options.timeouts.drain, is_done) => {}
    }
    if !is_done() {
        serving.engine.end();
        until(GOODBYE, is_done).await;
    }
    Ok(())
}

async fn until(patience: Duration, is_done: impl Fn() -> bool) {
    let deadline = Instant::now() + patience;
    while !is_done() && Instant::now() < deadline {
        sleep(TICK).await;
    }
}

async fn engine_end(app: &App) -> String {
    loop {
        match app.progress.failure() {
            Some(why) => return why,
            None => sleep(TICK).await,
        }
    }
}
