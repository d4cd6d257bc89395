//! Any bytes as blocks of a type, and as values to encode: codecs must take all of them.
#![no_main]

use tombolo_gguf::{TensorType, quant};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let Some((&which, bytes)) = bytes.split_first() else { return };
    let ty = TensorType::ALL[usize::from(which) % TensorType::ALL.len()];
    let blocks = bytes.len() / ty.block_bytes();
    let mut values = vec![0.0; blocks * ty.block_len()];
    let decoded = quant::decode(ty, &bytes[..blocks * ty.block_bytes()], &mut values);
    assert_eq!(decoded.is_ok(), ty.is_supported());
    let values: Vec<f32> = bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let whole = values.len() / ty.block_len() * ty.block_len();
    let mut encoded = Vec::new();
    if quant::encode(ty, &values[..whole], &mut encoded).is_ok() {
        assert_eq!(encoded.len(), whole / ty.block_len() * ty.block_bytes());
    }
});
