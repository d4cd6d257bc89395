//! Whether there is a driver, and whether it has everything that is called here: found out once, before the first call.
//! The bindings panic on a missing library or symbol, so nothing reaches them until this has said yes.

use super::error::{NoGpu, meaning};
use cudarc::driver::sys;
use std::sync::OnceLock;

/// CUDA version that the driver must support: 13.0, driver 580.
pub const NEEDED_DRIVER: u32 = 13_000;

/// Every driver function that this crate calls.
const SYMBOLS: &[&str] = &[
    "cuCtxEnablePeerAccess",
    "cuCtxSetCurrent",
    "cuDeviceCanAccessPeer",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDeviceTotalMem_v2",
    "cuDriverGetVersion",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuFuncGetAttribute",
    "cuFuncGetName",
    "cuFuncLoad",
    "cuFuncSetAttribute",
    "cuGetErrorString",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphGetNodes",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuInit",
    "cuLaunchKernelEx",
    "cuMemAlloc_v2",
    "cuMemFreeHost",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemHostAlloc",
    "cuMemHostGetDevicePointer_v2",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuModuleEnumerateFunctions",
    "cuModuleGetFunctionCount",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamSynchronize",
];

/// The driver, found and started.
#[derive(Debug)]
pub struct Library {
    /// CUDA version that the driver supports: major * 1000 + minor * 10.
    pub version: u32,
    /// Devices that it lists.
    pub devices: usize,
}

impl Library {
    /// Finds and starts the driver, once per process.
    ///
    /// # Errors
    /// Why there is none, or none that can be used.
    pub fn open() -> Result<&'static Library, NoGpu> {
        static FOUND: OnceLock<Result<Library, NoGpu>> = OnceLock::new();
        FOUND.get_or_init(find).as_ref().map_err(Clone::clone)
    }
}

fn find() -> Result<Library, NoGpu> {
    // SAFETY: loading a library runs its initialisers; this is the NVIDIA driver or nothing.
    if !unsafe { sys::is_culib_present() } {
        return Err(NoGpu::NoLibrary);
    }
    // SAFETY: the call above has just loaded the same library.
    let library = unsafe { sys::culib() };
    for &symbol in SYMBOLS {
        // SAFETY: the symbol is only looked up, not called.
        let found = unsafe { library.get::<*const ()>(symbol.as_bytes()) };
        if found.is_err() {
            return Err(NoGpu::MissingSymbol { symbol });
        }
    }
    let started = |result| match result {
        sys::CUresult::CUDA_SUCCESS => Ok(()),
        sys::CUresult::CUDA_ERROR_NO_DEVICE => Err(NoGpu::NoDevice),
        other => Err(NoGpu::NotStarted { meaning: meaning(other) }),
    };
    let mut version = 0;
    // SAFETY: the symbol is there; `version` is a valid place to write.
    started(unsafe { sys::cuDriverGetVersion(&mut version) })?;
    let version = version.max(0) as u32;
    if version < NEEDED_DRIVER {
        return Err(NoGpu::DriverTooOld { major: version / 1000, minor: version % 1000 / 10 });
    }
    // SAFETY: the symbol is there; 0 is the only flag value.
    started(unsafe { sys::cuInit(0) })?;
    let mut devices = 0;
    // SAFETY: the driver is started; `devices` is a valid place to write.
    started(unsafe { sys::cuDeviceGetCount(&mut devices) })?;
    if devices <= 0 { Err(NoGpu::NoDevice) } else { Ok(Library { version, devices: devices as usize }) }
}
