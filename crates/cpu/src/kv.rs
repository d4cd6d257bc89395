//! The KV cache: blocks of positions, laid out for attention.
//!
//! Per layer, block and KV head: keys as `[head_dim, BLOCK]`, so that the scores of a block's positions are sums side
//! by side, and values as `[BLOCK, head_dim]`.

use crate::kernels::{BLOCK, Kernels};
use crate::row_cache::RowCache;
use crate::store::Store;
use tombolo_model::{KvGroup, KvType, Values};

/// The cache of any group.
pub(crate) enum Cache {
    /// Keys and values by head.
    Heads(Kv),
    /// Keys alone, of one head.
    Rows(RowCache),
}

impl Cache {
    /// Room for `blocks` blocks in every layer.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, kind: KvType) -> std::io::Result<Self> {
        Ok(match group.values {
            Values::Own => Self::Heads(Kv::new(group, blocks, kind)?),
            Values::OfKey(_) | Values::None => Self::Rows(RowCache::new(group, blocks, kind)?),
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

impl Kv {
    /// Room for `blocks` blocks in every layer.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn new(group: &KvGroup, blocks: usize, kind: KvType) -> std::io::Result<Self> {
        let factors = [group.layers, blocks, group.kv_heads, group.head_dim, BLOCK];
        let len = factors.iter().try_fold(1usize, |n, &f| n.checked_mul(f)).ok_or(std::io::ErrorKind::OutOfMemory)?;
        Ok(Self {
            heads: group.kv_heads,
            dim: group.head_dim,
            blocks,
            keys: Store::zeroed(len, kind)?,
            values: Store::zeroed(len, kind)?,
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
            self.keys.write_across(kernels, start, slot, &k[head * dim..][..dim]);
            self.values.write_along(kernels, start + slot * dim, &v[head * dim..][..dim]);
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
        let keys = self.keys.plain(start, len).unwrap_or_else(|| {
            keys.resize(len, 0.0);
            self.keys.read_across(kernels, start, keys);
            keys
        });
        let values = self.values.plain(start, len).unwrap_or_else(|| {
            values.resize(len, 0.0);
            self.values.read_along(kernels, start, values);
            values
        });
        (keys, values)
    }
}
