//! Values of a KV cache in the type that was asked for.
//!
//! Neighbours may be one position's values (along), or one value of a block's positions (across, `[dim, BLOCK]`). In
//! Q8_0 every 32 values of a position share a scale, a half that lies apart: scale `i / 32` of cell `i` along, and
//! `[dim / 32, BLOCK]` across.

use crate::kernels::{BLOCK, Kernels, QUANT};
use crate::memory::Memory;
use half::{bf16, f16};
use tombolo_model::{KvType, limits};

/// Cells, and scales where the type has some.
pub(crate) enum Store {
    F32(Memory<f32>),
    F16(Memory<u16>),
    BF16(Memory<u16>),
    Q8_0(Memory<i8>, Memory<u16>),
}

impl Store {
    /// Room for `len` values.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn zeroed(len: usize, kind: KvType) -> std::io::Result<Self> {
        Ok(match kind {
            KvType::F32 => Self::F32(Memory::zeroed(len)?),
            KvType::F16 => Self::F16(Memory::zeroed(len)?),
            KvType::BF16 => Self::BF16(Memory::zeroed(len)?),
            KvType::Q8_0 => Self::Q8_0(Memory::zeroed(len)?, Memory::zeroed(len / QUANT)?),
        })
    }

    /// The cells as they are, if they need no widening.
    pub(crate) fn plain(&self, start: usize, len: usize) -> Option<&[f32]> {
        match self {
            Self::F32(cells) => Some(&cells[start..start + len]),
            _ => None,
        }
    }

    /// Stores one position's values, or whole groups of them, from `start` on.
    pub(crate) fn write_along(&mut self, kernels: &Kernels, start: usize, values: &[f32]) {
        let cells = start..start + values.len();
        match self {
            Self::F32(store) => store[cells].copy_from_slice(values),
            Self::F16(store) => (kernels.narrow)(values, bytemuck::cast_slice_mut(&mut store[cells])),
            Self::BF16(store) => {
                store[cells].iter_mut().zip(values).for_each(|(c, &v)| *c = bf16::from_f32(v).to_bits())
            }
            Self::Q8_0(quants, scales) => {
                let groups = quants[cells].as_chunks_mut::<QUANT>().0.iter_mut().zip(&mut scales[start / QUANT..]);
                for ((quants, scale), values) in groups.zip(values.as_chunks().0) {
                    (*scale, *quants) = quantize(values);
                }
            }
        }
    }

    /// The values of whole groups from `start` on.
    pub(crate) fn read_along(&self, kernels: &Kernels, start: usize, out: &mut [f32]) {
        let cells = start..start + out.len();
        match self {
            Self::F32(store) => out.copy_from_slice(&store[cells]),
            Self::F16(store) => (kernels.widen)(bytemuck::cast_slice(&store[cells]), out),
            Self::BF16(store) => (kernels.widen_bf16)(&store[cells], out),
            Self::Q8_0(quants, scales) => {
                let mut wide = [0f32; BLOCK];
                let groups = quants[cells].chunks(QUANT * BLOCK).zip(out.chunks_mut(QUANT * BLOCK));
                for ((quants, out), scales) in groups.zip(scales[start / QUANT..].chunks(BLOCK)) {
                    let wide = &mut wide[..quants.len() / QUANT];
                    (kernels.widen)(bytemuck::cast_slice(&scales[..wide.len()]), wide);
                    (kernels.widen_groups)(quants, wide, out);
                }
            }
        }
    }

    /// Stores position `slot`'s values in the block `[dim, BLOCK]` that starts at `start`.
    pub(crate) fn write_across(&mut self, kernels: &Kernels, start: usize, slot: usize, values: &[f32]) {
        let first = start + slot;
        match self {
            Self::F32(store) => {
                store[first..].iter_mut().step_by(BLOCK).zip(values).for_each(|(cell, &v)| *cell = v);
            }
            Self::F16(store) => {
                let mut halves = [0u16; limits::HEAD_DIM];
                let halves = &mut halves[..values.len()];
                (kernels.narrow)(values, bytemuck::cast_slice_mut(halves));
                store[first..].iter_mut().step_by(BLOCK).zip(halves).for_each(|(cell, &mut v)| *cell = v);
            }
            Self::BF16(store) => {
                let halves = values.iter().map(|&v| bf16::from_f32(v).to_bits());
                store[first..].iter_mut().step_by(BLOCK).zip(halves).for_each(|(cell, v)| *cell = v);
            }
            Self::Q8_0(quants, scales) => {
                for (g, values) in values.as_chunks::<QUANT>().0.iter().enumerate() {
                    let (scale, values) = quantize(values);
                    scales[start / QUANT + g * BLOCK + slot] = scale;
                    let cells = quants[first + g * QUANT * BLOCK..].iter_mut().step_by(BLOCK);
                    cells.zip(values).for_each(|(cell, q)| *cell = q);
                }
            }
        }
    }

    /// The values of the block `[dim, BLOCK]` that starts at `start`.
    pub(crate) fn read_across(&self, kernels: &Kernels, start: usize, out: &mut [f32]) {
        let Self::Q8_0(quants, scales) = self else {
            return self.read_along(kernels, start, out);
        };
        let mut wide = [0f32; BLOCK];
        let groups = quants[start..start + out.len()].chunks_exact(QUANT * BLOCK).zip(out.chunks_mut(QUANT * BLOCK));
        for ((quants, out), scales) in groups.zip(scales[start / QUANT..].chunks_exact(BLOCK)) {
            (kernels.widen)(bytemuck::cast_slice(scales), &mut wide);
            (kernels.widen_columns)(quants, &wide, out);
        }
    }
}

/// A group of Q8_0: the scale, `max |x| / 127` rounded to a half, and the values as multiples of what it became.
fn quantize(values: &[f32; QUANT]) -> (u16, [i8; QUANT]) {
    let most = values.iter().fold(0f32, |most, v| most.max(v.abs()));
    let scale = f16::from_f32((most / 127.0).min(f16::MAX.to_f32()));
    let inverse = if scale > f16::ZERO { 1.0 / scale.to_f32() } else { 0.0 };
    (scale.to_bits(), values.map(|v| (v * inverse).round() as i8))
}
