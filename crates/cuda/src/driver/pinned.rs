//! Pinned host memory: fixed in place, visible to every device under the host's own address.

use super::error::{CudaError, cu};
use super::{Device, DevicePtr};
use cudarc::driver::sys;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// One allocation of pinned host memory, zeroed, mapped into every device's address space.
#[derive(Debug)]
pub struct Pinned {
    device: Arc<Device>,
    host: *mut c_void,
    mapped: DevicePtr,
    bytes: usize,
}

// SAFETY: plain memory; shared access goes through atomics or `&mut`.
unsafe impl Send for Pinned {}
// SAFETY: as above.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let bytes = bytes.max(16);
        let (mut host, mut mapped) = (std::ptr::null_mut(), 0);
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the context is current; `host` is a valid place to write.
        unsafe { cu!(device.ordinal(), cuMemHostAlloc(&mut host, bytes, flags)) }?;
        // Owned from here on: an error below frees it.
        let mut memory = Self { device: device.clone(), host, mapped: DevicePtr::NULL, bytes };
        // SAFETY: `host` was just allocated as mapped memory.
        unsafe { cu!(device.ordinal(), cuMemHostGetDevicePointer_v2(&mut mapped, host, 0)) }?;
        // SAFETY: `bytes` bytes were allocated at `host`.
        unsafe { std::ptr::write_bytes(host.cast::<u8>(), 0, bytes) };
        memory.mapped = DevicePtr(mapped);
        Ok(memory)
    }

    /// Length in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// As kernels and copies of any device name it.
    pub fn device_ptr(&self) -> DevicePtr {
        self.mapped
    }

    /// `len` values of `T` from byte `offset` on.
    ///
    /// # Safety
    /// No device may write there meanwhile, and `T` must be valid for any bits.
    pub unsafe fn slice<T: Copy>(&self, offset: usize, len: usize) -> &[T] {
        self.check::<T>(offset, len);
        // SAFETY: inside the allocation and aligned; the rest is the caller's.
        unsafe { std::slice::from_raw_parts(self.host.cast::<u8>().add(offset).cast::<T>(), len) }
    }

    /// `len` values of `T` from byte `offset` on, to write.
    ///
    /// # Safety
    /// No device may read or write there meanwhile, no other slice of the range may live, and `T` must be valid for
    /// any bits.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slice_mut<T: Copy>(&self, offset: usize, len: usize) -> &mut [T] {
        self.check::<T>(offset, len);
        // SAFETY: inside the allocation and aligned; the rest is the caller's.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast::<u8>().add(offset).cast::<T>(), len) }
    }

    /// A word that a device may write at any time.
    pub fn word(&self, offset: usize) -> &AtomicU32 {
        self.check::<u32>(offset, 1);
        // SAFETY: inside the allocation and aligned; an atomic may be written by others.
        unsafe { AtomicU32::from_ptr(self.host.cast::<u8>().add(offset).cast::<u32>()) }
    }

    fn check<T>(&self, offset: usize, len: usize) {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + len * size_of::<T>() <= self.bytes);
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        // SAFETY: allocated once in `new`, freed once here; owners drop what uses it first.
        let _ = unsafe { sys::cuMemFreeHost(self.host) };
    }
}
