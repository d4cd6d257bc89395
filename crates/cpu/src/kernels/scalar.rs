//! The scalar tier: what every other tier must give bit for bit, on any processor.

use super::tile::{ActRow, Kind, QUANT, ROWS_MAX, TILE};
use half::f16;

/// The tile kernel of one kind.
pub(super) fn tile(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]; ROWS_MAX]) {
    for (act, out) in acts.iter().zip(out) {
        for (r, out) in out.iter_mut().enumerate() {
            let mut sum = 0f32;
            for (b, block) in tile.chunks_exact(kind.block_bytes()).enumerate() {
                let first = b * kind.block_cols();
                let act = ActRow {
                    quants: &act.quants[first..first + kind.block_cols()],
                    blocks: &act.blocks[first / QUANT..(first + kind.block_cols()) / QUANT],
                };
                sum = match kind {
                    Kind::Q4_0 => q4_0(block, r, &act, sum),
                    Kind::Q4_1 => q4_1(block, r, &act, sum),
                    Kind::Q8_0 => q8_0(block, r, &act, sum),
                    Kind::Q4_K => q4_k(block, r, &act, sum),
                    Kind::Q6_K => q6_k(block, r, &act, sum),
                };
            }
            *out = sum;
        }
    }
}

fn half_of(halves: &[u8], r: usize) -> f32 {
    f16::from_le_bytes([halves[2 * r], halves[2 * r + 1]]).to_f32()
}

/// Byte `i` of row `r` of interleaved bytes.
fn byte(bytes: &[u8], r: usize, i: usize) -> u8 {
    bytes[i / 4 * 4 * TILE + 4 * r + i % 4]
}

/// `Σ q(i) · a[i]`.
fn dot(a: &[i8], q: impl Fn(usize) -> i32) -> i32 {
    a.iter().enumerate().map(|(i, &a)| q(i) * i32::from(a)).sum()
}

fn nibble(bytes: &[u8], r: usize, i: usize) -> i32 {
    let byte = byte(bytes, r, i % 16);
    i32::from(if i < 16 { byte & 15 } else { byte >> 4 })
}

fn q4_0(block: &[u8], r: usize, act: &ActRow, sum: f32) -> f32 {
    let a = act.blocks[0];
    let whole = dot(act.quants, |i| nibble(&block[16..], r, i)) - 8 * (a.low + a.high);
    (whole as f32).mul_add(half_of(block, r) * a.scale, sum)
}

fn q4_1(block: &[u8], r: usize, act: &ActRow, sum: f32) -> f32 {
    let a = act.blocks[0];
    let whole = dot(act.quants, |i| nibble(&block[32..], r, i));
    let sum = (whole as f32).mul_add(half_of(block, r) * a.scale, sum);
    half_of(&block[16..], r).mul_add(a.weighted, sum)
}

fn q8_0(block: &[u8], r: usize, act: &ActRow, sum: f32) -> f32 {
    let whole = dot(act.quants, |i| i32::from(byte(&block[16..], r, i) as i8));
    (whole as f32).mul_add(half_of(block, r) * act.blocks[0].scale, sum)
}

fn q4_k(block: &[u8], r: usize, act: &ActRow, mut sum: f32) -> f32 {
    let (d, dm) = (half_of(block, r), half_of(&block[16..], r));
    for (j, a) in act.blocks.iter().enumerate() {
        let (s, m) = (i32::from(block[32 + j * TILE + r]), i32::from(block[96 + j * TILE + r]));
        let bytes = &block[160 + j / 2 * 256..][..256];
        let whole = dot(&act.quants[j * QUANT..][..QUANT], |i| i32::from(byte(bytes, r, i) >> (4 * (j % 2)) & 15));
        sum = ((whole * s) as f32).mul_add(d * a.scale, sum);
        sum = (-((m * (a.low + a.high)) as f32)).mul_add(dm * a.scale, sum);
    }
    sum
}

fn q6_k(block: &[u8], r: usize, act: &ActRow, mut sum: f32) -> f32 {
    let d = half_of(block, r);
    for (j, a) in act.blocks.iter().enumerate() {
        let (nibbles, pairs) = block[144 + j / 2 * 384..][..384].split_at(256);
        let mut whole = 0;
        for (half, low) in [a.low, a.high].into_iter().enumerate() {
            let s = i32::from(block[16 + (2 * j + half) * TILE + r] as i8);
            let shift = 2 * (2 * (j % 2) + half);
            let q = |i: usize| {
                let nibble = byte(nibbles, r, 16 * half + i) >> (4 * (j % 2)) & 15;
                i32::from(nibble | (byte(pairs, r, i) >> shift & 3) << 4)
            };
            whole += s * (dot(&act.quants[j * QUANT + 16 * half..][..16], q) - 32 * low);
        }
        sum = (whole as f32).mul_add(d * a.scale, sum);
    }
    sum
}

/// Halves as floats.
pub(super) fn widen(halves: &[u8], out: &mut [f32]) {
    for (half, out) in halves.as_chunks::<2>().0.iter().zip(out) {
        *out = f16::from_le_bytes(*half).to_f32();
    }
}

/// Floats as halves.
pub(super) fn narrow(values: &[f32], halves: &mut [u8]) {
    for (value, half) in values.iter().zip(halves.as_chunks_mut::<2>().0) {
        *half = f16::from_f32(*value).to_le_bytes();
    }
}
