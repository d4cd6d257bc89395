//! Repacks quantized rows of a file into the tiles that the kernels read (see `kernels/tile.rs`).

use crate::kernels::{Kind, TILE};
use tombolo_gguf::TensorType;
use tombolo_gguf::quant::{iq4_xs, q2_k, q3_k, q4_k, q5_0, q5_1, q5_k, q6_k};

/// The tile layout for a type, if its products are computed in integers.
pub(crate) fn kind_of(ty: TensorType) -> Option<Kind> {
    Kind::ALL.into_iter().find(|&kind| type_of(kind) == ty)
}

/// The type that a layout is for.
pub(crate) fn type_of(kind: Kind) -> TensorType {
    match kind {
        Kind::Q4_0 => TensorType::Q4_0,
        Kind::Q4_1 => TensorType::Q4_1,
        Kind::Q5_0 => TensorType::Q5_0,
        Kind::Q5_1 => TensorType::Q5_1,
        Kind::Q8_0 => TensorType::Q8_0,
        Kind::IQ4_NL => TensorType::IQ4_NL,
        Kind::MXFP4 => TensorType::MXFP4,
        Kind::Q2_K => TensorType::Q2_K,
        Kind::Q3_K => TensorType::Q3_K,
        Kind::Q4_K => TensorType::Q4_K,
        Kind::Q5_K => TensorType::Q5_K,
        Kind::Q6_K => TensorType::Q6_K,
        Kind::IQ4_XS => TensorType::IQ4_XS,
    }
}

/// Bytes of one tile of `cols` columns.
pub(crate) fn tile_bytes(kind: Kind, cols: usize) -> usize {
    cols / kind.block_cols() * kind.block_bytes()
}

/// Writes one tile, which must be zeroed, from up to 8 rows of blocks as the file has them. Missing rows stay zero.
pub(crate) fn pack_tile(kind: Kind, rows: &[&[u8]], tile: &mut [u8]) {
    let in_file = type_of(kind).block_bytes();
    for (r, row) in rows.iter().enumerate().take(TILE) {
        for (block, out) in row.chunks_exact(in_file).zip(tile.chunks_exact_mut(kind.block_bytes())) {
            pack_block(kind, block, r, out);
        }
    }
}

/// Puts row `r`'s block among those of the other rows.
fn pack_block(kind: Kind, block: &[u8], r: usize, out: &mut [u8]) {
    match kind {
        Kind::Q4_0 | Kind::Q8_0 | Kind::IQ4_NL => {
            put(out, r, &block[..2]);
            interleave(&mut out[16..], r, &block[2..]);
        }
        Kind::Q4_1 => {
            put(out, r, &block[..2]);
            put(&mut out[16..], r, &block[2..4]);
            interleave(&mut out[32..], r, &block[4..]);
        }
        Kind::MXFP4 => {
            out[r] = block[0];
            interleave(&mut out[8..], r, &block[1..]);
        }
        Kind::Q5_0 => {
            put(out, r, &block[..2]);
            let block: &[u8; q5_0::BYTES] = whole(block);
            fives(&q5_0::quants(block).map(|q| (q + 16) as u8), r, &mut out[16..]);
        }
        Kind::Q5_1 => {
            put(out, r, &block[..2]);
            put(&mut out[16..], r, &block[2..4]);
            fives(&q5_1::quants(whole(block)), r, &mut out[32..]);
        }
        Kind::Q4_K => {
            put(out, r, &block[..2]);
            put(&mut out[16..], r, &block[2..4]);
            sixes(q4_k::packed_scales(whole(block)), r, &mut out[32..]);
            interleave(&mut out[128..], r, &block[16..]);
        }
        Kind::Q5_K => pack_q5_k(whole(block), r, out),
        Kind::Q2_K => pack_q2_k(whole(block), r, out),
        Kind::Q3_K => pack_q3_k(whole(block), r, out),
        Kind::Q6_K => pack_q6_k(whole(block), r, out),
        Kind::IQ4_XS => {
            put(out, r, &block[..2]);
            for (j, s) in iq4_xs::scales(whole(block)).iter().enumerate() {
                out[16 + j * TILE + r] = *s as u8;
            }
            interleave(&mut out[80..], r, &block[8..]);
        }
    }
}

fn whole<const N: usize>(block: &[u8]) -> &[u8; N] {
    // Cannot fail: rows are whole blocks, which the program builder has checked.
    block.first_chunk().unwrap_or_else(|| panic!("a block of {} bytes, not {N}", block.len()))
}

fn pack_q5_k(block: &[u8; q5_k::BYTES], r: usize, out: &mut [u8]) {
    put(out, r, &block[..2]);
    put(&mut out[16..], r, &block[2..4]);
    sixes(q5_k::packed_scales(block), r, &mut out[32..]);
    interleave(&mut out[128..], r, &block[48..]);
    for (j, q) in q5_k::quants(block).as_chunks::<32>().0.iter().enumerate() {
        bit_of_groups(q, 4, r, &mut out[1152 + 32 * j..]);
    }
}

fn pack_q2_k(block: &[u8; q2_k::BYTES], r: usize, out: &mut [u8]) {
    put(out, r, &block[80..82]);
    put(&mut out[16..], r, &block[82..84]);
    for j in 0..q2_k::GROUPS {
        let (s, m) = q2_k::scale_min(block, j);
        out[32 + j * TILE + r] = s | m << 4;
    }
    twos(&q2_k::quants(block), r, &mut out[160..]);
}

fn pack_q3_k(block: &[u8; q3_k::BYTES], r: usize, out: &mut [u8]) {
    put(out, r, &block[108..]);
    for (j, s) in q3_k::scales(block).iter().enumerate() {
        out[16 + j * TILE + r] = *s as u8;
    }
    let q = q3_k::quants(block).map(|q| (q + 4) as u8);
    twos(&q, r, &mut out[144..]);
    for (j, q) in q.as_chunks::<32>().0.iter().enumerate() {
        bit_of_groups(q, 2, r, &mut out[656 + 32 * j..]);
    }
}

fn pack_q6_k(block: &[u8; q6_k::BYTES], r: usize, out: &mut [u8]) {
    put(out, r, &block[208..]);
    for (j, s) in q6_k::scales(block).iter().enumerate() {
        out[16 + j * TILE + r] = *s as u8;
    }
    let q = q6_k::quants(block).map(|q| (q + 32) as u8);
    for (q, out) in q.as_chunks::<64>().0.iter().zip(out[144..].chunks_exact_mut(384)) {
        let nibbles: [u8; 32] = std::array::from_fn(|i| (q[i] & 15) | (q[32 + i] & 15) << 4);
        let pairs: [u8; 16] = std::array::from_fn(|i| {
            [q[i], q[16 + i], q[32 + i], q[48 + i]].iter().enumerate().map(|(f, q)| (q >> 4) << (2 * f)).sum()
        });
        interleave(&mut out[..256], r, &nibbles);
        interleave(&mut out[256..], r, &pairs);
    }
}

/// 32 quants of 5 bits: nibbles, then the fifth bits.
fn fives(q: &[u8; 32], r: usize, out: &mut [u8]) {
    let nibbles: [u8; 16] = std::array::from_fn(|i| (q[i] & 15) | (q[16 + i] & 15) << 4);
    interleave(&mut out[..128], r, &nibbles);
    bit_of_groups(q, 4, r, &mut out[128..]);
}

/// The 6-bit scales of eight sub-blocks: lower parts, then upper ones.
fn sixes(packed: &[u8; 12], r: usize, out: &mut [u8]) {
    for j in 0..q4_k::GROUPS {
        let (s, m) = q4_k::scale_min(packed, j);
        out[j * TILE + r] = (s & 15) | (m & 15) << 4;
        out[64 + j / 2 * TILE + r] |= ((s >> 4) | (m >> 4) << 2) << (4 * (j % 2));
    }
}

/// The lower two bits of 256 quants, 64 bytes per 32 of all rows.
fn twos(q: &[u8; 256], r: usize, out: &mut [u8]) {
    for (q, out) in q.as_chunks::<16>().0.iter().zip(out.chunks_exact_mut(4 * TILE)) {
        let packed: [u8; 4] = std::array::from_fn(|i| (0..4).map(|g| (q[4 * g + i] & 3) << (2 * g)).sum());
        interleave(out, r, &packed);
    }
}

/// Bit `bit` of 32 quants: that of group g in bit g.
fn bit_of_groups(q: &[u8; 32], bit: usize, r: usize, out: &mut [u8]) {
    let packed: [u8; 4] = std::array::from_fn(|i| (0..8).map(|g| (q[4 * g + i] >> bit & 1) << g).sum());
    interleave(&mut out[..4 * TILE], r, &packed);
}

/// Puts row `r`'s value among the 8 rows' values.
fn put(values: &mut [u8], r: usize, value: &[u8]) {
    values[r * value.len()..][..value.len()].copy_from_slice(value);
}

/// Spreads a row's bytes, four at a time, over the interleaved rows.
fn interleave(out: &mut [u8], r: usize, bytes: &[u8]) {
    for (group, bytes) in out.chunks_exact_mut(4 * TILE).zip(bytes.chunks_exact(4)) {
        group[4 * r..][..4].copy_from_slice(bytes);
    }
}
