//! The cache of a KV group with one key per position and no values beside it: latents, index keys.
//!
//! Per layer and block `[BLOCK, width]`: a position's values lie together, so that any choice of positions can be read.

use crate::kernels::{BLOCK, Kernels};
use crate::memory::Memory;
use tombolo_model::KvGroup;

/// The cache of one group.
pub(crate) struct RowCache {
    width: usize,
    blocks: usize,
    store: Store,
}

enum Store {
    F32(Memory<f32>),
    F16(Memory<u16>),
}

impl RowCache {
    /// Room for `blocks` blocks in every layer; values in f32 if `wide`, else in f16.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, wide: bool) -> std::io::Result<Self> {
        let factors = [group.layers, blocks, group.head_dim, BLOCK];
        let len = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        let store = if wide { Store::F32(Memory::zeroed(len)?) } else { Store::F16(Memory::zeroed(len)?) };
        Ok(Self { width: group.head_dim, blocks, store })
    }

    /// Values of a position.
    pub(crate) fn width(&self) -> usize {
        self.width
    }

    fn start(&self, layer: usize, block: u32, slot: usize) -> usize {
        ((layer * self.blocks + block as usize) * BLOCK + slot) * self.width
    }

    /// Stores one position's values, given as parts that follow each other.
    pub(crate) fn write(&mut self, kernels: &Kernels, layer: usize, block: u32, slot: usize, parts: &[&[f32]]) {
        let mut start = self.start(layer, block, slot);
        for part in parts {
            match &mut self.store {
                Store::F32(cells) => cells[start..start + part.len()].copy_from_slice(part),
                Store::F16(cells) => {
                    let cells = &mut cells[start..start + part.len()];
                    (kernels.narrow)(part, bytemuck::cast_slice_mut(cells));
                }
            }
            start += part.len();
        }
    }

    /// The values of the positions from `slot` on of one block, as many as `out` has rows.
    pub(crate) fn read(&self, kernels: &Kernels, layer: usize, block: u32, slot: usize, out: &mut [f32]) {
        let start = self.start(layer, block, slot);
        match &self.store {
            Store::F32(cells) => out.copy_from_slice(&cells[start..start + out.len()]),
            Store::F16(cells) => (kernels.widen)(bytemuck::cast_slice(&cells[start..start + out.len()]), out),
        }
    }
}
