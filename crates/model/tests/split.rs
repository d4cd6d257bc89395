//! Splits: the ranks' parts are disjoint and whole, cuts fall between blocks, and illegal sizes are refused.

use proptest::prelude::*;
use tombolo_gguf::TensorType;
use tombolo_model::{Shard, Slice, Split, Weight};

fn held(slice: Slice, rows: usize, cols: usize) -> Weight {
    let (held_rows, held_cols) = match slice {
        Slice::Whole => (rows, cols),
        Slice::Rows { len, .. } => (len, cols),
        Slice::Cols { len, .. } => (rows, len),
    };
    Weight {
        tensor: "t".into(),
        ty: TensorType::Q8_0,
        first: 0,
        count: 1,
        rows: held_rows,
        cols: held_cols,
        file_rows: rows,
        file_cols: cols,
        slice,
    }
}

proptest! {
    #[test]
    fn the_parts_make_the_whole(
        rows in 1usize..70,
        blocks in 1usize..12,
        unit in prop_oneof![Just(1usize), Just(2), Just(4), Just(32), Just(64)],
        size in 1usize..9,
        kind in 0usize..3,
    ) {
        let cols = blocks * 32;
        let split = match kind {
            0 => Split::Rows { unit },
            1 => Split::RowsUneven,
            _ => Split::Cols { unit },
        };
        let row_bytes = blocks * 34;
        let mut seen = vec![0u8; rows * row_bytes];
        let legal = split.slice(rows, cols, 32, Shard { rank: 0, size }).is_some();
        for rank in 0..size {
            match split.slice(rows, cols, 32, Shard { rank, size }) {
                Some(slice) if legal => {
                    let weight = held(slice, rows, cols);
                    let total: usize = weight.runs().map(|(_, len)| len).sum();
                    prop_assert_eq!(total, weight.bytes());
                    for (offset, len) in weight.runs() {
                        seen[offset..offset + len].iter_mut().for_each(|b| *b += 1);
                    }
                }
                // Uneven parts: a rank beyond the rows gets none, and the size is illegal on that rank.
                part => prop_assert!(part.is_none() || split == Split::RowsUneven),
            }
        }
        if legal && size > 1 {
            prop_assert!(seen.iter().all(|&n| n == 1));
        }
        if let (Split::Cols { unit }, true) = (split, legal && size > 1) {
            prop_assert!(cols / size % 32 == 0 && cols / size % unit == 0);
        }
    }
}

#[test]
fn kv_heads_are_replicated_beyond_their_number() {
    let split = Split::RowsReplicated { unit: 16 };
    let start = |rank, size| match split.slice(32, 64, 32, Shard { rank, size }) {
        Some(Slice::Rows { start, len }) => Some((start, len)),
        Some(other) => panic!("{other:?}"),
        None => None,
    };
    assert_eq!((start(0, 2), start(1, 2)), (Some((0, 16)), Some((16, 16))));
    assert_eq!((0..4).map(|r| start(r, 4).unwrap().0).collect::<Vec<_>>(), [0, 0, 16, 16]);
    assert_eq!(start(0, 3), None);
}
