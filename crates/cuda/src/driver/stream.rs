//! A stream: the order in which a device does what it is told.

use super::error::{CudaError, cu};
use super::{Args, Device, DevicePtr, Kernel, Launch};
use cudarc::driver::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A queue of work of one device. Used by one thread at a time.
#[derive(Debug)]
pub struct Stream {
    device: Arc<Device>,
    raw: sys::CUstream,
    overlap: AtomicBool,
}

// SAFETY: a stream handle may be used from any thread; `&mut`-free use is serialised by the driver.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream that does not wait for the default stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut raw = std::ptr::null_mut();
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: the context is current; `raw` is a valid place to write.
        unsafe { cu!(device.ordinal(), cuStreamCreate(&mut raw, flags)) }?;
        Ok(Self { device: device.clone(), raw, overlap: AtomicBool::new(true) })
    }

    /// Its device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether launches may overlap the kernel before them as they ask for ([`Launch::pdl`]). Off where several ranks
    /// share a device: kernels that wait early hold the room that the other rank's need.
    pub fn set_overlap(&self, on: bool) {
        self.overlap.store(on, Ordering::Relaxed);
    }

    pub(super) fn overlap(&self) -> bool {
        self.overlap.load(Ordering::Relaxed)
    }

    /// The driver's handle, for libraries that take one.
    pub fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// Queues a kernel.
    ///
    /// # Errors
    /// The driver's, with the kernel's name in it.
    ///
    /// # Safety
    /// `args` must be what the kernel declares, in order, number and size, and every pointer among them must be good
    /// for what the kernel does with it until the stream has passed it. The device must be current on this thread.
    pub unsafe fn launch(&self, kernel: &Kernel, launch: &Launch, args: &Args) -> Result<(), CudaError> {
        // SAFETY: passed on to the caller.
        unsafe { super::launch::launch(self, kernel, launch, args) }
    }

    /// Queues a copy of `bytes` between any two of device and pinned host memory.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// Both ranges must be valid until the stream has passed the copy, and host memory pinned if it is to be captured.
    pub unsafe fn copy(&self, to: DevicePtr, from: DevicePtr, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { cu!(self.device.ordinal(), cuMemcpyAsync(to.0, from.0, bytes, self.raw)) }
    }

    /// Queues a fill with one byte value.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// The range must be device memory, valid until the stream has passed the fill.
    pub unsafe fn fill(&self, to: DevicePtr, value: u8, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: the caller's.
        unsafe { cu!(self.device.ordinal(), cuMemsetD8Async(to.0, value, bytes, self.raw)) }
    }

    /// Copies host memory to the device and waits for it: for loading and tests.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `to` must have room for `data`.
    pub unsafe fn upload<T: Copy>(&self, to: DevicePtr, data: &[T]) -> Result<(), CudaError> {
        let from = DevicePtr(data.as_ptr() as u64);
        // SAFETY: `data` is valid until the synchronisation below; the rest is the caller's.
        unsafe { self.copy(to, from, size_of_val(data)) }?;
        self.synchronize()
    }

    /// Copies device memory to the host and waits for it: for loading and tests.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// `from` must hold `len` valid values of `T`.
    pub unsafe fn download<T: Copy + Default>(&self, from: DevicePtr, len: usize) -> Result<Vec<T>, CudaError> {
        let mut data = vec![T::default(); len];
        let to = DevicePtr(data.as_mut_ptr() as u64);
        // SAFETY: `data` lives until the synchronisation below; the rest is the caller's.
        unsafe { self.copy(to, from, size_of::<T>() * len) }?;
        self.synchronize()?;
        Ok(data)
    }

    /// Waits for everything queued.
    ///
    /// # Errors
    /// The driver's, or that of any work before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the handle is valid as long as `self` is.
        unsafe { cu!(self.device.ordinal(), cuStreamSynchronize(self.raw)) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        // SAFETY: created once in `new`, destroyed once here; the driver lets queued work finish.
        let _ = unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}
