//! The KV cache: blocks of positions, laid out for attention.
//!
//! Per layer, block and KV head: keys as `[head_dim, BLOCK]`, so that the scores of a block's positions are sums side
//! by side, and values as `[BLOCK, head_dim]`.

use crate::kernels::{BLOCK, Kernels};
use crate::memory::Memory;
use crate::row_cache::RowCache;
use tombolo_model::{KvGroup, Values, limits};

/// The cache of any group.
pub(crate) enum Cache {
    /// Keys and values by head.
    Heads(Kv),
    /// Keys alone, of one head.
    Rows(RowCache),
}

impl Cache {
    /// Room for `blocks` blocks in every layer; values in f32 if `wide`, else in f16.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, wide: bool) -> std::io::Result<Self> {
        Ok(match group.values {
            Values::Own => Self::Heads(Kv::new(group, blocks, wide)?),
            Values::OfKey(_) | Values::None => Self::Rows(RowCache::new(group, blocks, wide)?),
        })
    }

    /// The cache of grouped-query attention: operations and groups fit each other by construction of the program.
    pub(crate) fn heads(&self) -> &Kv {
        match self {
            Self::Heads(kv) => kv,
            Self::Rows(_) => unreachable!("keys by head are wanted of a group without"),
        }
    }

    /// The same, to write.
    pub(crate) fn heads_mut(&mut self) -> &mut Kv {
        match self {
            Self::Heads(kv) => kv,
            Self::Rows(_) => unreachable!("keys by head are wanted of a group without"),
        }
    }

    /// The cache of latents or of index keys.
    pub(crate) fn rows(&self) -> &RowCache {
        match self {
            Self::Rows(rows) => rows,
            Self::Heads(_) => unreachable!("rows are wanted of a group of heads"),
        }
    }

    /// The same, to write.
    pub(crate) fn rows_mut(&mut self) -> &mut RowCache {
        match self {
            Self::Rows(rows) => rows,
            Self::Heads(_) => unreachable!("rows are wanted of a group of heads"),
        }
    }
}

/// The cache of one KV group of heads.
pub(crate) struct Kv {
    heads: usize,
    dim: usize,
    blocks: usize,
    keys: Store,
    values: Store,
}

enum Store {
    F32(Memory<f32>),
    F16(Memory<u16>),
}

impl Store {
    fn zeroed(len: usize, wide: bool) -> std::io::Result<Self> {
        Ok(if wide { Self::F32(Memory::zeroed(len)?) } else { Self::F16(Memory::zeroed(len)?) })
    }

    /// Stores values from `start` on, `step` apart.
    fn write(&mut self, start: usize, step: usize, values: &[f32], narrow: impl Fn(&[f32], &mut [u8])) {
        match self {
            Self::F32(cells) => {
                cells[start..].iter_mut().step_by(step).zip(values).for_each(|(cell, &v)| *cell = v);
            }
            Self::F16(cells) => {
                let mut halves = [0u16; limits::HEAD_DIM];
                let halves = &mut halves[..values.len()];
                narrow(values, bytemuck::cast_slice_mut(halves));
                cells[start..].iter_mut().step_by(step).zip(halves).for_each(|(cell, &mut v)| *cell = v);
            }
        }
    }

    /// `len` neighbouring values; `scratch` is where they are widened if they must be.
    fn read<'a>(&'a self, kernels: &Kernels, start: usize, len: usize, scratch: &'a mut Vec<f32>) -> &'a [f32] {
        match self {
            Self::F32(cells) => &cells[start..start + len],
            Self::F16(cells) => {
                scratch.resize(len, 0.0);
                (kernels.widen)(bytemuck::cast_slice(&cells[start..start + len]), scratch);
                scratch
            }
        }
    }
}

impl Kv {
    /// Room for `blocks` blocks in every layer; values in f32 if `wide`, else in f16.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, wide: bool) -> std::io::Result<Self> {
        let factors = [group.layers, blocks, group.kv_heads, group.head_dim, BLOCK];
        let len = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            heads: group.kv_heads,
            dim: group.head_dim,
            blocks,
            keys: Store::zeroed(len, wide)?,
            values: Store::zeroed(len, wide)?,
        })
    }

    /// KV heads.
    pub(crate) fn heads(&self) -> usize {
        self.heads
    }

    /// Values per head.
    pub(crate) fn dim(&self) -> usize {
        self.dim
    }

    fn start(&self, layer: usize, block: usize, head: usize) -> usize {
        ((layer * self.blocks + block) * self.heads + head) * self.dim * BLOCK
    }

    /// Stores one position's keys and values, `[heads, dim]` each.
    pub(crate) fn write(&mut self, kernels: &Kernels, layer: usize, block: usize, slot: usize, k: &[f32], v: &[f32]) {
        let dim = self.dim;
        for head in 0..self.heads {
            let start = self.start(layer, block, head);
            self.keys.write(start + slot, BLOCK, &k[head * dim..][..dim], kernels.narrow);
            self.values.write(start + slot * dim, 1, &v[head * dim..][..dim], kernels.narrow);
        }
    }

    /// Keys `[dim, BLOCK]` and values `[BLOCK, dim]` of a block.
    pub(crate) fn read<'a>(
        &'a self,
        kernels: &Kernels,
        layer: usize,
        block: usize,
        head: usize,
        scratch: &'a mut [Vec<f32>; 2],
    ) -> (&'a [f32], &'a [f32]) {
        let (start, len) = (self.start(layer, block, head), self.dim * BLOCK);
        let [keys, values] = scratch;
        (self.keys.read(kernels, start, len, keys), self.values.read(kernels, start, len, values))
    }
}
