//! Repacks quantized rows of a file into the tiles that the kernels read (see `kernels/tile.rs`).

use crate::kernels::{Kind, TILE};
use tombolo_gguf::TensorType;
use tombolo_gguf::quant::{q4_k, q6_k};

/// The tile layout for a type, if its products are computed in integers.
pub(crate) fn kind_of(ty: TensorType) -> Option<Kind> {
    match ty {
        TensorType::Q4_0 => Some(Kind::Q4_0),
        TensorType::Q4_1 => Some(Kind::Q4_1),
        TensorType::Q8_0 => Some(Kind::Q8_0),
        TensorType::Q4_K => Some(Kind::Q4_K),
        TensorType::Q6_K => Some(Kind::Q6_K),
        _ => None,
    }
}

/// Bytes of one tile of `cols` columns.
pub(crate) fn tile_bytes(kind: Kind, cols: usize) -> usize {
    cols / kind.block_cols() * kind.block_bytes()
}

/// Writes one tile, which must be zeroed, from up to 8 rows of blocks as the file has them. Missing rows stay zero.
pub(crate) fn pack_tile(kind: Kind, rows: &[&[u8]], tile: &mut [u8]) {
    for (r, row) in rows.iter().enumerate().take(TILE) {
        let blocks = tile.chunks_exact_mut(kind.block_bytes());
        match kind {
            Kind::Q4_0 => blocks.zip(row.as_chunks::<18>().0).for_each(|(out, block)| {
                put(&mut out[..16], r, &block[..2]);
                interleave(&mut out[16..], r, &block[2..]);
            }),
            Kind::Q4_1 => blocks.zip(row.as_chunks::<20>().0).for_each(|(out, block)| {
                put(&mut out[..16], r, &block[..2]);
                put(&mut out[16..32], r, &block[2..4]);
                interleave(&mut out[32..], r, &block[4..]);
            }),
            Kind::Q8_0 => blocks.zip(row.as_chunks::<34>().0).for_each(|(out, block)| {
                put(&mut out[..16], r, &block[..2]);
                interleave(&mut out[16..], r, &block[2..]);
            }),
            Kind::Q4_K => blocks.zip(row.as_chunks().0).for_each(|(out, block)| pack_q4_k(block, r, out)),
            Kind::Q6_K => blocks.zip(row.as_chunks().0).for_each(|(out, block)| pack_q6_k(block, r, out)),
        }
    }
}

fn pack_q4_k(block: &[u8; q4_k::BYTES], r: usize, out: &mut [u8]) {
    put(&mut out[..16], r, &block[..2]);
    put(&mut out[16..32], r, &block[2..4]);
    for j in 0..q4_k::GROUPS {
        let (s, m) = q4_k::scale_min(q4_k::packed_scales(block), j);
        out[32 + j * TILE + r] = (s & 15) | (m & 15) << 4;
        out[96 + j / 2 * TILE + r] |= ((s >> 4) | (m >> 4) << 2) << (4 * (j % 2));
    }
    interleave(&mut out[128..], r, &block[16..]);
}

fn pack_q6_k(block: &[u8; q6_k::BYTES], r: usize, out: &mut [u8]) {
    put(&mut out[..16], r, &block[208..]);
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
