//! A device: its primary context, kept for as long as anything on it lives, and what it can do.

use super::Library;
use super::error::{CudaError, NoGpu, cu};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};
use std::ffi::{CStr, c_char};
use std::sync::Arc;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The driver's number for it.
    pub ordinal: usize,
    /// Marketing name.
    pub name: String,
    /// `domain:bus:device.function`.
    pub pci: String,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Most dynamic shared memory that a block may ask for, bytes.
    pub shared_memory: u32,
    /// Second-level cache, bytes.
    pub l2: u32,
    /// Device memory, bytes.
    pub memory: u64,
    /// Whether it can be part of multicast objects (which only switches of NVLink have).
    pub multicast: bool,
}

/// A device whose primary context is held.
#[derive(Debug)]
pub struct Device {
    /// What it is.
    pub info: DeviceInfo,
    handle: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: a context handle may be made current on any thread, and the driver locks it.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens device `ordinal` and makes it current on this thread.
    ///
    /// # Errors
    /// There is no usable driver or no such device.
    pub fn open(ordinal: usize) -> Result<Arc<Self>, NoGpu> {
        let library = Library::open()?;
        if ordinal >= library.devices {
            return Err(NoGpu::NoSuchDevice { ordinal, count: library.devices });
        }
        let (handle, info) = describe(ordinal)?;
        let mut context = std::ptr::null_mut();
        // SAFETY: `handle` came from the driver; `context` is a valid place to write.
        unsafe { cu!(ordinal, cuDevicePrimaryCtxRetain(&mut context, handle)) }?;
        let device = Arc::new(Self { info, handle, context });
        device.make_current()?;
        Ok(device)
    }

    /// Describes every device, without opening one.
    ///
    /// # Errors
    /// There is no usable driver.
    pub fn list() -> Result<Vec<DeviceInfo>, NoGpu> {
        let library = Library::open()?;
        (0..library.devices).map(|i| Ok(describe(i)?.1)).collect()
    }

    /// The driver's number for it.
    pub fn ordinal(&self) -> usize {
        self.info.ordinal
    }

    /// Makes calls of this thread go to this device. Cheap.
    ///
    /// # Errors
    /// The driver's.
    pub fn make_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained for as long as `self` lives.
        unsafe { cu!(self.ordinal(), cuCtxSetCurrent(self.context)) }
    }

    /// `(free, total)` bytes of device memory.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        self.make_current()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are valid places to write.
        unsafe { cu!(self.ordinal(), cuMemGetInfo_v2(&mut free, &mut total)) }?;
        Ok((free as u64, total as u64))
    }

    pub(super) fn handle(&self) -> sys::CUdevice {
        self.handle
    }

    pub(super) fn context(&self) -> sys::CUcontext {
        self.context
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: retained once in `open`, released once here.
        let _ = unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.handle) };
    }
}

fn describe(ordinal: usize) -> Result<(sys::CUdevice, DeviceInfo), CudaError> {
    let mut handle = 0;
    // SAFETY: the driver is started; `handle` is a valid place to write.
    unsafe { cu!(ordinal, cuDeviceGet(&mut handle, ordinal as i32)) }?;
    let attribute = |which: Attribute| -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: `handle` is the driver's; `value` is a valid place to write.
        unsafe { cu!(ordinal, cuDeviceGetAttribute(&mut value, which, handle)) }?;
        Ok(value.max(0) as u32)
    };
    let mut memory = 0;
    // SAFETY: as above.
    unsafe { cu!(ordinal, cuDeviceTotalMem_v2(&mut memory, handle)) }?;
    let mut name = [0 as c_char; 256];
    // SAFETY: the length given is the buffer's.
    unsafe { cu!(ordinal, cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, handle)) }?;
    let mut pci = [0 as c_char; 64];
    // SAFETY: the length given is the buffer's.
    unsafe { cu!(ordinal, cuDeviceGetPCIBusId(pci.as_mut_ptr(), pci.len() as i32, handle)) }?;
    let info = DeviceInfo {
        ordinal,
        name: text(&name),
        pci: text(&pci),
        capability: (
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_memory: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
        l2: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        memory: memory as u64,
        // Drivers before 12.1 do not know the question.
        multicast: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED).unwrap_or(0) != 0,
    };
    Ok((handle, info))
}

fn text(buffer: &[c_char]) -> String {
    // The driver ends its text with a zero inside the buffer; the last byte is kept zero in any case.
    let bytes: Vec<u8> = buffer[..buffer.len() - 1].iter().map(|&c| c as u8).chain([0]).collect();
    CStr::from_bytes_until_nul(&bytes).map(|s| s.to_string_lossy().into_owned()).unwrap_or_default()
}
