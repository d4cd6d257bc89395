//! The scalar tier: what every other tier must give bit for bit, on any processor.

use super::panel::Panel;
use super::tile::{ActBlock, ActRow, Class, Kind, QUANT, TILE};
use half::f16;
use tombolo_gguf::quant::{iq4_nl, mxfp4};

/// 32 columns of one row of a tile, in the form that all kinds share.
struct Sub {
    q: [i32; QUANT],
    /// Factor.
    d: f32,
    /// Integer scale of each half.
    s: [i32; 2],
    /// Offset; of each half where they differ.
    m: [f32; 2],
}

/// `out[row of the tile] = tile · act` for each row of activations.
pub(super) fn tile(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    out[..acts.len()].fill([0.0; TILE]);
    for r in 0..TILE {
        for (b, block) in tile.chunks_exact(kind.block_bytes()).enumerate() {
            let subs = kind.block_cols() / QUANT;
            for j in 0..subs {
                let sub = sub(kind, block, r, j);
                for (act, out) in acts.iter().zip(&mut *out) {
                    out[r] = multiply(kind.class(), &sub, act, b * subs + j, out[r]);
                }
            }
        }
    }
}

/// The same for several tiles.
pub(super) fn block(kind: Kind, tiles: &[&[u8]], acts: &[ActRow], _: &mut Panel, out: &mut [[f32; TILE]]) {
    for (bytes, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
        tile(kind, bytes, acts, out);
    }
}

fn multiply(class: Class, sub: &Sub, act: &ActRow, at: usize, sum: f32) -> f32 {
    let a = &act.blocks[at];
    let q = &act.quants[at * QUANT..][..QUANT];
    let dot = |range: std::ops::Range<usize>| -> i32 {
        sub.q[range.clone()].iter().zip(&q[range]).map(|(&q, &a)| q * i32::from(a)).sum()
    };
    let factor = sub.d * a.scale;
    match class {
        Class::Offset { .. } => sub.m[0].mul_add(a.weighted, (dot(0..32) as f32).mul_add(factor, sum)),
        Class::Halves { .. } => {
            let whole = sub.s[0] * dot(0..16) + sub.s[1] * dot(16..32);
            let sum = sub.m[0].mul_add(a.halves[0], (whole as f32).mul_add(factor, sum));
            sub.m[1].mul_add(a.halves[1], sum)
        }
        Class::Signed => (dot(0..32) as f32).mul_add(factor, sum),
    }
}

fn half_of(halves: &[u8], r: usize) -> f32 {
    f16::from_le_bytes([halves[2 * r], halves[2 * r + 1]]).to_f32()
}

/// Byte `i` of row `r` of interleaved bytes.
fn byte(bytes: &[u8], r: usize, i: usize) -> u8 {
    bytes[i / 4 * 4 * TILE + 4 * r + i % 4]
}

/// Column `i` of 32 whose nibbles lie in 16 bytes: low nibbles first, then high ones.
fn nibble(bytes: &[u8], r: usize, i: usize) -> i32 {
    i32::from(byte(bytes, r, i % 16) >> (4 * (i / 16)) & 15)
}

/// Sub-block `j`'s 6-bit scale and offset, packed over the rows.
fn scale_min(scales: &[u8], r: usize, j: usize) -> (f32, f32) {
    let (low, high) = (scales[j * TILE + r], scales[64 + j / 2 * TILE + r] >> (4 * (j % 2)));
    (f32::from(low & 15 | (high & 3) << 4), f32::from(low >> 4 | (high >> 2 & 3) << 4))
}

/// Columns `32j .. 32j + 32` of a block's row `r`.
fn sub(kind: Kind, block: &[u8], r: usize, j: usize) -> Sub {
    let q = std::array::from_fn(|i| quant(kind, block, r, j, i));
    let d = half_of(block, r);
    let with = |d, m| Sub { q, d, s: [1; 2], m: [m, 0.0] };
    let scales = |start: usize| [0, 1].map(|half| block[start + (2 * j + half) * TILE + r]);
    match kind {
        Kind::Q4_0 => with(d, -8.0 * d),
        Kind::Q5_0 => with(d, -16.0 * d),
        Kind::Q4_1 | Kind::Q5_1 => with(d, half_of(&block[16..], r)),
        Kind::Q8_0 | Kind::IQ4_NL => with(d, 0.0),
        Kind::MXFP4 => {
            let e = block[r];
            let d = f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 });
            with(d, -12.0 * d)
        }
        Kind::IQ4_XS => with(d * f32::from(block[16 + j * TILE + r] as i8), 0.0),
        Kind::Q4_K | Kind::Q5_K => {
            let (s, m) = scale_min(&block[32..], r, j);
            with(d * s, -(half_of(&block[16..], r) * m))
        }
        Kind::Q2_K => {
            let dm = half_of(&block[16..], r);
            let scales = scales(32);
            Sub { q, d, s: scales.map(|s| i32::from(s & 15)), m: scales.map(|s| -(dm * f32::from(s >> 4))) }
        }
        Kind::Q3_K | Kind::Q6_K => {
            let offset = if kind == Kind::Q3_K { -4 } else { -32 };
            let s = scales(16).map(|s| i32::from(s as i8));
            Sub { q, d, s, m: s.map(|s| d * (offset * s) as f32) }
        }
    }
}

/// Column `i` of 32.
fn quant(kind: Kind, block: &[u8], r: usize, j: usize, i: usize) -> i32 {
    // Bits of the column in its byte of a vector per group of columns, and in one vector for all groups.
    let bits = |bytes: &[u8], shift: usize, mask: u8| i32::from(byte(bytes, r, i) >> shift & mask);
    let above = |start: usize| i32::from(byte(&block[start..], r, i % 4) >> (i / 4) & 1);
    let twos =
        |start: usize| i32::from(byte(&block[start + 64 * j + i / 16 * 32..], r, i % 4) >> (2 * (i / 4 % 4)) & 3);
    match kind {
        Kind::Q4_0 => nibble(&block[16..], r, i),
        Kind::Q4_1 => nibble(&block[32..], r, i),
        Kind::Q5_0 => nibble(&block[16..], r, i) | above(144) << 4,
        Kind::Q5_1 => nibble(&block[32..], r, i) | above(160) << 4,
        Kind::Q8_0 => i32::from(byte(&block[16..], r, i) as i8),
        Kind::IQ4_NL => i32::from(iq4_nl::LEVELS[nibble(&block[16..], r, i) as usize]),
        Kind::IQ4_XS => i32::from(iq4_nl::LEVELS[nibble(&block[80 + 128 * j..], r, i) as usize]),
        Kind::MXFP4 => i32::from(mxfp4::LEVELS[nibble(&block[8..], r, i) as usize]) + 12,
        Kind::Q2_K => twos(160),
        Kind::Q3_K => twos(144) | above(656 + 32 * j) << 2,
        Kind::Q4_K => bits(&block[128 + j / 2 * 256..], 4 * (j % 2), 15),
        Kind::Q5_K => bits(&block[128 + j / 2 * 256..], 4 * (j % 2), 15) | above(1152 + 32 * j) << 4,
        Kind::Q6_K => {
            let (nibbles, pairs) = block[144 + j / 2 * 384..][..384].split_at(256);
            let pair = byte(pairs, r, i % 16) >> (4 * (j % 2) + 2 * (i / 16)) & 3;
            bits(nibbles, 4 * (j % 2), 15) | i32::from(pair) << 4
        }
    }
}

/// Halves as floats.
pub(super) fn widen(halves: &[u8], out: &mut [f32]) {
    for (half, out) in halves.as_chunks::<2>().0.iter().zip(out) {
        *out = f16::from_le_bytes(*half).to_f32();
    }
}

/// Floats as little-endian halves.
pub(super) fn narrow(values: &[f32], halves: &mut [u8]) {
    for (value, half) in values.iter().zip(halves.as_chunks_mut::<2>().0) {
        *half = f16::from_f32(*value).to_le_bytes();
    }
}

/// A row as 8-bit integers: per 32 values one scale, `max |x| / 127`, and the sums of the integers.
pub(super) fn quantize(x: &[f32], quants: &mut [i8], blocks: &mut [ActBlock]) {
    const ROUND: f32 = 12_582_912.0; // 1.5 · 2^23: adding it leaves the nearest integer in the low bits.
    let values = x.as_chunks::<QUANT>().0.iter();
    for ((x, q), block) in values.zip(quants.as_chunks_mut::<QUANT>().0).zip(blocks) {
        let most = x.iter().fold(0f32, |most, x| most.max(x.abs()));
        let inverse = if most > 0.0 { 127.0 / most } else { 0.0 };
        for (q, x) in q.iter_mut().zip(x) {
            *q = x.mul_add(inverse, ROUND).to_bits() as i8;
        }
        let sum = |q: &[i8]| q.iter().map(|&q| i32::from(q)).sum::<i32>();
        *block = act_block(most, sum(&q[..QUANT / 2]), sum(&q[QUANT / 2..]));
    }
}

/// From the largest magnitude and the sums of both halves.
#[inline(always)]
pub(super) fn act_block(most: f32, low: i32, high: i32) -> ActBlock {
    let scale = most / 127.0;
    ActBlock { scale, weighted: scale * (low + high) as f32, halves: [scale * low as f32, scale * high as f32] }
}
