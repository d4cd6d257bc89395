//! An event: a point in a stream that the host can wait for.

use super::error::{CudaError, check, cu};
use super::{Device, Stream};
use cudarc::driver::sys;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A point in a stream.
#[derive(Debug)]
pub struct Event {
    device: Arc<Device>,
    raw: sys::CUevent,
}

// SAFETY: event handles may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// An event that no stream has been told of: it counts as passed.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: the context is current; `raw` is a valid place to write.
        unsafe { cu!(device.ordinal(), cuEventCreate(&mut raw, flags)) }?;
        Ok(Self { device: device.clone(), raw })
    }

    /// Marks the end of what is queued so far.
    ///
    /// # Errors
    /// The driver's.
    pub fn record(&self, stream: &Stream) -> Result<(), CudaError> {
        // SAFETY: both handles are valid as long as their owners are.
        unsafe { cu!(self.device.ordinal(), cuEventRecord(self.raw, stream.raw())) }
    }

    /// Whether the stream has passed it.
    ///
    /// # Errors
    /// That of any work before.
    pub fn is_done(&self) -> Result<bool, CudaError> {
        // SAFETY: the handle is valid as long as `self` is.
        match unsafe { sys::cuEventQuery(self.raw) } {
            sys::CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            other => check("cuEventQuery", self.device.ordinal(), other).map(|()| true),
        }
    }

    /// Waits until the stream has passed it: `Ok(false)` when `deadline` came first. Spins for a short while, because
    /// a decode step is shorter than a sleep, then sleeps in between.
    ///
    /// # Errors
    /// That of any work before.
    pub fn wait(&self, deadline: Duration) -> Result<bool, CudaError> {
        let start = Instant::now();
        loop {
            if self.is_done()? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= deadline {
                return Ok(false);
            }
            if waited < Duration::from_millis(20) {
                std::thread::yield_now();
            } else {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        // SAFETY: created once in `new`, destroyed once here.
        let _ = unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
