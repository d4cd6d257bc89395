//! The cache of a KV group with one key per position and no values beside it: latents, index keys.
//!
//! Per layer and block `[BLOCK, width]`: a position's values lie together, so that any choice of positions can be read.

use crate::kernels::{BLOCK, Kernels};
use crate::store::Store;
use tombolo_model::{KvGroup, KvType};

/// The cache of one group.
pub(crate) struct RowCache {
    width: usize,
    blocks: usize,
    store: Store,
}

impl RowCache {
    /// Room for `blocks` blocks in every layer.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, kind: KvType) -> std::io::Result<Self> {
        let factors = [group.layers, blocks, group.head_dim, BLOCK];
        let len = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self { width: group.head_dim, blocks, store: Store::zeroed(len, kind)? })
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
            self.store.write_along(kernels, start, part);
            start += part.len();
        }
    }

    /// The values of the positions from `slot` on of one block, as many as `out` has rows.
    pub(crate) fn read(&self, kernels: &Kernels, layer: usize, block: u32, slot: usize, out: &mut [f32]) {
        self.store.read_along(kernels, self.start(layer, block, slot), out);
    }
}
