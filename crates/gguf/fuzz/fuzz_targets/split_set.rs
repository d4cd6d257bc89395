//! Any bytes as the shards of a split set: each begins with its length in two bytes.
#![no_main]

use tombolo_gguf::Gguf;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let (mut shards, mut rest) = (Vec::new(), bytes);
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let (shard, after) = after.split_at(after.len().min(u16::from_le_bytes(*length).into()));
        shards.push(shard.to_vec());
        rest = after;
    }
    match Gguf::from_shards(shards) {
        Ok(gguf) => gguf.tensors().iter().for_each(|info| assert_eq!(gguf.bytes(info).len() as u64, info.bytes)),
        Err(error) => assert!(!error.to_string().chars().any(char::is_control)),
    }
});
