//! Values of a cache of every type: what was stored comes back, as precisely as the type allows, the same in all tiers.

use crate::kernels::tests::Random;
use crate::kernels::{BLOCK, Kernels, Tier};
use crate::row_cache::RowCache;
use crate::store::Store;
use tombolo_model::{KvGroup, KvType, Values};

/// And the most that a value may be off, relative to the largest of its 32.
const TYPES: [(KvType, f32); 4] =
    [(KvType::F32, 0.0), (KvType::F16, 0.5 / 1024.0), (KvType::BF16, 0.5 / 128.0), (KvType::Q8_0, 0.51 / 127.0)];
const DIM: usize = 96;

fn close(got: &[f32], want: &[f32], most: f32, what: &str) {
    for (got, want) in got.chunks(32).zip(want.chunks(32)) {
        let largest = want.iter().fold(0f32, |a, b| a.max(b.abs()));
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= most * largest, "{what}: {g}, not {w}");
        }
    }
}

fn tables() -> impl Iterator<Item = &'static Kernels> {
    Tier::available().into_iter().filter_map(Kernels::of)
}

#[test]
fn both_layouts_give_back_what_they_took() {
    let rows: Vec<Vec<f32>> = {
        let mut random = Random::new(2);
        // Small and large rows, and one of zeros.
        let scale = |row: usize| if row == 3 { 0.0 } else { 10f32.powi(row as i32 % 5 - 2) };
        (0..BLOCK).map(|row| random.values(DIM).iter().map(|v| v * scale(row)).collect()).collect()
    };
    for (kind, most) in TYPES {
        let mut first: Option<(Vec<f32>, Vec<f32>)> = None;
        for kernels in tables() {
            // The second of three blocks.
            let start = DIM * BLOCK;
            let mut along = Store::zeroed(3 * DIM * BLOCK, kind).unwrap();
            let mut across = Store::zeroed(3 * DIM * BLOCK, kind).unwrap();
            for (slot, row) in rows.iter().enumerate() {
                along.write_along(kernels, start + slot * DIM, row);
                across.write_across(kernels, start, slot, row);
            }
            let (mut a, mut b) = (vec![f32::NAN; DIM * BLOCK], vec![f32::NAN; DIM * BLOCK]);
            along.read_along(kernels, start, &mut a);
            across.read_across(kernels, start, &mut b);
            for (slot, row) in rows.iter().enumerate() {
                close(&a[slot * DIM..][..DIM], row, most, kind.name());
                let column: Vec<f32> = (0..DIM).map(|d| b[d * BLOCK + slot]).collect();
                assert_eq!(column, a[slot * DIM..][..DIM], "{}: a row is the same in both layouts", kind.name());
            }
            // One row alone, and nothing beside the block.
            let mut one = vec![f32::NAN; DIM];
            along.read_along(kernels, start + 7 * DIM, &mut one);
            assert_eq!(one, a[7 * DIM..][..DIM]);
            let mut before = vec![f32::NAN; DIM * BLOCK];
            across.read_across(kernels, 0, &mut before);
            assert!(before.iter().all(|&v| v == 0.0), "{}", kind.name());
            assert_eq!(first.get_or_insert((a.clone(), b.clone())), &(a, b), "{:?}", kernels.tier);
        }
    }
}

#[test]
fn rows_of_parts_come_back_from_any_slot() {
    let group =
        KvGroup { name: "latent", layers: 2, kv_heads: 1, head_dim: DIM, values: Values::OfKey(64), window: None };
    let mut random = Random::new(3);
    let rows: Vec<(Vec<f32>, Vec<f32>)> = (0..BLOCK).map(|_| (random.values(64), random.values(32))).collect();
    for (kind, most) in TYPES {
        let kernels = Kernels::of(Tier::best()).unwrap();
        let mut cache = RowCache::new(&group, 3, kind).unwrap();
        for (slot, (latent, rope)) in rows.iter().enumerate() {
            cache.write(kernels, 1, 2, slot, &[latent, rope]);
        }
        let mut out = vec![f32::NAN; 5 * DIM];
        cache.read(kernels, 1, 2, 20, &mut out);
        for (row, (latent, rope)) in out.chunks(DIM).zip(&rows[20..]) {
            close(row, &[latent.as_slice(), rope].concat(), most, kind.name());
        }
    }
}
