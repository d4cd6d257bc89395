//! The layout read back by the rules of `quant.cuh`, against the scalar decoder of the file's format.

use super::*;
use proptest::prelude::*;
use tombolo_gguf::quant;

const TYPES: [TensorType; 8] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::BF16,
    TensorType::Q4_0,
    TensorType::Q4_1,
    TensorType::Q8_0,
    TensorType::Q4_K,
    TensorType::Q6_K,
];

fn f16(bytes: &[u8]) -> f32 {
    half::f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// Weight `i` of a row: what `decode16` of `quant.cuh` computes.
fn weight(ty: TensorType, row: &[u8], cols: usize, i: usize) -> f32 {
    match ty {
        TensorType::F32 => return f32::from_le_bytes(row[4 * i..][..4].try_into().unwrap()),
        TensorType::F16 => return f16(&row[2 * i..]),
        TensorType::BF16 => return f32::from_bits(u32::from(u16::from_le_bytes([row[2 * i], row[2 * i + 1]])) << 16),
        _ => {}
    }
    let (group, lane, e) = (i / GROUP, i % GROUP / 64, i % 64);
    let (block, quarter, b) = (e / 32, e / 16, e % 32);
    let n = (cols - group * GROUP).min(GROUP).div_ceil(64);
    let g = &row[group * group_bytes(ty, 32)..];
    let nibble = |at: usize| g[at] >> (4 * block) & 15;
    match ty {
        TensorType::Q4_0 => {
            let q = i32::from(nibble((b / 16 * n + lane) * 16 + b % 16) ^ 8) - 8;
            f16(&g[32 * n + lane * 4 + block * 2..]) * q as f32
        }
        TensorType::Q4_1 => {
            let scales = &g[32 * n + lane * 8 + block * 4..];
            f16(scales) * f32::from(nibble((b / 16 * n + lane) * 16 + b % 16)) + f16(&scales[2..])
        }
        TensorType::Q8_0 => {
            f16(&g[64 * n + lane * 4 + block * 2..]) * f32::from(g[(quarter * n + lane) * 16 + e % 16] as i8)
        }
        TensorType::Q4_K => {
            let at = lane / 4 * 144;
            let three = [4, 8, 12].map(|word| g[at + word + lane % 4]);
            let (s, m) = match block {
                0 => (three[0] & 63, three[2] & 63),
                _ => (three[1] & 63, three[0] >> 6 | (three[1] >> 6) << 2 | (three[2] >> 6) << 4),
            };
            let q = nibble(at + 16 + lane % 4 * 32 + b);
            f16(&g[at..]) * f32::from(s) * f32::from(q) - f16(&g[at + 2..]) * f32::from(m)
        }
        _ => {
            let at = lane / 4 * 208;
            let word = u32::from_le_bytes(g[at + lane % 4 * 32 + b / 4 * 4..][..4].try_into().unwrap());
            let low = word.rotate_left(4 * block as u32) >> (8 * (b % 4)) & 0x3c;
            let high = g[at + 128 + lane % 4 * 16 + e % 16] << (2 * quarter) & 0xc0;
            let scale = g[at + 192 + lane % 4 * 4 + quarter] as i8;
            0.25 * f16(&g[52 * n + lane / 4 * 2..]) * f32::from(scale) * f32::from((low as u8 | high) as i8)
        }
    }
}

fn check(ty: TensorType, cols: usize, raw: &[u8]) {
    let mut row = vec![0xAA; row_bytes(ty, cols)];
    repack_row(ty, raw, cols, &mut row);
    let mut expected = vec![0.0; cols];
    quant::decode(ty, raw, &mut expected).unwrap();
    for (i, &e) in expected.iter().enumerate() {
        let got = weight(ty, &row, cols, i);
        assert!((got - e).abs() <= 1e-6 * e.abs(), "{} of {cols} cols, weight {i}: {got}, not {e}", ty.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn repacked_rows_decode_to_the_same_weights(which in 0..TYPES.len(), blocks in 1usize..24, seed in any::<u64>()) {
        let ty = TYPES[which];
        // Odd counts too, and more than a group of the small blocks.
        let blocks = if ty.block_len() == 32 { blocks * 7 } else { blocks };
        let mut state = seed | 1;
        let raw: Vec<u8> = (0..blocks * ty.block_bytes())
            .map(|_| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                // No exponent of all ones in any float.
                (state >> 56) as u8 & 0xBF
            })
            .collect();
        check(ty, blocks * ty.block_len(), &raw);
    }
}

#[test]
fn rows_are_whole_sixteens_and_hardly_longer_than_in_the_file() {
    for ty in TYPES {
        for cols in [576, 1536, 2048, 4096, 7168, 14336] {
            if cols % ty.block_len() != 0 {
                continue;
            }
            let raw = cols / ty.block_len() * ty.block_bytes();
            let bytes = row_bytes(ty, cols);
            assert_eq!(bytes % 16, 0);
            assert!(bytes >= raw && bytes < raw + 32, "{} {cols}: {bytes}, {raw} in the file", ty.name());
        }
    }
    assert_eq!(row_bytes(TensorType::Q4_K, 4096), 2304);
    assert_eq!(row_bytes(TensorType::Q6_K, 14336), 7 * 1680);
}

#[test]
#[should_panic(expected = "no layout for Q5_K")]
fn a_type_without_a_kernel_is_a_fault_of_the_caller() {
    repack_row(TensorType::Q5_K, &[0; 176], 256, &mut [0; 176]);
}
