//! The codecs against blocks of the reference implementations, bit for bit, and against laws of their own.
//! `tests/data/blocks.bin` comes from `tools/reference/quant_blocks.py`, which describes its layout.

use proptest::prelude::*;
use std::collections::HashSet;
use tombolo_gguf::TensorType;
use tombolo_gguf::quant::{self, QuantError};

const BLOCKS: &[u8] = include_bytes!("data/blocks.bin");
const DECODE: u32 = 0;
/// Types without an encoder.
const READ_ONLY: [TensorType; 2] = [TensorType::Q2_K, TensorType::Q3_K];

/// Types that can be encoded.
fn writable() -> impl Iterator<Item = TensorType> {
    TensorType::ALL.iter().copied().filter(|t| t.is_supported() && !READ_ONLY.contains(t))
}

struct Record {
    ty: TensorType,
    kind: u32,
    values: Vec<f32>,
    bytes: Vec<u8>,
}

fn records() -> Vec<Record> {
    let (mut rest, mut records) = (BLOCKS, Vec::<Record>::new());
    let mut take = |n: usize| {
        let (head, tail) = rest.split_at(n);
        rest = tail;
        (head, tail.is_empty())
    };
    loop {
        let (head, _) = take(16);
        let field = |i: usize| u32::from_le_bytes(head[4 * i..4 * i + 4].try_into().unwrap());
        let (ty, kind) = (TensorType::from_id(field(0)).unwrap(), field(1));
        let (values, _) = take(4 * field(2) as usize);
        let (bytes, last) = take(field(3) as usize);
        let mut values: Vec<f32> = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        if values.is_empty() {
            values = records.last().unwrap().values.clone();
        }
        records.push(Record { ty, kind, values, bytes: bytes.to_vec() });
        if last {
            return records;
        }
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn decodes_what_the_reference_decodes() {
    let mut seen = HashSet::new();
    for r in records().iter().filter(|r| r.kind == DECODE) {
        let mut out = vec![0.0; r.values.len()];
        quant::decode(r.ty, &r.bytes, &mut out).unwrap();
        assert_eq!(bits(&out), bits(&r.values), "{}", r.ty);
        seen.insert(r.ty);
    }
    let supported: HashSet<_> = TensorType::ALL.iter().copied().filter(|t| t.is_supported()).collect();
    assert_eq!(seen, supported, "every supported type has golden blocks");
}

#[test]
fn encodes_what_the_reference_encodes() {
    let mut seen = HashSet::from([TensorType::F32]);
    for r in records().iter().filter(|r| r.kind != DECODE) {
        let mut out = Vec::new();
        quant::encode(r.ty, &r.values, &mut out).unwrap();
        let size = r.ty.block_bytes();
        for (i, (got, want)) in out.chunks(size).zip(r.bytes.chunks(size)).enumerate() {
            assert_eq!(got, want, "{}, block {i}", r.ty);
        }
        assert_eq!(out.len(), r.bytes.len());
        seen.insert(r.ty);
    }
    seen.extend(READ_ONLY);
    assert_eq!(seen.len(), TensorType::ALL.iter().filter(|t| t.is_supported()).count());
}

#[test]
fn every_half_survives_a_round_trip() {
    for ty in [TensorType::F16, TensorType::BF16] {
        for bits in 0..=u16::MAX {
            let mut value = [0.0];
            quant::decode(ty, &bits.to_le_bytes(), &mut value).unwrap();
            let mut back = Vec::new();
            quant::encode(ty, &value, &mut back).unwrap();
            if value[0].is_nan() {
                quant::decode(ty, &back, &mut value).unwrap();
                assert!(value[0].is_nan(), "{ty} {bits:#x}");
            } else {
                assert_eq!(back, bits.to_le_bytes(), "{ty} {bits:#x}");
            }
        }
    }
}

#[test]
fn lengths_and_values_are_checked() {
    let mut out = vec![0.0; 32];
    let q8 = TensorType::Q8_0;
    assert_eq!(quant::decode(q8, &[0; 33], &mut out), Err(QuantError::Length { ty: q8, bytes: 33, values: 32 }));
    assert_eq!(quant::decode(q8, &[], &mut out[..31]), Err(QuantError::Length { ty: q8, bytes: 0, values: 31 }));
    assert_eq!(quant::decode(q8, &[], &mut []), Ok(()));
    let iq2 = TensorType::IQ2_XXS;
    assert_eq!(quant::decode(iq2, &[0; 66], &mut [0.0; 256]), Err(QuantError::Unsupported { ty: iq2 }));
    let mut bytes = vec![7];
    assert_eq!(quant::encode(iq2, &[0.0; 256], &mut bytes), Err(QuantError::Unsupported { ty: iq2 }));
    for ty in READ_ONLY {
        assert_eq!(quant::encode(ty, &[0.0; 256], &mut bytes), Err(QuantError::ReadOnly { ty }));
    }
    assert_eq!(quant::encode(q8, &out[..31], &mut bytes), Err(QuantError::Partial { ty: q8, values: 31 }));
    out[3] = f32::NAN;
    assert_eq!(quant::encode(q8, &out, &mut bytes), Err(QuantError::NotFinite { ty: q8, index: 3 }));
    assert_eq!(bytes, [7], "nothing is appended on error");
}

#[test]
fn sizes_agree_with_the_codecs() {
    macro_rules! sizes {
        ($($ty:ident $module:ident,)*) => {
            [$((TensorType::$ty, quant::$module::LEN, quant::$module::BYTES),)*]
        };
    }
    let sizes = sizes![
        F32 f32, F16 f16, BF16 bf16, Q4_0 q4_0, Q4_1 q4_1, Q5_0 q5_0, Q5_1 q5_1, Q8_0 q8_0, Q2_K q2_k, Q3_K q3_k,
        Q4_K q4_k, Q5_K q5_k, Q6_K q6_k, IQ4_NL iq4_nl, IQ4_XS iq4_xs, MXFP4 mxfp4,
    ];
    for (ty, len, bytes) in sizes {
        assert_eq!((ty.block_len(), ty.block_bytes()), (len, bytes), "{ty}");
    }
    assert_eq!(sizes.len(), TensorType::ALL.iter().filter(|t| t.is_supported()).count());
}

/// The largest error of a value, as a share of the block's largest magnitude. Plain rounding has a bound; least squares
/// (the K types) may give up one value of a sparse group for the others, so theirs is wide.
fn worst_share(ty: TensorType) -> f32 {
    match ty {
        TensorType::F32 | TensorType::F16 | TensorType::BF16 => 0.004,
        TensorType::Q8_0 => 0.005,
        TensorType::Q5_1 => 0.035,
        TensorType::Q5_0 => 0.065,
        TensorType::Q4_1 => 0.07,
        TensorType::Q4_0 => 0.13,
        TensorType::Q6_K => 0.10,
        // 4-bit floats: everything from 6 to 8 becomes 6.
        TensorType::MXFP4 => 0.25,
        _ => 0.20,
    }
}

proptest! {
    #[test]
    fn packed_scales_come_back(scales: [u8; 8], mins: [u8; 8]) {
        let (scales, mins) = (scales.map(|s| s & 63), mins.map(|m| m & 63));
        let packed = quant::q4_k::pack_scales(&scales, &mins);
        for j in 0..8 {
            prop_assert_eq!(quant::q4_k::scale_min(&packed, j), (scales[j], mins[j]));
        }
    }

    #[test]
    fn encoding_stays_near(values in prop::collection::vec(-1f32..1.0, 256), exponent in -1i32..4) {
        let mut values: Vec<f32> = values.iter().map(|v| v * 10f32.powi(exponent)).collect();
        // Blocks of tiny values have scales that half precision rounds coarsely: one large value in each of them.
        values.iter_mut().step_by(32).for_each(|v| *v = 10f32.powi(exponent));
        for ty in writable() {
            let (mut bytes, mut back) = (Vec::new(), vec![0.0; 256]);
            quant::encode(ty, &values, &mut bytes).unwrap();
            quant::decode(ty, &bytes, &mut back).unwrap();
            let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
            for (v, b) in values.iter().zip(&back) {
                prop_assert!((v - b).abs() <= worst_share(ty) * largest, "{} {} became {}", ty, v, b);
            }
        }
    }

    #[test]
    fn any_bytes_decode(seed: [u8; 32]) {
        for &ty in TensorType::ALL.iter().filter(|t| t.is_supported()) {
            let bytes: Vec<u8> = (0..ty.block_bytes()).map(|i| seed[i % 32].wrapping_mul(i as u8 | 1)).collect();
            let mut out = vec![f32::MAX; ty.block_len()];
            prop_assert_eq!(quant::decode(ty, &bytes, &mut out), Ok(()));
        }
    }

    #[test]
    fn any_finite_values_encode(bits in prop::collection::vec(any::<u32>(), 256)) {
        let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).map(|v| if v.is_finite() { v } else { 1.0 }).collect();
        for ty in writable() {
            let mut bytes = Vec::new();
            prop_assert_eq!(quant::encode(ty, &values, &mut bytes), Ok(()));
            prop_assert_eq!(bytes.len(), 256 / ty.block_len() * ty.block_bytes());
        }
    }
}
