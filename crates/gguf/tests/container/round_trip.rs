//! What the writer writes, the reader reads; and the writer refuses what the reader would.

use proptest::prelude::*;
use std::collections::BTreeMap;
use tombolo_gguf::{Array, Gguf, TensorType, Value, WriteError, Writer};

fn value() -> impl Strategy<Value = Value> {
    fn list<T: std::fmt::Debug>(one: impl Strategy<Value = T>) -> impl Strategy<Value = Vec<T>> {
        prop::collection::vec(one, 0..5)
    }
    let scalar = prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        any::<f32>().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        any::<f64>().prop_map(Value::F64),
    ];
    let array = prop_oneof![
        list(any::<u8>()).prop_map(Array::U8),
        list(any::<i8>()).prop_map(Array::I8),
        list(any::<u16>()).prop_map(Array::U16),
        list(any::<i16>()).prop_map(Array::I16),
        list(any::<u32>()).prop_map(Array::U32),
        list(any::<i32>()).prop_map(Array::I32),
        list(any::<f32>()).prop_map(Array::F32),
        list(any::<bool>()).prop_map(Array::Bool),
        list(any::<String>()).prop_map(Array::String),
        list(any::<u64>()).prop_map(Array::U64),
        list(any::<i64>()).prop_map(Array::I64),
        list(any::<f64>()).prop_map(Array::F64),
    ];
    prop_oneof![scalar, array.prop_map(Value::Array)]
}

fn tensor() -> impl Strategy<Value = (TensorType, Vec<u64>)> {
    (prop::sample::select(TensorType::ALL), prop::collection::vec(1u64..4, 1..5)).prop_map(|(ty, mut dims)| {
        dims[0] *= ty.block_len() as u64;
        (ty, dims)
    })
}

proptest! {
    #[test]
    fn files_come_back(
        entries in prop::collection::btree_map("[a-zü._0-9]{1,12}", value(), 0..8),
        tensors in prop::collection::btree_map("[a-z._0-9]{1,12}", tensor(), 0..6),
        alignment in prop::sample::select(vec![1u32, 8, 32, 4096]),
        piece in 1usize..2000,
    ) {
        let bytes = write(&entries, &tensors, alignment, piece);
        let gguf = Gguf::from_bytes(bytes).unwrap();
        // Debug output tells NaNs apart from nothing, where `==` would not.
        prop_assert_eq!(
            format!("{:?}", gguf.metadata().iter().skip(1).collect::<Vec<_>>()),
            format!("{:?}", entries.iter().map(|(k, v)| (k.as_str(), v)).collect::<Vec<_>>())
        );
        prop_assert_eq!(gguf.tensors().len(), tensors.len());
        for (i, (name, (ty, dims))) in tensors.iter().enumerate() {
            let info = &gguf.tensors()[i];
            prop_assert_eq!((&info.name, &info.ty, &info.dims), (name, ty, dims));
            prop_assert_eq!(info.offset % u64::from(alignment), 0);
            prop_assert_eq!(gguf.bytes(info), data(i, info.bytes as usize));
        }
        prop_assert_eq!(gguf.trailing_bytes(), 0);
    }
}

fn data(tensor: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|b| (b * 7 + tensor) as u8).collect()
}

fn write(
    entries: &BTreeMap<String, Value>,
    tensors: &BTreeMap<String, (TensorType, Vec<u64>)>,
    alignment: u32,
    piece: usize,
) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.metadata("general.alignment", alignment).unwrap();
    for (key, value) in entries {
        writer.metadata(key, value.clone()).unwrap();
    }
    for (name, (ty, dims)) in tensors {
        writer.tensor(name, dims, *ty).unwrap();
    }
    writer.finish_header().unwrap();
    for (i, (ty, dims)) in tensors.values().enumerate() {
        let bytes = ty.bytes_of(dims.iter().product()).unwrap() as usize;
        for part in data(i, bytes).chunks(piece) {
            writer.data(part).unwrap();
        }
    }
    writer.finish().unwrap()
}

#[test]
fn what_is_part_of_the_program_is_not_copied() {
    let mut writer = Writer::new(Vec::new());
    writer.tensor("t", &[32], TensorType::Q8_0).unwrap().finish_header().unwrap().data(&[7; 34]).unwrap();
    let file: &'static [u8] = writer.finish().unwrap().leak();
    let gguf = Gguf::from_static(file).unwrap();
    let bytes = gguf.bytes(&gguf.tensors()[0]);
    assert_eq!(bytes, [7; 34]);
    assert!(file.as_ptr_range().contains(&bytes.as_ptr()));
    assert_eq!((gguf.path(), gguf.file_bytes()), (None, file.len() as u64));
}

#[test]
fn misuse_is_refused() {
    let f32 = TensorType::F32;
    let mut w = Writer::new(Vec::new());
    w.metadata("k", 1u32).unwrap().tensor("t", &[4], f32).unwrap();
    assert!(matches!(w.metadata("k", 2u32), Err(WriteError::Bad { what: "key", .. })));
    assert!(matches!(w.tensor("t", &[4], f32), Err(WriteError::Bad { what: "tensor", .. })));
    for name in ["", "a\nb", &"x".repeat(64)] {
        assert!(matches!(w.tensor(name, &[4], f32), Err(WriteError::Bad { .. })), "{name:?}");
    }
    for dims in [&[][..], &[0], &[1, 1, 1, 1, 1], &[1 << 40, 1 << 40]] {
        assert!(matches!(w.tensor("u", dims, f32), Err(WriteError::BadShape { .. })), "{dims:?}");
    }
    assert!(matches!(w.tensor("u2", &[33], TensorType::Q8_0), Err(WriteError::BadShape { .. })));
    assert!(matches!(w.metadata("general.alignment", 3u32), Err(WriteError::Bad { .. })));
    assert!(matches!(w.data(&[0]), Err(WriteError::OutOfOrder)));
    w.finish_header().unwrap();
    assert!(matches!(w.metadata("late", 1u32), Err(WriteError::OutOfOrder)));
    w.data(&[0; 12]).unwrap();
    assert!(matches!(w.data(&[0; 5]), Err(WriteError::TooMuchData { got: 5, left: 4, .. })));
    assert!(matches!(w.finish(), Err(WriteError::TooLittleData { left: 4, .. })));
    assert!(matches!(Writer::new(Vec::new()).finish(), Err(WriteError::OutOfOrder)));
}
