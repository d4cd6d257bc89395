//! The scalar tier: what every other tier must give bit for bit, on any processor.

use super::panel::Panel;
use super::tile::{ActRow, Class, Kind, QUANT, TILE};
use half::f16;

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

/// The quants of 32 columns.
fn columns(quant: impl Fn(usize) -> i32) -> [i32; QUANT] {
    std::array::from_fn(quant)
}

/// Columns `32j .. 32j + 32` of a block's row `r`.
fn sub(kind: Kind, block: &[u8], r: usize, j: usize) -> Sub {
    let d = half_of(block, r);
    match kind {
        Kind::Q4_0 => Sub { q: columns(|i| nibble(&block[16..], r, i)), d, s: [1; 2], m: [-8.0 * d, 0.0] },
        Kind::Q4_1 => {
            Sub { q: columns(|i| nibble(&block[32..], r, i)), d, s: [1; 2], m: [half_of(&block[16..], r), 0.0] }
        }
        Kind::Q8_0 => Sub { q: columns(|i| i32::from(byte(&block[16..], r, i) as i8)), d, s: [1; 2], m: [0.0; 2] },
        Kind::Q4_K => {
            let (s, m) = scale_min(&block[32..], r, j);
            let bytes = &block[128 + j / 2 * 256..][..256];
            let q = columns(|i| i32::from(byte(bytes, r, i) >> (4 * (j % 2)) & 15));
            Sub { q, d: d * s, s: [1; 2], m: [-(half_of(&block[16..], r) * m), 0.0] }
        }
        Kind::Q6_K => {
            let (nibbles, pairs) = block[144 + j / 2 * 384..][..384].split_at(256);
            let s = [0, 1].map(|half| i32::from(block[16 + (2 * j + half) * TILE + r] as i8));
            let q = columns(|i| {
                let nibble = byte(nibbles, r, i) >> (4 * (j % 2)) & 15;
                let shift = 2 * (2 * (j % 2) + i / 16);
                i32::from(nibble | (byte(pairs, r, i % 16) >> shift & 3) << 4)
            });
            Sub { q, d, s, m: s.map(|s| d * (-32 * s) as f32) }
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
