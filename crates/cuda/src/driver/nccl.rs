//! NCCL, found at run time: only to measure beside our own kernels. Nothing here is needed to run a model.
//!
//! Functions and values as NCCL's public header `nccl.h` declares them (2.x).

use super::{CudaError, DevicePtr, Stream};
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why NCCL cannot be used, or what it complained of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum NcclError {
    #[error("no NCCL: libnccl.so.2 was not found; set NCCL_LIB to its path (looked at: {tried})")]
    NotFound { tried: String },
    #[error("{path}: not a NCCL library: {reason}")]
    Symbol { path: String, reason: String },
    #[error("NCCL {call}: {meaning}")]
    Call { call: &'static str, meaning: String },
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// Names a group of ranks that is being formed.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId([c_char; 128]);

/// Element types that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NcclType {
    /// `ncclFloat32`.
    F32 = 7,
    /// `ncclBfloat16`.
    Bf16 = 9,
}

const SUM: c_int = 0;
const SUCCESS: c_int = 0;

type Comm = *mut c_void;

struct Functions {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    comm_init_rank: unsafe extern "C" fn(*mut Comm, c_int, UniqueId, c_int) -> c_int,
    comm_destroy: unsafe extern "C" fn(Comm) -> c_int,
    all_reduce: unsafe extern "C" fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, *mut c_void) -> c_int,
    get_error_string: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// The loaded library.
pub struct Nccl {
    functions: Functions,
    /// Where it was found.
    pub path: String,
    /// Held so that the functions stay valid.
    _library: Library,
}

impl Nccl {
    /// Finds and loads it: an explicit path, else `NCCL_LIB`, else the loader's own search, else a Python environment
    /// that has NVIDIA's package.
    ///
    /// # Errors
    /// It is nowhere, or something else has its name.
    pub fn open(explicit: Option<&Path>) -> Result<Arc<Self>, NcclError> {
        let named = explicit.map(Path::to_path_buf).or_else(|| std::env::var_os("NCCL_LIB").map(PathBuf::from));
        let candidates = match named {
            Some(path) => vec![path],
            None => std::iter::once(PathBuf::from("libnccl.so.2")).chain(python_packages()).collect(),
        };
        for path in &candidates {
            // SAFETY: loading a library runs its initialisers; this is NCCL or what the user named.
            if let Ok(library) = unsafe { Library::new(path) } {
                return Self::from_library(library, path.display().to_string()).map(Arc::new);
            }
        }
        let tried = candidates.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(NcclError::NotFound { tried })
    }

    fn from_library(library: Library, path: String) -> Result<Self, NcclError> {
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the signature is that of nccl.h, unchanged through all of NCCL 2.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|e| NcclError::Symbol { path: path.clone(), reason: e.to_string() })?
            };
        }
        let functions = Functions {
            get_version: symbol!("ncclGetVersion"),
            get_unique_id: symbol!("ncclGetUniqueId"),
            comm_init_rank: symbol!("ncclCommInitRank"),
            comm_destroy: symbol!("ncclCommDestroy"),
            all_reduce: symbol!("ncclAllReduce"),
            get_error_string: symbol!("ncclGetErrorString"),
        };
        Ok(Self { functions, path, _library: library })
    }

    fn check(&self, call: &'static str, result: c_int) -> Result<(), NcclError> {
        if result == SUCCESS {
            return Ok(());
        }
        // SAFETY: takes any value and gives a static string.
        let text = unsafe { (self.functions.get_error_string)(result) };
        let meaning = if text.is_null() {
            format!("error {result}")
        } else {
            // SAFETY: not null; static and ends in a zero.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(NcclError::Call { call, meaning })
    }

    /// `2.28.9`.
    ///
    /// # Errors
    /// The library's.
    pub fn version(&self) -> Result<String, NcclError> {
        let mut code = 0;
        // SAFETY: a valid place to write.
        self.check("ncclGetVersion", unsafe { (self.functions.get_version)(&mut code) })?;
        Ok(format!("{}.{}.{}", code / 10_000, code / 100 % 100, code % 100))
    }

    /// A name for a new group.
    ///
    /// # Errors
    /// The library's.
    pub fn unique_id(&self) -> Result<UniqueId, NcclError> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a valid place to write.
        self.check("ncclGetUniqueId", unsafe { (self.functions.get_unique_id)(&mut id) })?;
        Ok(id)
    }

    /// Joins a group of `ranks` as `rank`, with the device that is current on this thread. Waits for the others: one
    /// thread per rank.
    ///
    /// # Errors
    /// The library's.
    pub fn join(self: &Arc<Self>, id: UniqueId, rank: usize, ranks: usize) -> Result<Member, NcclError> {
        let mut comm = std::ptr::null_mut();
        // SAFETY: `comm` is a valid place to write; the rest are plain values.
        let result = unsafe { (self.functions.comm_init_rank)(&mut comm, ranks as c_int, id, rank as c_int) };
        self.check("ncclCommInitRank", result)?;
        Ok(Member { nccl: self.clone(), comm })
    }
}

/// A rank's membership of a group; stays on the thread that joined.
pub struct Member {
    nccl: Arc<Nccl>,
    comm: Comm,
}

impl Member {
    /// Queues `to = sum over ranks of from`, `count` values.
    ///
    /// # Errors
    /// The library's.
    ///
    /// # Safety
    /// Both must hold `count` values of `ty` in the member's device memory; every member must queue the same call.
    pub unsafe fn all_reduce(
        &self,
        from: DevicePtr,
        to: DevicePtr,
        count: usize,
        ty: NcclType,
        stream: &Stream,
    ) -> Result<(), NcclError> {
        let f = self.nccl.functions.all_reduce;
        // SAFETY: the caller's; the communicator is valid as long as `self` is.
        let result = unsafe {
            f(from.0 as *const c_void, to.0 as *mut c_void, count, ty as c_int, SUM, self.comm, stream.raw().cast())
        };
        self.nccl.check("ncclAllReduce", result)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: joined once, left once.
        let _ = unsafe { (self.nccl.functions.comm_destroy)(self.comm) };
    }
}

/// `nvidia/nccl/lib/libnccl.so.2` in the packages of every Python that a shell would find.
fn python_packages() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let roots = std::env::split_paths(&path).filter(|dir| dir.join("python3").exists());
    let mut roots: Vec<PathBuf> = roots.filter_map(|dir| dir.parent().map(Path::to_path_buf)).collect();
    roots.extend(std::env::var_os("VIRTUAL_ENV").map(PathBuf::from));
    let mut found = Vec::new();
    for root in roots {
        for python in std::fs::read_dir(root.join("lib")).into_iter().flatten().flatten() {
            for packages in ["site-packages", "dist-packages"] {
                let path = python.path().join(packages).join("nvidia/nccl/lib/libnccl.so.2");
                if path.exists() && !found.contains(&path) {
                    found.push(path);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_value() {
        let error = Nccl::open(Some(Path::new("/nonexistent/libnccl.so.2"))).err();
        assert!(matches!(error, Some(NcclError::NotFound { .. })));
    }
}
