//! Device memory: one planned arena per rank, cut into slots. Nothing is allocated after the arena.

use super::Device;
use super::error::{CudaError, cu};
use cudarc::driver::sys;
use std::sync::Arc;

/// An address that kernels can use: device memory, a peer's, or pinned host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
#[repr(transparent)]
pub struct DevicePtr(pub u64);

impl DevicePtr {
    /// No address; kernels test for it where an argument is optional.
    pub const NULL: Self = Self(0);

    /// `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// Every slot starts at a multiple of this.
const ALIGN: usize = 256;

/// A piece of an arena that does not exist yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// From the arena's start.
    pub offset: usize,
    /// Length.
    pub bytes: usize,
}

/// The layout of an arena, made before anything is allocated, and the list of what is in it for people to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ArenaPlan {
    total: usize,
    parts: Vec<(&'static str, usize)>,
}

impl ArenaPlan {
    /// Adds a slot, counted under the name `part`.
    pub fn add(&mut self, part: &'static str, bytes: usize) -> Slot {
        let slot = Slot { offset: self.total, bytes };
        let taken = bytes.next_multiple_of(ALIGN);
        self.total += taken;
        match self.parts.iter_mut().find(|(name, _)| *name == part) {
            Some((_, sum)) => *sum += taken,
            None => self.parts.push((part, taken)),
        }
        slot
    }

    /// Bytes of the whole arena.
    pub fn bytes(&self) -> usize {
        self.total
    }

    /// Bytes by part, in the order in which the parts were first added.
    pub fn parts(&self) -> &[(&'static str, usize)] {
        &self.parts
    }
}

/// One allocation of device memory.
#[derive(Debug)]
pub struct Arena {
    device: Arc<Device>,
    start: DevicePtr,
    bytes: usize,
}

impl Arena {
    /// Allocates.
    ///
    /// # Errors
    /// The driver's: [`CudaError::is_out_of_memory`] tells the usual one.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, CudaError> {
        device.make_current()?;
        let mut start = 0;
        // SAFETY: the context is current; `start` is a valid place to write.
        unsafe { cu!(device.ordinal(), cuMemAlloc_v2(&mut start, bytes.max(ALIGN))) }?;
        Ok(Self { device: device.clone(), start: DevicePtr(start), bytes })
    }

    /// Its first byte.
    pub fn start(&self) -> DevicePtr {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Where a slot of its plan lies.
    ///
    /// # Panics
    /// When the slot is not of this arena's plan.
    pub fn at(&self, slot: Slot) -> DevicePtr {
        assert!(slot.offset + slot.bytes <= self.bytes, "slot of another arena");
        self.start.offset(slot.offset)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let _ = self.device.make_current();
        // SAFETY: allocated once in `new`, freed once here; owners drop what uses it first.
        let _ = unsafe { sys::cuMemFree_v2(self.start.0) };
    }
}
