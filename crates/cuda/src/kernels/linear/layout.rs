//! How weights lie in device memory: rows repacked so that a warp reads them in 16-byte steps and a group of 2048
//! weights is one contiguous run. `quant.cuh` describes the same bytes and decodes them; nothing else knows them.
//!
//! The size is the file's, plus padding of a row's last group to whole lanes of 64 weights and to 16 bytes.

use tombolo_gguf::TensorType;

/// Weights in a group: 32 lanes of 64.
pub const GROUP: usize = 2048;

/// Whether rows of `ty` can be laid out, and so multiplied with.
pub fn is_supported(ty: TensorType) -> bool {
    matches!(
        ty,
        TensorType::F32
            | TensorType::F16
            | TensorType::BF16
            | TensorType::Q4_0
            | TensorType::Q4_1
            | TensorType::Q8_0
            | TensorType::Q4_K
            | TensorType::Q6_K
    )
}

/// Bytes of one group of quantized weights in which `lanes` lanes are in use.
pub fn group_bytes(ty: TensorType, lanes: usize) -> usize {
    match ty {
        TensorType::Q4_0 => (36 * lanes).next_multiple_of(16),
        TensorType::Q4_1 => (40 * lanes).next_multiple_of(16),
        TensorType::Q8_0 => (68 * lanes).next_multiple_of(16),
        TensorType::Q4_K => 36 * lanes,
        TensorType::Q6_K => 52 * lanes + (lanes / 2).next_multiple_of(16),
        _ => 128 * lanes,
    }
}

/// Bytes of one row of `cols` weights on the device: a multiple of 16.
pub fn row_bytes(ty: TensorType, cols: usize) -> usize {
    match ty {
        TensorType::F32 => (4 * cols).next_multiple_of(16),
        TensorType::F16 | TensorType::BF16 => (2 * cols).next_multiple_of(16),
        _ => {
            let rest = (cols % GROUP).div_ceil(64);
            cols / GROUP * group_bytes(ty, 32) + if rest > 0 { group_bytes(ty, rest) } else { 0 }
        }
    }
}

/// Repacks one row from the file's bytes (`cols` weights of `ty`, whole blocks) into `out`, [`row_bytes`] long.
///
/// # Panics
/// When the lengths do not fit each other, or the type [is not supported](is_supported).
pub fn repack_row(ty: TensorType, raw: &[u8], cols: usize, out: &mut [u8]) {
    assert!(is_supported(ty), "no layout for {}", ty.name());
    assert_eq!(raw.len(), cols / ty.block_len() * ty.block_bytes(), "a row in the file");
    assert_eq!(out.len(), row_bytes(ty, cols), "a row on the device");
    if matches!(ty, TensorType::F32 | TensorType::F16 | TensorType::BF16) {
        out[..raw.len()].copy_from_slice(raw);
        out[raw.len()..].fill(0);
        return;
    }
    let full = GROUP / ty.block_len() * ty.block_bytes();
    for (group, (raw, out)) in raw.chunks(full).zip(out.chunks_mut(group_bytes(ty, 32))).enumerate() {
        let lanes = (cols - group * GROUP).min(GROUP).div_ceil(64);
        match ty {
            TensorType::Q4_K => raw.chunks(144).zip(out.chunks_mut(144)).for_each(|(raw, out)| repack_q4_k(raw, out)),
            TensorType::Q6_K => repack_q6_k(raw, out, lanes),
            TensorType::Q8_0 => repack_q8_0(raw, out, lanes),
            _ => repack_q4(ty, raw, out, lanes),
        }
    }
}

/// Q4_0 and Q4_1: blocks of 32 whose nibbles pair weight `i` with `16 + i`. A lane's two blocks are woven so that its
/// byte `i` pairs weight `i` of the first with weight `i` of the second.
fn repack_q4(ty: TensorType, raw: &[u8], out: &mut [u8], lanes: usize) {
    let scales = ty.block_bytes() - 16;
    // A signed nibble can be multiplied with as it stands: 8 is taken off once, here.
    let flip = if ty == TensorType::Q4_0 { 0x88 } else { 0 };
    out.fill(0);
    for (block, raw) in raw.chunks(scales + 16).enumerate() {
        let (lane, shift) = (block / 2, 4 * (block % 2));
        let nibbles = &raw[scales..];
        for i in 0..16 {
            let byte = nibbles[i] ^ flip;
            out[lane * 16 + i] |= (byte & 15) << shift;
            out[(lanes + lane) * 16 + i] |= (byte >> 4) << shift;
        }
        out[32 * lanes + block * scales..][..scales].copy_from_slice(&raw[..scales]);
    }
}

/// Q8_0: the bytes in four planes of 16 a lane, then the scales.
fn repack_q8_0(raw: &[u8], out: &mut [u8], lanes: usize) {
    out.fill(0);
    for (block, raw) in raw.chunks(34).enumerate() {
        let (lane, half) = (block / 2, block % 2);
        for part in 0..2 {
            let to = ((2 * half + part) * lanes + lane) * 16;
            out[to..to + 16].copy_from_slice(&raw[2 + 16 * part..][..16]);
        }
        out[64 * lanes + block * 2..][..2].copy_from_slice(&raw[..2]);
    }
}

/// Q4_K: only the 6-bit scales and minima move, so that those of two neighbouring sub-blocks are found in one byte
/// place of three words. The nibbles already pair a sub-block with the next.
fn repack_q4_k(raw: &[u8], out: &mut [u8]) {
    out[..4].copy_from_slice(&raw[..4]);
    let packed: &[u8] = &raw[4..16];
    // Formula of the format (ggml): the last four of each have their top two bits above the first four's.
    let scale_min = |j: usize| match j {
        0..4 => (packed[j] & 63, packed[j + 4] & 63),
        _ => ((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4),
    };
    for pair in 0..4 {
        let ((s0, m0), (s1, m1)) = (scale_min(2 * pair), scale_min(2 * pair + 1));
        out[4 + pair] = s0 | (m1 & 3) << 6;
        out[8 + pair] = s1 | (m1 >> 2 & 3) << 6;
        out[12 + pair] = m0 | (m1 >> 4) << 6;
    }
    out[16..].copy_from_slice(&raw[16..]);
}

/// Q6_K: per 64 weights low nibbles and high pairs of bits, placed so that the kernel gets four times the signed value
/// with few shifts; then the 8-bit scales, and the f16 scales of all blocks at the end.
fn repack_q6_k(raw: &[u8], out: &mut [u8], lanes: usize) {
    out.fill(0);
    for (block, raw) in raw.chunks(210).enumerate() {
        let (low, high) = (&raw[..128], &raw[128..192]);
        let to = &mut out[block * 208..][..208];
        for lane in 0..4 {
            for b in 0..32 {
                let (first, second) = (q6_at(low, high, 64 * lane + b), q6_at(low, high, 64 * lane + 32 + b));
                // The second nibble sits four bits below the first, cyclically in its 32-bit word.
                to[32 * lane + b] |= (first & 15) << 2;
                let place = (8 * (b % 4) + 2 + 28) % 32;
                let spread = (u32::from(second & 15)).rotate_left(place as u32);
                for (i, byte) in spread.to_le_bytes().into_iter().enumerate() {
                    to[32 * lane + b / 4 * 4 + i] |= byte;
                }
                // The top bit is flipped: the byte is then a signed number.
                to[128 + 16 * lane + b % 16] |= ((first >> 4) ^ 2) << (6 - 2 * (b / 16));
                to[128 + 16 * lane + b % 16] |= ((second >> 4) ^ 2) << (2 - 2 * (b / 16));
            }
        }
        to[192..208].copy_from_slice(&raw[192..208]);
        out[52 * lanes + 2 * block..][..2].copy_from_slice(&raw[208..210]);
    }
}

/// The unsigned 6-bit value of weight `i` of a Q6_K block.
fn q6_at(low: &[u8], high: &[u8], i: usize) -> u8 {
    let (half, part, l) = (i / 128, i % 128 / 32, i % 32);
    let nibble = low[64 * half + 32 * (part & 1) + l] >> (4 * (part >> 1)) & 15;
    nibble | (high[32 * half + l] >> (2 * part) & 3) << 4
}

#[cfg(test)]
mod tests;
