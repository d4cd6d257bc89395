//! Large blocks of plain data: zeroed, page-aligned, on huge pages where the system has them. Untouched parts cost
//! nothing, so a cache may be planned in full at load.

use bytemuck::Pod;
use memmap2::MmapMut;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};

/// `[T; len]`, zeroed.
pub(crate) struct Memory<T> {
    /// None where there is nothing to hold.
    map: Option<MmapMut>,
    len: usize,
    kind: PhantomData<T>,
}

impl<T> Default for Memory<T> {
    fn default() -> Self {
        Self { map: None, len: 0, kind: PhantomData }
    }
}

impl<T: Pod> Memory<T> {
    /// Zeroed room for `len` values.
    ///
    /// # Errors
    /// What the system says where it has no room.
    pub(crate) fn zeroed(len: usize) -> std::io::Result<Self> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(std::io::ErrorKind::OutOfMemory)?;
        if bytes == 0 {
            return Ok(Self::default());
        }
        let map = MmapMut::map_anon(bytes)?;
        // Only a hint: without it the same code runs, with more misses of the address cache.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Self { map: Some(map), len, kind: PhantomData })
    }
}

impl<T: Pod> Deref for Memory<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        self.map.as_ref().map_or(&[], |map| bytemuck::cast_slice(&map[..self.len * size_of::<T>()]))
    }
}

impl<T: Pod> DerefMut for Memory<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        self.map.as_mut().map_or(&mut [], |map| bytemuck::cast_slice_mut(&mut map[..self.len * size_of::<T>()]))
    }
}
