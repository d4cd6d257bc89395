//! The scalar tier: what every other tier must give bit for bit, on any processor. Loops over small arrays, which
//! compilers turn into whatever vector instructions there are.

use super::panel::{Panel, PanelSub};
use super::tile::{ActBlock, ActRow, Class, Kind, QUANT, TILE};
use half::f16;
use tombolo_gguf::quant::{iq4_nl, mxfp4};

/// [`tile`] for some tiles.
pub(super) fn block(kind: Kind, tiles: &[&[u8]], acts: &[ActRow], _: &mut Panel, out: &mut [[f32; TILE]]) {
    for (tile, out) in tiles.iter().zip(out.chunks_exact_mut(acts.len())) {
        self::tile(kind, tile, acts, out);
    }
}

/// `out[r][row of the tile] = tile · act`.
pub(super) fn tile(kind: Kind, tile: &[u8], acts: &[ActRow], out: &mut [[f32; TILE]]) {
    out.fill([0.0; TILE]);
    let mut sub = PanelSub::ZERO;
    for (b, block) in tile.chunks_exact(kind.block_bytes()).enumerate() {
        let subs = kind.block_cols() / QUANT;
        for j in 0..subs {
            expand(kind, block, j, &mut sub);
            for (act, out) in acts.iter().zip(&mut *out) {
                multiply(kind.class(), &sub, act, b * subs + j, out);
            }
        }
    }
}

/// Adds 32 columns of all rows of the tile, times the row's sub-block `at`, to `sums`.
fn multiply(class: Class, sub: &PanelSub, act: &ActRow, at: usize, sums: &mut [f32; TILE]) {
    let a = &act.blocks[at];
    let q = act.quants[at * QUANT..][..QUANT].as_chunks::<4>().0;
    match class {
        Class::Offset { .. } => {
            let whole = dots(&sub.quants, q, i32::from);
            for r in 0..TILE {
                let sum = (whole[r] as f32).mul_add(sub.d[r] * a.scale, sums[r]);
                sums[r] = sub.m[0][r].mul_add(a.weighted, sum);
            }
        }
        Class::Halves { .. } => {
            let whole = [dots(&sub.quants[..4], &q[..4], i32::from), dots(&sub.quants[4..], &q[4..], i32::from)];
            for r in 0..TILE {
                let scaled = |half: usize| i32::from(sub.s[half][2 * r]) * whole[half][r];
                let sum = ((scaled(0) + scaled(1)) as f32).mul_add(sub.d[r] * a.scale, sums[r]);
                let sum = sub.m[0][r].mul_add(a.halves[0], sum);
                sums[r] = sub.m[1][r].mul_add(a.halves[1], sum);
            }
        }
        Class::Signed => {
            let whole = dots(&sub.quants, q, |q| i32::from(q as i8));
            for r in 0..TILE {
                sums[r] = (whole[r] as f32).mul_add(sub.d[r] * a.scale, sums[r]);
            }
        }
    }
}

/// Per row `Σ q·a` over groups of columns.
#[inline(always)]
fn dots(groups: &[[u8; 4 * TILE]], a: &[[i8; 4]], value: impl Fn(u8) -> i32) -> [i32; TILE] {
    let mut products = [0i32; 4 * TILE];
    for (group, a) in groups.iter().zip(a) {
        for i in 0..4 * TILE {
            products[i] += value(group[i]) * i32::from(a[i % 4]);
        }
    }
    let mut sums = [0; TILE];
    for (sum, products) in sums.iter_mut().zip(products.as_chunks::<4>().0) {
        *sum = products[0] + products[1] + products[2] + products[3];
    }
    sums
}

/// Eight halves.
fn halves(bytes: &[u8]) -> [f32; TILE] {
    let mut out = [0.0; TILE];
    widen(&bytes[..2 * TILE], &mut out);
    out
}

/// Sub-block `j`'s 6-bit scales, or offsets, of all rows.
fn six(scales: &[u8], j: usize, offsets: bool) -> [f32; TILE] {
    let (low, high) = (&scales[j * TILE..], &scales[64 + j / 2 * TILE..]);
    let by = usize::from(offsets);
    std::array::from_fn(|r| f32::from(low[r] >> (4 * by) & 15 | (high[r] >> (4 * (j % 2) + 2 * by) & 3) << 4))
}

/// Columns `32j .. 32j + 32` of a block, in the form that all kinds share.
fn expand(kind: Kind, block: &[u8], j: usize, sub: &mut PanelSub) {
    quants(kind, block, j, &mut sub.quants);
    if kind == Kind::MXFP4 {
        let power = |e: u8| f32::from_bits(if e < 2 { 0x0020_0000 << e } else { u32::from(e - 1) << 23 });
        sub.d = std::array::from_fn(|r| power(block[r]));
        sub.m[0] = sub.d.map(|d| -12.0 * d);
        return;
    }
    let d = halves(block);
    sub.d = d;
    match kind {
        Kind::Q4_0 => sub.m[0] = d.map(|d| -8.0 * d),
        Kind::Q5_0 => sub.m[0] = d.map(|d| -16.0 * d),
        Kind::Q4_1 | Kind::Q5_1 => sub.m[0] = halves(&block[16..]),
        Kind::Q8_0 | Kind::IQ4_NL | Kind::MXFP4 => {}
        Kind::IQ4_XS => (0..TILE).for_each(|r| sub.d[r] = d[r] * f32::from(block[16 + j * TILE + r] as i8)),
        Kind::Q4_K | Kind::Q5_K => {
            let (dm, s, m) = (halves(&block[16..]), six(&block[32..], j, false), six(&block[32..], j, true));
            for r in 0..TILE {
                (sub.d[r], sub.m[0][r]) = (d[r] * s[r], -(dm[r] * m[r]));
            }
        }
        Kind::Q2_K => {
            let dm = halves(&block[16..]);
            for (half, r) in (0..2).flat_map(|half| (0..TILE).map(move |r| (half, r))) {
                let scale = block[32 + (2 * j + half) * TILE + r];
                sub.s[half][2 * r] = i16::from(scale & 15);
                sub.m[half][r] = -(dm[r] * f32::from(scale >> 4));
            }
        }
        Kind::Q3_K | Kind::Q6_K => {
            let offset = if kind == Kind::Q3_K { -4 } else { -32 };
            for (half, r) in (0..2).flat_map(|half| (0..TILE).map(move |r| (half, r))) {
                let s = i16::from(block[16 + (2 * j + half) * TILE + r] as i8);
                sub.s[half][2 * r] = s;
                sub.m[half][r] = d[r] * f32::from(offset * s);
            }
        }
    }
}

/// A group of columns: what is in some bits of 32 bytes.
#[inline(always)]
fn group(bytes: &[u8], shift: usize, mask: u8) -> [u8; 4 * TILE] {
    let mut out = [0; 4 * TILE];
    for (out, byte) in out.iter_mut().zip(&bytes[..4 * TILE]) {
        *out = byte >> shift & mask;
    }
    out
}

/// Further bits above the lower `width`.
#[inline(always)]
fn above(mut low: [u8; 4 * TILE], width: usize, high: [u8; 4 * TILE]) -> [u8; 4 * TILE] {
    for (low, high) in low.iter_mut().zip(high) {
        *low |= high << width;
    }
    low
}

fn quants(kind: Kind, block: &[u8], j: usize, out: &mut [[u8; 4 * TILE]; 8]) {
    for (g, out) in out.iter_mut().enumerate() {
        // Nibbles of 32 columns in 128 bytes; of two sub-blocks in 256; two bits in 64 bytes a sub-block; one in 32.
        let nibbles = |start: usize| group(&block[start + 32 * (g % 4)..], 4 * (g / 4), 15);
        let paired = |start: usize| group(&block[start + j / 2 * 256 + 32 * g..], 4 * (j % 2), 15);
        let twos = |start: usize| group(&block[start + 64 * j + 32 * (g / 4)..], 2 * (g % 4), 3);
        let ones = |start: usize| group(&block[start..], g, 1);
        let levels = |start: usize, levels: &[i8; 16]| nibbles(start).map(|q| levels[usize::from(q & 15)] as u8);
        *out = match kind {
            Kind::Q4_0 => nibbles(16),
            Kind::Q4_1 => nibbles(32),
            Kind::Q5_0 => above(nibbles(16), 4, ones(144)),
            Kind::Q5_1 => above(nibbles(32), 4, ones(160)),
            Kind::Q8_0 => group(&block[16 + 32 * g..], 0, 255),
            Kind::IQ4_NL => levels(16, &iq4_nl::LEVELS),
            Kind::IQ4_XS => levels(80 + 128 * j, &iq4_nl::LEVELS),
            Kind::MXFP4 => levels(8, &mxfp4::LEVELS.map(|level| level + 12)),
            Kind::Q2_K => twos(160),
            Kind::Q3_K => above(twos(144), 2, ones(656 + 32 * j)),
            Kind::Q4_K => paired(128),
            Kind::Q5_K => above(paired(128), 4, ones(1152 + 32 * j)),
            Kind::Q6_K => {
                let chunk = &block[144 + j / 2 * 384..];
                let high = group(&chunk[256 + 32 * (g % 4)..], 4 * (j % 2) + 2 * (g / 4), 3);
                above(group(&chunk[32 * g..], 4 * (j % 2), 15), 4, high)
            }
        };
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
