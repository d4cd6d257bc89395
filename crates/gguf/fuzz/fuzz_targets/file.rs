//! Any bytes as a file: an error of one line, or a model of which everything can be read.
#![no_main]

use tombolo_gguf::{Gguf, quant};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    match Gguf::from_bytes(bytes.to_vec()) {
        Ok(gguf) => read_all(&gguf),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});

fn read_all(gguf: &Gguf) {
    let meta = gguf.metadata();
    for (key, _) in meta.iter() {
        assert!(meta.get(key).is_some());
        let _ = (meta.u64(key), meta.f32(key), meta.bool(key), meta.str(key), meta.strings(key));
        let _ = (meta.i64s(key), meta.f32s(key), meta.u64_per_layer(key, 2), meta.bool_per_layer(key, 2));
    }
    for info in gguf.tensors() {
        assert_eq!(gguf.bytes(info).len() as u64, info.bytes);
        if info.ty.is_supported() {
            let mut values = vec![0.0; info.ty.block_len()];
            quant::decode(info.ty, &gguf.bytes(info)[..info.ty.block_bytes()], &mut values).expect("whole blocks");
        }
    }
}
