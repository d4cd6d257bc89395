//! The kernels embedded in this build, loaded on a device: all of them, at once, before anything runs. The driver's lazy
//! loading would otherwise load a kernel at its first launch, which stops the device: a deadlock while a collective
//! spins.

use super::Device;
use super::error::{CudaError, NoGpu, cu};
use cudarc::driver::sys::{self, CUfunction_attribute as Attribute};
use std::collections::HashMap;
use std::ffi::CStr;
use std::sync::Arc;

// Only constructed where kernels are embedded.
#[allow(dead_code)]
#[repr(align(16))]
struct Aligned<T: ?Sized>(T);

mod embedded {
    include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
}

/// A loaded kernel.
#[derive(Debug)]
pub struct Kernel {
    /// Its name in the source.
    pub name: String,
    raw: sys::CUfunction,
}

impl Kernel {
    pub(super) fn raw(&self) -> sys::CUfunction {
        self.raw
    }
}

// SAFETY: a function handle may be used from any thread of its context.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

/// Every kernel of this build, on one device.
#[derive(Debug)]
pub struct Kernels {
    device: Arc<Device>,
    modules: Vec<sys::CUmodule>,
    kernels: HashMap<String, Kernel>,
}

// SAFETY: module handles are only touched on drop.
unsafe impl Send for Kernels {}
// SAFETY: as above.
unsafe impl Sync for Kernels {}

impl Kernels {
    /// Whether this build carries kernels at all.
    pub fn are_built() -> bool {
        !embedded::MODULES.is_empty()
    }

    /// That this build carries kernels.
    ///
    /// # Errors
    /// Why it carries none.
    pub fn check_built() -> Result<(), NoGpu> {
        match (Self::are_built(), embedded::STALE) {
            (true, _) => Ok(()),
            (false, "") => Err(NoGpu::NoKernels),
            (false, files) => Err(NoGpu::StaleKernels { files }),
        }
    }

    /// Loads all kernels and raises each one's limit of dynamic shared memory to what the device allows.
    ///
    /// # Errors
    /// This build carries none, or the driver refuses them.
    pub fn load(device: &Arc<Device>) -> Result<Self, NoGpu> {
        Self::check_built()?;
        device.make_current()?;
        let mut loaded = Self { device: device.clone(), modules: Vec::new(), kernels: HashMap::new() };
        for (name, image) in embedded::MODULES {
            loaded.load_module(name, image)?;
        }
        Ok(loaded)
    }

    fn load_module(&mut self, name: &str, image: &[u8]) -> Result<(), CudaError> {
        let ordinal = self.device.ordinal();
        let mut module = std::ptr::null_mut();
        // SAFETY: the image is a whole fatbin, embedded in the program and aligned; its length is in its header.
        unsafe { cu!(ordinal, cuModuleLoadData(&mut module, image.as_ptr().cast())) }.map_err(|mut error| {
            error.meaning = format!("module {name}: {}", error.meaning);
            error
        })?;
        self.modules.push(module);
        let mut count = 0;
        // SAFETY: the module is loaded; `count` is a valid place to write.
        unsafe { cu!(ordinal, cuModuleGetFunctionCount(&mut count, module)) }?;
        let mut functions = vec![std::ptr::null_mut(); count as usize];
        // SAFETY: the list has room for `count` handles.
        unsafe { cu!(ordinal, cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module)) }?;
        for raw in functions {
            let kernel = self.prepare(raw)?;
            self.kernels.insert(kernel.name.clone(), kernel);
        }
        Ok(())
    }

    fn prepare(&self, raw: sys::CUfunction) -> Result<Kernel, CudaError> {
        let ordinal = self.device.ordinal();
        // SAFETY: the handle was just enumerated.
        unsafe { cu!(ordinal, cuFuncLoad(raw)) }?;
        let mut name = std::ptr::null();
        // SAFETY: as above; `name` is a valid place to write.
        unsafe { cu!(ordinal, cuFuncGetName(&mut name, raw)) }?;
        // SAFETY: the driver gave a string that lives as long as the module.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let mut own = 0;
        // SAFETY: as above; `own` is a valid place to write.
        unsafe { cu!(ordinal, cuFuncGetAttribute(&mut own, Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, raw)) }?;
        let most = self.device.info.shared_memory.saturating_sub(own.max(0) as u32);
        let which = Attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the value is within the device's own limit.
        unsafe { cu!(ordinal, cuFuncSetAttribute(raw, which, most as i32)) }?;
        Ok(Kernel { name, raw })
    }

    /// The kernel of that name.
    ///
    /// # Panics
    /// When there is none: only kernels of the sources that lie beside this code are embedded, so this is a fault of the
    /// code.
    pub fn get(&self, name: &str) -> &Kernel {
        self.kernels.get(name).unwrap_or_else(|| panic!("there is no kernel '{name}'"))
    }

    /// The kernel of that name, if there is one.
    pub fn find(&self, name: &str) -> Option<&Kernel> {
        self.kernels.get(name)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        for &module in &self.modules {
            // SAFETY: loaded once, unloaded once; owners drop what launches its kernels first.
            let _ = unsafe { sys::cuModuleUnload(module) };
        }
    }
}
