//! Tensor descriptions and data: G20 to G33.

use crate::raw::{Raw, assert_fault, golden, one_tensor};
use tombolo_gguf::{Fault, TensorType, Warning};

const F32: u32 = 0;

#[test]
fn g20_names() {
    let long = "n".repeat(64);
    assert_fault!(one_tensor(&long, &[4], F32, 0), Fault::TensorNameTooLong { length: 64, .. });
    assert!(one_tensor(&long[1..], &[4], F32, 0).read().is_ok());
    assert_fault!(Raw::new(1, 0).u64(1 << 63).room(64), Fault::TensorNameTooLong { .. });
    assert_fault!(one_tensor("", &[4], F32, 0), Fault::BadTensorName { index: 0, .. });
    assert_fault!(one_tensor("a\0b", &[4], F32, 0), Fault::BadTensorName { .. });
    assert_fault!(Raw::new(1, 0).u64(1).bytes(&[0xff]).room(64), Fault::BadTensorName { why: "is not UTF-8", .. });
}

#[test]
fn g21_duplicate_names() {
    let raw = Raw::new(2, 0).tensor("t", &[4], F32, 0).tensor("t", &[4], F32, 32).data(64);
    assert_fault!(raw, Fault::DuplicateTensor { tensor } if tensor == "t");
}

#[test]
fn g22_g23_g24_dimensions() {
    for n in [0, 5, u32::MAX] {
        let raw = Raw::new(1, 0).string("t").u32(n).room(200);
        assert_fault!(raw, Fault::BadDimCount { dims, .. } if *dims == n);
    }
    assert_fault!(one_tensor("t", &[0], F32, 0), Fault::ZeroDim { axis: 0, .. });
    assert_fault!(one_tensor("t", &[4, 1, 0], F32, 0), Fault::ZeroDim { axis: 2, .. });
    assert_fault!(one_tensor("t", &[4, 1 << 63], F32, 0), Fault::BadDim { axis: 1, value: 0x8000_0000_0000_0000, .. });
}

#[test]
fn g25_g26_sizes_that_overflow() {
    for dims in [&[1 << 40, 1 << 40][..], &[(1 << 42) + 1, 1 << 22], &[1 << 62], &[1 << 32, 1 << 31]] {
        assert_fault!(one_tensor("t", dims, F32, 0), Fault::ShapeOverflow { .. });
    }
    let huge = 0x7fff_ffff_ffff_ffc0;
    let raw = Raw::new(2, 0).tensor("a", &[huge], 24, 0).tensor("b", &[huge], 24, huge).data(64);
    assert_fault!(raw, Fault::PastEnd { tensor, .. } if tensor == "b");
}

#[test]
fn g27_rows_are_whole_blocks() {
    assert_fault!(one_tensor("t", &[33], 8, 0), Fault::BadBlock { cols: 33, block: 32, ty: TensorType::Q8_0, .. });
    assert_fault!(one_tensor("t", &[32, 8], 12, 0), Fault::BadBlock { block: 256, .. });
}

#[test]
fn g28_types() {
    for id in [4, 5, 31, 32, 33, 36, 37, 38] {
        assert_fault!(one_tensor("t", &[256], id, 0), Fault::RemovedType { id: i, .. } if *i == id);
    }
    for id in [43, 1000, u32::MAX] {
        assert_fault!(one_tensor("t", &[256], id, 0), Fault::UnknownType { id: i, .. } if *i == id);
    }
    for &ty in TensorType::ALL {
        assert_eq!(TensorType::from_id(ty.id()), Some(ty));
        let raw = Raw::new(1, 0).tensor("t", &[ty.block_len() as u64], ty.id(), 0).data(ty.block_bytes());
        let gguf = raw.read().unwrap();
        assert_eq!(gguf.bytes(&gguf.tensors()[0]).len(), ty.block_bytes(), "{ty}");
    }
}

#[test]
fn g29_g30_offsets() {
    for offset in [1, 31, u64::MAX] {
        assert_fault!(one_tensor("t", &[4], F32, offset), Fault::UnalignedOffset { data_offset, .. } if *data_offset == offset);
    }
    assert_fault!(one_tensor("t", &[4], F32, 64), Fault::PastEnd { missing: 16, .. });
    assert_fault!(one_tensor("t", &[17], F32, 0), Fault::PastEnd { missing: 4, file_bytes: 128, .. });
    assert_fault!(one_tensor("t", &[4], F32, u64::MAX - 31), Fault::PastEnd { tensor, .. } if tensor == "t");
    assert!(one_tensor("t", &[16], F32, 0).read().is_ok());
}

#[test]
fn g31_overlaps() {
    let raw = Raw::new(2, 0).tensor("a", &[9], F32, 32).tensor("b", &[9], F32, 0).data(96);
    assert_fault!(raw, Fault::Overlap { first, second, bytes: 4 } if first == "b" && second == "a");
    let raw = Raw::new(2, 0).tensor("a", &[4], F32, 0).tensor("b", &[4], F32, 0).data(96);
    assert_fault!(raw, Fault::Overlap { bytes: 16, .. });
    let gap = Raw::new(2, 0).tensor("a", &[4], F32, 64).tensor("b", &[4], F32, 0).data(96);
    assert!(gap.read().is_ok(), "gaps and any order do no harm");
}

#[test]
fn g32_truncated_data() {
    let whole = golden();
    let end = whole.0.len();
    for missing in [1, 100, 272] {
        let cut = Raw(whole.0[..end - missing].to_vec());
        assert_fault!(cut, Fault::PastEnd { tensor, missing: m, .. }
            if tensor == "blk.0.attn_k.weight" && *m == missing as u64);
    }
}

#[test]
fn g33_bytes_after_the_last_tensor_are_counted() {
    assert_eq!(golden().read().unwrap().trailing_bytes(), 0);
    let gguf = one_tensor("t", &[4], F32, 0).room(10).read().unwrap();
    assert_eq!(gguf.trailing_bytes(), 42);
    assert_eq!(gguf.warnings(), [Warning::TrailingBytes { path: None, bytes: 42 }]);
    assert_eq!(golden().read().unwrap().warnings(), []);
}

#[test]
fn tensors_are_found_with_their_bytes() {
    let mut raw = golden();
    let end = raw.0.len();
    raw.0[end - 144..].fill(9);
    let gguf = raw.read().unwrap();
    let info = gguf.tensor("blk.0.attn_k.weight").unwrap();
    assert_eq!(
        (info.dims.as_slice(), info.ty, info.offset, info.bytes),
        (&[256, 1, 1][..], TensorType::Q4_K, 128, 144)
    );
    assert_eq!(gguf.bytes(info), [9; 144]);
    assert_eq!(gguf.tensor("norm").unwrap().bytes, 12);
    assert!(gguf.tensor("absent").is_none());
    assert_eq!(gguf.tensors().len(), 3);
}
