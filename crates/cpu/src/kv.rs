//! The KV cache: blocks of positions, laid out for attention.
//!
//! Per layer, block and KV head: keys as `[head_dim, BLOCK]`, so that the scores of a block's positions are sums side
//! by side, and values as `[BLOCK, head_dim]`. In Q8_0 every 32 values of a position's head share a scale, which lies
//! apart: `[head_dim / 32, BLOCK]` for keys, `[BLOCK, head_dim / 32]` for values.

use crate::kernels::{BLOCK, Kernels, QUANT};
use crate::memory::Memory;
use half::{bf16, f16};
use tombolo_model::{KvGroup, KvType, limits};

/// The cache of one KV group.
pub(crate) struct Kv {
    heads: usize,
    dim: usize,
    blocks: usize,
    keys: Store,
    values: Store,
}

/// Where neighbouring values of one position's head go.
#[derive(Clone, Copy)]
enum Side {
    Keys,
    Values,
}

enum Store {
    F32(Memory<f32>),
    F16(Memory<u16>),
    BF16(Memory<u16>),
    /// And a half per 32 values.
    Q8_0(Memory<i8>, Memory<u16>),
}

impl Store {
    fn zeroed(len: usize, kind: KvType) -> std::io::Result<Self> {
        Ok(match kind {
            KvType::F32 => Self::F32(Memory::zeroed(len)?),
            KvType::F16 => Self::F16(Memory::zeroed(len)?),
            KvType::BF16 => Self::BF16(Memory::zeroed(len)?),
            KvType::Q8_0 => Self::Q8_0(Memory::zeroed(len)?, Memory::zeroed(len / QUANT)?),
        })
    }

    /// Stores the values of position `slot` in the part that starts at `start`.
    fn write(&mut self, kernels: &Kernels, start: usize, slot: usize, side: Side, values: &[f32]) {
        // The first place, and how far it is to the next.
        let place = |start: usize, len: usize| match side {
            Side::Keys => (start + slot, BLOCK),
            Side::Values => (start + slot * len, 1),
        };
        let (first, step) = place(start, values.len());
        match self {
            Self::F32(cells) => {
                cells[first..].iter_mut().step_by(step).zip(values).for_each(|(cell, &v)| *cell = v);
            }
            Self::F16(cells) => {
                let mut halves = [0u16; limits::HEAD_DIM];
                let halves = &mut halves[..values.len()];
                (kernels.narrow)(values, bytemuck::cast_slice_mut(halves));
                cells[first..].iter_mut().step_by(step).zip(halves).for_each(|(cell, &mut v)| *cell = v);
            }
            Self::BF16(cells) => {
                let halves = values.iter().map(|&v| bf16::from_f32(v).to_bits());
                cells[first..].iter_mut().step_by(step).zip(halves).for_each(|(cell, v)| *cell = v);
            }
            Self::Q8_0(quants, scales) => {
                let groups = values.as_chunks::<QUANT>().0;
                let (first_scale, scale_step) = place(start / QUANT, groups.len());
                for (g, group) in groups.iter().enumerate() {
                    let (scale, group) = quantize(group);
                    scales[first_scale + g * scale_step] = scale;
                    let cells = quants[first + g * QUANT * step..].iter_mut().step_by(step);
                    cells.zip(group).for_each(|(cell, q)| *cell = q);
                }
            }
        }
    }

    /// `BLOCK * dim` values from `start` on; `scratch` is where they are widened if they must be.
    fn read<'a>(
        &'a self,
        kernels: &Kernels,
        start: usize,
        dim: usize,
        side: Side,
        scratch: &'a mut Vec<f32>,
    ) -> &'a [f32] {
        let len = dim * BLOCK;
        if let Self::F32(cells) = self {
            return &cells[start..start + len];
        }
        scratch.resize(len, 0.0);
        match self {
            Self::F32(_) => {}
            Self::F16(cells) => (kernels.widen)(bytemuck::cast_slice(&cells[start..start + len]), scratch),
            Self::BF16(cells) => (kernels.widen_bf16)(&cells[start..start + len], scratch),
            Self::Q8_0(quants, scales) => {
                let mut wide = [0f32; limits::HEAD_DIM * BLOCK / QUANT];
                let wide = &mut wide[..len / QUANT];
                (kernels.widen)(bytemuck::cast_slice(&scales[start / QUANT..][..len / QUANT]), wide);
                let quants = &quants[start..start + len];
                match side {
                    Side::Keys => (kernels.widen_keys)(quants, wide, scratch),
                    Side::Values => (kernels.widen_values)(quants, wide, scratch),
                }
            }
        }
        scratch
    }
}

/// A group of Q8_0: the scale, `max |x| / 127`, as a half, and the values as multiples of it.
fn quantize(values: &[f32; QUANT]) -> (u16, [i8; QUANT]) {
    let scale = values.iter().fold(0f32, |most, v| most.max(v.abs())) / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    (f16::from_f32(scale).to_bits(), values.map(|v| (v * inverse).round() as i8))
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
            self.keys.write(kernels, start, slot, Side::Keys, &k[head * dim..][..dim]);
            self.values.write(kernels, start, slot, Side::Values, &v[head * dim..][..dim]);
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
        let start = self.start(layer, block, head);
        let [keys, values] = scratch;
        (
            self.keys.read(kernels, start, self.dim, Side::Keys, keys),
            self.values.read(kernels, start, self.dim, Side::Values, values),
        )
    }
}
