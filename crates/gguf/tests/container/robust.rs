//! No bytes make the reader panic, hang, or take much memory; and whatever it accepts can be used.

use crate::raw::{Raw, golden};
use proptest::prelude::*;
use tombolo_gguf::Gguf;

/// Touches everything that an accepted file offers.
pub(crate) fn use_it(gguf: &Gguf) {
    for info in gguf.tensors() {
        assert_eq!(gguf.bytes(info).len() as u64, info.bytes);
        assert_eq!(gguf.tensor(&info.name), Some(info));
    }
    for (key, _) in gguf.metadata().iter() {
        let m = gguf.metadata();
        assert!(m.get(key).is_some());
        let _ = (m.u64(key), m.f32(key), m.bool(key), m.str(key), m.strings(key), m.i64s(key), m.f32s(key));
        let _ = (m.u64_per_layer(key, 2), m.f32_per_layer(key, 2), m.bool_per_layer(key, 2));
    }
}

/// Reads; an error must be one clean line.
fn try_it(bytes: Vec<u8>) -> bool {
    match Gguf::from_bytes(bytes) {
        Ok(gguf) => {
            use_it(&gguf);
            true
        }
        Err(error) => {
            let line = error.to_string();
            assert!(!line.chars().any(char::is_control), "{line:?}");
            false
        }
    }
}

#[test]
fn the_golden_file_is_good() {
    assert!(try_it(golden().0));
}

#[test]
fn every_prefix_is_an_error() {
    let whole = golden().0;
    for n in 0..whole.len() {
        assert!(!try_it(whole[..n].to_vec()), "the first {n} bytes were accepted");
    }
}

#[test]
fn every_single_bit_can_flip() {
    let whole = golden().0;
    for bit in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        try_it(bytes);
    }
}

/// Numbers that break arithmetic.
fn nasty() -> impl Strategy<Value = u64> {
    let edge = prop::sample::select(vec![0u64, 1, 31, 32, 33, 255, 256, 1 << 31, 1 << 32, 1 << 62, 1 << 63, u64::MAX]);
    prop_oneof![edge.clone(), (edge, -40i64..40).prop_map(|(n, d)| n.wrapping_add_signed(d)), any::<u64>()]
}

#[derive(Clone, Debug)]
enum Mutation {
    Word(usize, u64),
    Half(usize, u32),
    Byte(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    Copy(usize, usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let at = || any::<prop::sample::Index>().prop_map(|i| i.index(1 << 12));
    prop_oneof![
        4 => (at(), nasty()).prop_map(|(a, v)| Mutation::Word(a, v)),
        4 => (at(), nasty()).prop_map(|(a, v)| Mutation::Half(a, v as u32)),
        4 => (at(), any::<u8>()).prop_map(|(a, v)| Mutation::Byte(a, v)),
        1 => at().prop_map(Mutation::Cut),
        1 => (at(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(a, v)| Mutation::Insert(a, v)),
        1 => (at(), 1usize..40).prop_map(|(a, n)| Mutation::Remove(a, n)),
        1 => (at(), at(), 1usize..64).prop_map(|(a, b, n)| Mutation::Copy(a, b, n)),
    ]
}

fn mutate(bytes: &mut Vec<u8>, mutation: &Mutation) {
    let length = bytes.len();
    let mut put = |at: usize, new: &[u8]| {
        for (i, b) in new.iter().enumerate() {
            bytes[(at + i) % length] = *b;
        }
    };
    match mutation {
        Mutation::Word(at, v) => put(*at, &v.to_le_bytes()),
        Mutation::Half(at, v) => put(*at, &v.to_le_bytes()),
        Mutation::Byte(at, v) => put(*at, &[*v]),
        Mutation::Cut(at) => bytes.truncate(at % length + 1),
        Mutation::Insert(at, new) => drop(bytes.splice(at % length..at % length, new.iter().copied())),
        Mutation::Remove(at, n) => {
            let start = 1 + at % length;
            drop(bytes.drain(start.min(length)..(start + n).min(length)));
        }
        Mutation::Copy(from, to, n) => {
            let copied: Vec<u8> = (0..*n).map(|i| bytes[(from + i) % length]).collect();
            bytes.splice(to % length..to % length, copied);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8000))]

    #[test]
    fn mutations_never_panic(mutations in prop::collection::vec(mutation(), 1..5)) {
        let mut bytes = golden().0;
        mutations.iter().for_each(|m| mutate(&mut bytes, m));
        try_it(bytes);
    }
}

proptest! {
    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..400), entries in 0u64..4, tensors in 0u64..4) {
        try_it(noise.clone());
        try_it(Raw::new(tensors, entries).bytes(&noise).0);
    }
}
