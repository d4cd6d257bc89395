//! Scalar codecs, one file per block type: plain, without allocation, and bit for bit what the reference
//! implementations compute. They are the oracle for quick kernels, not quick themselves.
//!
//! Every block module has `LEN` (values), `BYTES`, `decode`, mostly `encode`, and what a repacker needs: a block's scales
//! and its integers without the scales applied. The layouts are those of the GGML project's block structures; encoding
//! rounds as its Python package `gguf` does where that encodes, else as its C library does without importance data.

pub mod bf16;
pub mod f16;
pub mod f32;
pub mod iq4_nl;
pub mod iq4_xs;
mod lines;
pub mod mxfp4;
pub mod q2_k;
pub mod q3_k;
pub mod q4_0;
pub mod q4_1;
pub mod q4_k;
pub mod q5_0;
pub mod q5_1;
pub mod q5_k;
pub mod q6_k;
pub mod q8_0;

use crate::TensorType;

/// Why blocks cannot be decoded or values not encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum QuantError {
    #[error("blocks of type {ty} cannot be read or written yet")]
    Unsupported { ty: TensorType },
    #[error("blocks of type {ty} can be read but not written yet")]
    ReadOnly { ty: TensorType },
    #[error("{bytes} bytes are not the blocks of {values} values of type {ty}")]
    Length { ty: TensorType, bytes: usize, values: usize },
    #[error("{values} values are no whole number of blocks of type {ty}")]
    Partial { ty: TensorType, values: usize },
    #[error("value {index} is not a finite number and has no place in a block of type {ty}")]
    NotFinite { ty: TensorType, index: usize },
}

/// Decodes whole blocks: `bytes` holds exactly the blocks of `out.len()` values.
///
/// # Errors
/// A type without a codec; lengths that do not match.
pub fn decode(ty: TensorType, bytes: &[u8], out: &mut [f32]) -> Result<(), QuantError> {
    let codec = codec(ty).ok_or(QuantError::Unsupported { ty })?;
    let values = out.len();
    if !values.is_multiple_of(ty.block_len()) || bytes.len() != values / ty.block_len() * ty.block_bytes() {
        return Err(QuantError::Length { ty, bytes: bytes.len(), values });
    }
    (codec.decode)(bytes, out);
    Ok(())
}

/// Encodes whole blocks and appends them to `out`.
///
/// # Errors
/// A type without an encoder; values that fill no whole number of blocks; a value that is not finite, where blocks share
/// a scale.
pub fn encode(ty: TensorType, values: &[f32], out: &mut Vec<u8>) -> Result<(), QuantError> {
    let codec = codec(ty).ok_or(QuantError::Unsupported { ty })?;
    let encode = codec.encode.ok_or(QuantError::ReadOnly { ty })?;
    if !values.len().is_multiple_of(ty.block_len()) {
        return Err(QuantError::Partial { ty, values: values.len() });
    }
    if ty.block_len() > 1
        && let Some(index) = values.iter().position(|v| !v.is_finite())
    {
        return Err(QuantError::NotFinite { ty, index });
    }
    let start = out.len();
    out.resize(start + values.len() / ty.block_len() * ty.block_bytes(), 0);
    encode(values, &mut out[start..]);
    Ok(())
}

/// One type over whole blocks of matching number; all can be decoded.
pub(crate) struct Codec {
    decode: fn(&[u8], &mut [f32]),
    encode: Option<Encode>,
}

type Encode = fn(&[f32], &mut [u8]);

macro_rules! decode_with {
    ($module:ident) => {
        |bytes, out| {
            let blocks = bytes.as_chunks::<{ $module::BYTES }>().0;
            for (block, values) in blocks.iter().zip(out.as_chunks_mut::<{ $module::LEN }>().0) {
                $module::decode(block, values);
            }
        }
    };
}

macro_rules! codec_of {
    ($module:ident) => {
        Some(Codec {
            decode: decode_with!($module),
            encode: Some(|values, out| {
                let groups = values.as_chunks::<{ $module::LEN }>().0;
                for (values, block) in groups.iter().zip(out.as_chunks_mut::<{ $module::BYTES }>().0) {
                    $module::encode(values, block);
                }
            }),
        })
    };
}

macro_rules! decoder_of {
    ($module:ident) => {
        Some(Codec { decode: decode_with!($module), encode: None })
    };
}

/// The codec of a type, where there is one. What it knows is what [`TensorType::is_supported`] says.
pub(crate) fn codec(ty: TensorType) -> Option<Codec> {
    match ty {
        TensorType::F32 => codec_of!(f32),
        TensorType::F16 => codec_of!(f16),
        TensorType::BF16 => codec_of!(bf16),
        TensorType::Q4_0 => codec_of!(q4_0),
        TensorType::Q4_1 => codec_of!(q4_1),
        TensorType::Q5_0 => codec_of!(q5_0),
        TensorType::Q5_1 => codec_of!(q5_1),
        TensorType::Q8_0 => codec_of!(q8_0),
        TensorType::Q2_K => decoder_of!(q2_k),
        TensorType::Q3_K => decoder_of!(q3_k),
        TensorType::Q4_K => codec_of!(q4_k),
        TensorType::Q5_K => codec_of!(q5_k),
        TensorType::Q6_K => codec_of!(q6_k),
        TensorType::IQ4_NL => codec_of!(iq4_nl),
        TensorType::IQ4_XS => codec_of!(iq4_xs),
        TensorType::MXFP4 => codec_of!(mxfp4),
        _ => None,
    }
}

/// The half-precision number at `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// Stores `value` at `at` in half precision, rounded to nearest, ties to even.
fn put_half(block: &mut [u8], at: usize, value: f32) {
    block[at..at + 2].copy_from_slice(&half::f16::from_f32(value).to_le_bytes());
}

/// `1 / d`, and 0 for 0.
fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// Rounds to nearest, ties to even, into `least ..= most`.
fn nearest(value: f32, least: i32, most: i32) -> i32 {
    (value.round_ties_even() as i32).clamp(least, most)
}

/// The nibbles of 16 bytes in the order of Q4_0 and its kin: the low ones are values 0 to 15, the high ones 16 to 31.
fn split_nibbles(packed: &[u8; 16]) -> [u8; 32] {
    std::array::from_fn(|i| if i < 16 { packed[i] & 15 } else { packed[i - 16] >> 4 })
}

/// The reverse of [`split_nibbles`].
fn join_nibbles(values: &[u8; 32], packed: &mut [u8]) {
    for (i, byte) in packed.iter_mut().enumerate() {
        *byte = values[i] | values[i + 16] << 4;
    }
}

/// The 5-bit integers of Q5_0 and Q5_1: 32 high bits, then nibbles in the order of Q4_0.
fn split_fives(packed: &[u8; 20]) -> [u8; 32] {
    let (high, low) = packed.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
    let high = u32::from_le_bytes(*high);
    let low = split_nibbles(low.first_chunk().unwrap_or(&[0; 16]));
    std::array::from_fn(|i| low[i] | ((high >> i & 1) as u8) << 4)
}

/// The reverse of [`split_fives`].
fn join_fives(values: &[u8; 32], packed: &mut [u8]) {
    let high = values.iter().enumerate().fold(0u32, |bits, (i, v)| bits | u32::from(v >> 4) << i);
    packed[..4].copy_from_slice(&high.to_le_bytes());
    join_nibbles(&values.map(|v| v & 15), &mut packed[4..]);
}
