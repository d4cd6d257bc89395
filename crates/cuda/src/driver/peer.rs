//! Peer access: whether one device may read and write another's memory, as values with reasons.

use super::Device;
use super::error::{CudaError, check, cu};
use cudarc::driver::sys;

/// Whether a device reaches another's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// It is the same device.
    Same,
    /// Enabled.
    Enabled,
    /// The driver says that it cannot: GeForce cards, some topologies, virtual machines.
    Refused,
}

/// Lets kernels on `from` use memory of `to`.
///
/// # Errors
/// The driver's; a plain "cannot" is [`PeerAccess::Refused`], not an error.
pub fn enable_peer(from: &Device, to: &Device) -> Result<PeerAccess, CudaError> {
    if from.ordinal() == to.ordinal() {
        return Ok(PeerAccess::Same);
    }
    let mut can = 0;
    // SAFETY: both handles are the driver's; `can` is a valid place to write.
    unsafe { cu!(from.ordinal(), cuDeviceCanAccessPeer(&mut can, from.handle(), to.handle())) }?;
    if can == 0 {
        return Ok(PeerAccess::Refused);
    }
    from.make_current()?;
    // SAFETY: `to`'s context is retained by `to`.
    let result = unsafe { sys::cuCtxEnablePeerAccess(to.context(), 0) };
    match result {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(PeerAccess::Enabled),
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_UNSUPPORTED => Ok(PeerAccess::Refused),
        other => check("cuCtxEnablePeerAccess", from.ordinal(), other).map(|()| PeerAccess::Enabled),
    }
}
