//! A connection whose waits have a deadline each: for a reader that takes nothing, for a head that has begun, and for a
//! next request. hyper has one clock for the latter two, which would cut clients off that keep a connection for later.

use crate::options::Timeouts;
use hyper::rt::{Sleep as HyperSleep, Timer};
use hyper_util::rt::TokioTimer;
use std::future::Future;
use std::io::{Error, ErrorKind, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep};

/// A head is awaited or on its way: it must be there soon.
const HEAD: u8 = 0;
/// A request is answered.
const REQUEST: u8 = 1;
/// An answer is over, and nothing of a next request has come.
const IDLE: u8 = 2;

/// What a connection is at, as far as reading goes.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<AtomicU8>);

impl Turn {
    /// A head has come whole.
    pub(crate) fn request(&self) {
        self.0.store(REQUEST, Ordering::Release);
    }

    /// The next head is awaited. Of the first it is from the beginning.
    fn next(&self) {
        let _ = self.0.compare_exchange(REQUEST, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    fn begun(&self) {
        let _ = self.0.compare_exchange(IDLE, HEAD, Ordering::AcqRel, Ordering::Acquire);
    }

    fn get(&self) -> u8 {
        self.0.load(Ordering::Acquire)
    }
}

/// hyper asks its timer for a deadline whenever it begins to wait for a head, and for nothing else.
pub(crate) struct HeadTimer(pub(crate) Turn);

impl Timer for HeadTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn HyperSleep>> {
        TokioTimer::new().sleep(duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn HyperSleep>> {
        self.0.next();
        TokioTimer::new().sleep_until(deadline)
    }
}

/// See the module's head.
pub(crate) struct Patient {
    stream: TcpStream,
    timeouts: Timeouts,
    deadline: Pin<Box<Sleep>>,
    waits: bool,
    turn: Turn,
    /// The turn that `incoming` is the deadline of.
    timed: u8,
    incoming: Pin<Box<Sleep>>,
}

impl Patient {
    pub(crate) fn new(stream: TcpStream, timeouts: Timeouts, turn: Turn) -> Self {
        let [deadline, incoming] = [timeouts.write, timeouts.header].map(|patience| Box::pin(sleep(patience)));
        Self { stream, timeouts, deadline, waits: false, turn, timed: HEAD, incoming }
    }

    /// Passes a result on; one that is not there yet starts the clock.
    fn within<T>(&mut self, context: &mut Context<'_>, result: Poll<Result<T>>) -> Poll<Result<T>> {
        if result.is_ready() {
            self.waits = false;
            return result;
        }
        if !std::mem::replace(&mut self.waits, true) {
            self.deadline.as_mut().reset(Instant::now() + self.timeouts.write);
        }
        ready!(self.deadline.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl AsyncRead for Patient {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.turn.begun();
        }
        let turn = self.turn.get();
        if turn != self.timed {
            self.timed = turn;
            let patience = if turn == IDLE { self.timeouts.idle } else { self.timeouts.header };
            self.incoming.as_mut().reset(Instant::now() + patience);
        }
        if result.is_ready() || turn == REQUEST {
            return result;
        }
        ready!(self.incoming.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "no request comes")))
    }
}

impl AsyncWrite for Patient {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.within(context, result)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[std::io::IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.within(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.within(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.within(context, result)
    }
}
