//! Metadata values: G11, G12, G14 to G19; and what the accessors make of good ones.

use crate::raw::{ARRAY, Raw, STRING, U32, assert_fault, golden};
use tombolo_gguf::{Array, Fault, Value, ValueError, Warning, limits};

#[test]
fn g11_value_types() {
    for ty in [13, 255, u32::MAX] {
        assert_fault!(Raw::new(0, 1).key("k", ty).room(64), Fault::BadValueType { ty: t, .. } if *t == ty);
    }
}

#[test]
fn g12_duplicate_keys() {
    let same = Raw::new(0, 2).key("k", U32).u32(1).key("k", U32).u32(1);
    assert_fault!(same, Fault::DuplicateKey { key } if key == "k");
    let other = Raw::new(0, 2).key("k", U32).u32(1).key("k", STRING).string("1");
    assert_fault!(other, Fault::DuplicateKey { .. });
}

#[test]
fn g14_strings_are_utf_8() {
    for key in ["general.architecture", "tokenizer.chat_template"] {
        let raw = Raw::new(0, 1).key(key, STRING).u64(2).bytes(&[0xc3, 0x28]);
        assert_fault!(raw, Fault::BadUtf8 { key: k } if k == key);
    }
    let raw = Raw::new(0, 1).array("tokenizer.ggml.tokens", STRING, 1).u64(1).bytes(&[0xff]);
    assert_fault!(raw, Fault::BadUtf8 { key } if key == "tokenizer.ggml.tokens");
    // What nothing depends on is shown as well as it can be.
    let raw = Raw::new(0, 2).key("general.name", STRING).u64(2).bytes(&[0xc3, 0x28]);
    let gguf = raw.array("general.tags", STRING, 2).string("a").u64(1).bytes(&[0xff]).read().unwrap();
    assert_eq!(gguf.metadata().str("general.name"), Some("\u{fffd}("));
    let warned = |key: &str| Warning::NotUtf8 { path: None, key: key.into() };
    assert_eq!(gguf.warnings(), [warned("general.name"), warned("general.tags")]);
    assert_eq!(gguf.warnings()[0].to_string(), "GGUF in memory: key \"general.name\" has a string that is not UTF-8");
}

#[test]
fn g15_array_types_are_checked_before_their_length() {
    for ty in [13, u32::MAX] {
        assert_fault!(Raw::new(0, 1).array("k", ty, 1 << 60), Fault::BadValueType { ty: t, .. } if *t == ty);
    }
    for ty in [0, 7, 8, 12] {
        for n in [5, 1 << 60, u64::MAX] {
            assert_fault!(Raw::new(0, 1).array("k", ty, n).room(4), Fault::Truncated { .. });
        }
    }
}

#[test]
fn g16_arrays_do_not_nest() {
    let mut raw = Raw::new(0, 1).key("k", ARRAY);
    for _ in 0..100_000 {
        raw = raw.u32(ARRAY).u64(1);
    }
    assert_fault!(raw, Fault::NestedArray { key } if key == "k");
}

#[test]
fn g17_memory_is_bounded() {
    // 4 bytes more than fit, spread over arrays that each fit.
    let n = limits::METADATA_BYTES / 4;
    let mut raw = Raw::new(0, 4);
    for key in ["a", "b", "c", "d"] {
        raw = raw.array(key, 0, n).room(n as usize);
    }
    assert_fault!(raw, Fault::MetadataBudget { key, .. } if key == "d");
    // Empty strings take 8 bytes in the file and more in memory.
    let n = limits::METADATA_BYTES / 16;
    assert_fault!(Raw::new(0, 1).array("k", STRING, n).room(8 * n as usize), Fault::MetadataBudget { .. });
}

#[test]
fn g18_booleans() {
    for value in [2, 255] {
        assert_fault!(Raw::new(0, 1).key("k", 7).bytes(&[value]), Fault::BadBool { value: v, .. } if *v == value);
        let raw = Raw::new(0, 1).array("k", 7, 2).bytes(&[0, value]);
        assert_fault!(raw, Fault::BadBool { value: v, .. } if *v == value);
    }
}

#[test]
fn g19_alignments() {
    for alignment in [0, 3, 13, 1 << 31] {
        assert_fault!(Raw::new(0, 1).key("general.alignment", U32).u32(alignment), Fault::BadAlignment { .. });
    }
    assert_fault!(Raw::new(0, 1).key("general.alignment", 5).u32(32), Fault::BadAlignment { .. });
    assert_fault!(Raw::new(0, 1).key("general.alignment", STRING).string("32"), Fault::BadAlignment { .. });
    let twice = Raw::new(0, 2).key("general.alignment", U32).u32(32).key("general.alignment", U32).u32(64);
    assert_fault!(twice, Fault::DuplicateKey { .. });
    let small = Raw::new(1, 1).key("general.alignment", U32).u32(1).tensor("t", &[3], 24, 0).bytes(&[7, 8, 9]);
    let small = small.read().unwrap();
    assert_eq!(small.bytes(&small.tensors()[0]), [7, 8, 9]);
}

#[test]
fn accessors_widen() {
    let gguf = golden().read().unwrap();
    let m = gguf.metadata();
    assert_eq!(
        (m.u64("u8"), m.u64("u16"), m.u64("general.alignment"), m.u64("u64")),
        (Some(200), Some(513), Some(32), Some(1 << 40))
    );
    assert_eq!(
        (m.u64("i8"), m.u64("i64"), m.u64("f32"), m.u64("yes"), m.u64("absent")),
        (None, None, None, None, None)
    );
    assert_eq!(
        (m.f32("f32"), m.f32("f64"), m.f32("i8"), m.f32("i32")),
        (Some(1.5), Some(2.5), Some(-56.0), Some(-1.0))
    );
    assert_eq!((m.bool("yes"), m.bool("u8"), m.str("general.architecture")), (Some(true), None, Some("llama")));
    assert_eq!(m.strings("tokens").unwrap(), ["a", "", "ü"]);
    assert_eq!((m.f32s("scores"), m.f32s("tokens"), m.i64s("flags")), (Some(vec![0.0, 0.0]), None, None));
    assert_eq!(m.get("flags"), Some(&Value::Array(Array::Bool(vec![false, true]))));
    let keys: Vec<&str> = m.iter().map(|(key, _)| key).collect();
    assert_eq!(keys[..3], ["general.architecture", "general.alignment", "u8"], "the file's order");
}

#[test]
fn one_value_or_one_per_layer() {
    let raw = Raw::new(0, 8).key("one", U32).u32(7).array("many", U32, 3).u32(1).u32(2).u32(3);
    let raw = raw.array("signed", 5, 2).u32(4).u32(u32::MAX).array("flags", 7, 2).bytes(&[0, 1]);
    let raw = raw.array("numbers", U32, 2).u32(1).u32(2).key("name", STRING).string("x");
    let raw = raw.key("half", 6).bytes(&0.5f32.to_le_bytes()).array("names", STRING, 2).string("x").string("y");
    let gguf = raw.read().unwrap();
    let m = gguf.metadata();
    let layers = |key: &str, found| ValueError::Layers { key: key.into(), found, layers: 2 };
    assert_eq!(m.u64_per_layer("absent", 2), Ok(None));
    assert_eq!(m.u64_per_layer("one", 4), Ok(Some(vec![7; 4])));
    assert_eq!(m.u64_per_layer("many", 3), Ok(Some(vec![1, 2, 3])));
    assert_eq!(m.u64_per_layer("many", 2), Err(layers("many", 3)));
    assert_eq!(
        m.u64_per_layer("signed", 2).unwrap_err().to_string(),
        "key \"signed\" is an array with -1 at 1; a whole number is wanted, one or one per layer"
    );
    assert_eq!(m.f32_per_layer("half", 2), Ok(Some(vec![0.5; 2])));
    assert_eq!(m.f32_per_layer("signed", 2), Ok(Some(vec![4.0, -1.0])));
    assert_eq!(m.bool_per_layer("flags", 2), Ok(Some(vec![false, true])));
    assert_eq!(m.bool_per_layer("flags", 3), Err(ValueError::Layers { key: "flags".into(), found: 2, layers: 3 }));
    assert!(matches!(m.bool_per_layer("numbers", 2), Err(ValueError::Type { .. })));
    for key in ["name", "names"] {
        assert!(matches!(m.u64_per_layer(key, 2), Err(ValueError::Type { .. })), "{key}");
        assert!(matches!(m.f32_per_layer(key, 2), Err(ValueError::Type { .. })), "{key}");
    }
    assert!(matches!(m.u64_per_layer("half", 2), Err(ValueError::Type { found, .. }) if found == "0.5"));
}
