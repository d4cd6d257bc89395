//! Magic, version, counts and lengths: G01 to G10, G13.

use crate::raw::{Raw, STRING, U32, assert_fault, golden};
use tombolo_gguf::{Fault, Gguf, limits};

#[test]
fn g01_short_files_are_truncated() {
    for n in [0, 1, 3, 4, 8, 16, 23] {
        let raw = Raw(golden().0[..n].to_vec());
        assert_fault!(raw, Fault::Truncated { .. });
    }
}

#[test]
fn g02_other_formats_are_named() {
    let cases: [(&[u8], &str); 8] = [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00", "git lfs pull"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"<html><body>", "web page"),
        (b"PK\x03\x04 and so on", "ZIP"),
        (b"{\"architectures\": [\"LlamaForCausalLM\"]}", "JSON"),
        (b"\x48\x01\0\0\0\0\0\0{\"__metadata__\":", "safetensors"),
        (b"FUGG\0\0\0\x03", "big-endian"),
        (b"lmgg\x01\0\0\0", "old GGML"),
    ];
    for (bytes, hint) in cases {
        let error = Raw(bytes.to_vec()).error();
        assert!(matches!(error.fault, Fault::BadMagic { .. }), "{error}");
        assert!(error.to_string().contains(hint), "{error}");
    }
    assert_fault!(Raw(b"anything else".to_vec()), Fault::BadMagic { hint: "", .. });
}

#[test]
fn g03_versions() {
    let with = |version: u32| Raw::default().bytes(b"GGUF").u32(version).u64(0).u64(0);
    for version in [0, 1, 4, u32::MAX] {
        assert_fault!(with(version), Fault::UnsupportedVersion { version: v, .. } if *v == version);
    }
    assert_fault!(with(0x0300_0000), Fault::BigEndian { version: 0x0300_0000 });
    for version in [2, 3] {
        assert_eq!(with(version).read().unwrap().version(), version);
    }
}

#[test]
fn g04_g05_counts_are_bounded_by_the_file() {
    let head = |tensors, entries| Raw::new(tensors, entries).room(1000);
    for n in [u64::MAX, 1 << 60, 1 << 31, 1000 / 33 + 1] {
        assert_fault!(head(n, 0), Fault::CountExceedsFile { what: "tensors", count, .. } if *count == n);
    }
    for n in [u64::MAX, 1 << 60, 1 << 31, 1000 / 14 + 1] {
        assert_fault!(head(0, n), Fault::CountExceedsFile { what: "metadata entries", count, .. } if *count == n);
    }
    let large = Raw::new(limits::TENSORS + 1, 0).room(40 * limits::TENSORS as usize);
    assert_fault!(large, Fault::TooMany { what: "tensors", .. });
}

#[test]
fn g06_one_entry_too_many_or_too_few() {
    let mut raw = golden();
    for entries in [14u64, 16] {
        raw.0[16..24].copy_from_slice(&entries.to_le_bytes());
        raw.error();
    }
}

#[test]
fn g07_g08_g09_key_lengths() {
    let with = |length: u64| Raw::new(0, 1).u64(length).room(100_000);
    for length in [u64::MAX, u64::MAX - 31, 70_000] {
        assert_fault!(with(length), Fault::KeyTooLong { length: l, .. } if *l == length);
    }
    assert_fault!(with(0), Fault::EmptyKey { entry: 0 });
    assert_fault!(Raw::new(0, 1).u64(1000).room(999), Fault::Truncated { needed: 1000, remaining: 999, .. });
}

#[test]
fn g10_keys_are_plain_text() {
    for key in [&b"a\xffb"[..], b"a\0b", b"a\x1b[31mb", b"a\nb"] {
        let raw = Raw::new(0, 1).u64(key.len() as u64).bytes(key).room(16);
        assert_fault!(raw, Fault::BadKey { entry: 0, .. });
        raw.error();
    }
}

#[test]
fn g13_string_lengths() {
    let with = |length: u64| Raw::new(0, 1).key("general.name", STRING).u64(length).room(100);
    for length in [101, 25 << 30, u64::MAX] {
        assert_fault!(with(length), Fault::Truncated { needed, remaining: 100, .. } if *needed == length);
    }
}

#[test]
fn errors_say_where() {
    let raw = Raw::new(0, 1).key("general.alignment", U32).u32(3);
    assert_eq!(
        raw.error().to_string(),
        "GGUF in memory, byte 53: general.alignment is 3; it must be a power of two, a u32, and at most 1048576"
    );
    let raw = Raw::new(0, 1).key("k", STRING).u64(9).room(3);
    assert_eq!(
        raw.error().to_string(),
        "GGUF in memory, byte 45: truncated in the value of key \"k\": 9 bytes declared, 3 left in the file (download \
         incomplete?)"
    );
}

#[test]
fn an_empty_model_is_a_file() {
    let gguf = Gguf::from_bytes(Raw::new(0, 0).0).unwrap();
    assert!(gguf.metadata().is_empty() && gguf.tensors().is_empty());
    assert_eq!(gguf.file_bytes(), 24);
}
