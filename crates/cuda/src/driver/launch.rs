//! How a kernel is launched.

use super::error::{CudaError, check};
use super::{Args, Kernel, Stream};
use cudarc::driver::sys;

/// Grid, block and attributes of one launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks.
    pub grid: (u32, u32, u32),
    /// Threads a block, along x.
    pub block: u32,
    /// Dynamic shared memory, bytes.
    pub smem: u32,
    /// Programmatic dependent launch: the kernel may start before the one before it has ended, and must execute
    /// `griddepcontrol.wait` before it touches anything that a kernel before it writes or reads.
    pub pdl: bool,
    /// Blocks of a cluster along x; 0 or 1: none.
    pub cluster: u32,
}

impl Launch {
    /// A one-dimensional launch with programmatic dependent launch.
    pub fn new(blocks: u32, block: u32) -> Self {
        Self { grid: (blocks, 1, 1), block, smem: 0, pdl: true, cluster: 0 }
    }

    /// With dynamic shared memory.
    #[must_use]
    pub fn smem(self, bytes: u32) -> Self {
        Self { smem: bytes, ..self }
    }
}

/// See [`Stream::launch`].
///
/// # Safety
/// As there.
pub(super) unsafe fn launch(s: &Stream, kernel: &Kernel, launch: &Launch, args: &Args) -> Result<(), CudaError> {
    let mut pointers = args.pointers();
    debug_assert!(launch.grid.0 > 0 && launch.grid.1 > 0 && launch.grid.2 > 0 && launch.block > 0);
    let mut attributes = [none(), none()];
    let mut count = 0;
    // Devices before 9.0 have neither.
    if launch.pdl && s.overlap() && s.device().info.capability.0 >= 9 {
        attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
        attributes[count].value.programmaticStreamSerializationAllowed = 1;
        count += 1;
    }
    if launch.cluster > 1 && s.device().info.capability.0 >= 9 {
        attributes[count].id = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[count].value.clusterDim =
            sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x: launch.cluster, y: 1, z: 1 };
        count += 1;
    }
    let config = sys::CUlaunchConfig {
        gridDimX: launch.grid.0,
        gridDimY: launch.grid.1,
        gridDimZ: launch.grid.2,
        blockDimX: launch.block,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: launch.smem,
        hStream: s.raw(),
        attrs: attributes.as_mut_ptr(),
        numAttrs: count as u32,
    };
    // SAFETY: `config`, `attributes` and the arguments outlive the call; their meaning is the caller's.
    let result = unsafe { sys::cuLaunchKernelEx(&config, kernel.raw(), pointers.as_mut_ptr(), std::ptr::null_mut()) };
    check("cuLaunchKernelEx", s.device().ordinal(), result).map_err(|mut error| {
        error.meaning = format!("kernel {} with {launch:?}: {}", kernel.name, error.meaning);
        error
    })
}

fn none() -> sys::CUlaunchAttribute {
    sys::CUlaunchAttribute {
        id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_IGNORE,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { pad: [0; 64] },
    }
}
