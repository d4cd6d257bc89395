//! Files that are almost right: every field of good files is given numbers that break arithmetic, entries are doubled,
//! dropped, swapped and cut. None may panic, hang or take much memory, and what is accepted must be usable.
//!
//! 10,000 files a run. `TOMBOLO_MUTANTS=100000` makes it that many, `TOMBOLO_SEED` starts at another seed.

use crate::fields::{Field, Kind, fields};
use crate::raw::golden;
use crate::robust::use_it;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tombolo_gguf::{Gguf, TensorType, Writer, quant};

/// SplitMix64 (Steele, Lea, Flood 2014): every seed is a file that can be made again.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len()))
    }

    /// Numbers that break arithmetic, and their neighbours.
    fn nasty(&mut self, was: u64) -> u64 {
        const EDGES: [u64; 20] = [
            0,
            1,
            2,
            4,
            9,
            13,
            31,
            32,
            63,
            64,
            255,
            256,
            65_535,
            1 << 31,
            1 << 32,
            1 << 40,
            1 << 60,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ];
        match self.below(8) {
            0 => self.next(),
            1 => self.next() >> self.below(64),
            2 => was.wrapping_add(1),
            3 => was.wrapping_sub(1),
            4 => was ^ 1 << self.below(64),
            5 => was.wrapping_mul(self.next() % 9),
            _ => EDGES[self.below(EDGES.len())].wrapping_add_signed(self.below(5) as i64 - 2),
        }
    }
}

/// A small llama: what most files look like, with a tensor of every type that can be decoded.
fn llama() -> Vec<u8> {
    let mut w = Writer::new(Vec::new());
    w.metadata("general.architecture", "llama").unwrap().metadata("general.alignment", 64u32).unwrap();
    w.metadata("llama.block_count", 2u32).unwrap().metadata("llama.feed_forward_length", vec![64i32, 96]).unwrap();
    w.metadata("llama.rope.freq_base", 1e6f32).unwrap().metadata("llama.attention.causal", vec![true, false]).unwrap();
    let tokens: Vec<String> = (0..20).map(|i| format!("token {i}")).collect();
    w.metadata("tokenizer.ggml.model", "gpt2").unwrap().metadata("tokenizer.ggml.tokens", tokens).unwrap();
    w.metadata("tokenizer.ggml.scores", vec![0.5f32; 20]).unwrap();
    w.metadata("tokenizer.ggml.token_type", vec![1i32; 20]).unwrap();
    w.metadata("tokenizer.chat_template", "{{ messages[0].content }}").unwrap();
    w.metadata("general.empty", Vec::<u64>::new()).unwrap();
    let types = || TensorType::ALL.iter().filter(|t| t.is_supported());
    for ty in types() {
        w.tensor(&format!("blk.0.{ty}.weight"), &[ty.block_len() as u64, 2], *ty).unwrap();
    }
    w.finish_header().unwrap();
    for ty in types() {
        w.data(&vec![0x5a; 2 * ty.block_bytes()]).unwrap();
    }
    w.finish().unwrap()
}

/// A split set: first shard without tensors.
fn set() -> Vec<Vec<u8>> {
    let shard = |number: u16, names: &[&str]| {
        let mut w = Writer::new(Vec::new());
        w.metadata("split.no", number).unwrap().metadata("split.count", 3u16).unwrap();
        w.metadata("split.tensors.count", 3i32).unwrap();
        for name in names {
            w.tensor(name, &[8], TensorType::F32).unwrap();
        }
        w.finish_header().unwrap();
        for _ in names {
            w.data(&[1; 32]).unwrap();
        }
        w.finish().unwrap()
    };
    vec![shard(0, &[]), shard(1, &["a", "b"]), shard(2, &["c"])]
}

fn put(bytes: &mut [u8], field: Field, number: u64) {
    let number = number.to_le_bytes();
    let len = field.len.min(8);
    bytes[field.at..field.at + len].copy_from_slice(&number[..len]);
}

fn number(bytes: &[u8], field: Field) -> u64 {
    bytes[field.at..field.at + field.len.min(8)].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}

/// Adds to one of the two counts of the header.
fn recount(bytes: &mut [u8], at: usize, by: i64) {
    let count = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    bytes[at..at + 8].copy_from_slice(&count.wrapping_add_signed(by).to_le_bytes());
}

/// Entries and descriptions doubled, dropped, swapped; the counts follow, or do not.
fn restructure(bytes: &mut Vec<u8>, random: &mut Random) {
    let found = fields(bytes);
    let (items, count_at) = if random.below(2) == 0 { (&found.entries, 16) } else { (&found.tensors, 8) };
    let Some(item) = random.pick(items).cloned() else { return };
    let follow = random.below(4) > 0;
    match random.below(3) {
        0 => {
            let copy = bytes[item.clone()].to_vec();
            bytes.splice(item.start..item.start, copy);
            recount(bytes, count_at, i64::from(follow));
        }
        1 => {
            bytes.drain(item);
            recount(bytes, count_at, -i64::from(follow));
        }
        _ => {
            let Some(other) = random.pick(items).cloned() else { return };
            let (first, second) = if item.start < other.start { (item, other) } else { (other, item) };
            if first.end <= second.start {
                let swapped = [&bytes[second.clone()], &bytes[first.end..second.start], &bytes[first.clone()]].concat();
                bytes.splice(first.start..second.end, swapped);
            }
        }
    }
}

/// One field changed: a number to a nasty one, a text's bytes, a text's length with or without its bytes.
fn refield(bytes: &mut Vec<u8>, random: &mut Random) {
    let found = fields(bytes);
    let Some(&field) = random.pick(&found.fields) else { return };
    match field.kind {
        Kind::Number | Kind::Value => {
            let was = number(bytes, field);
            put(bytes, field, random.nasty(was));
        }
        Kind::Text if random.below(2) == 0 => {
            for _ in 0..=random.below(3) {
                if field.len > 0 {
                    bytes[field.at + random.below(field.len)] = random.next() as u8;
                }
            }
        }
        Kind::Text if field.at >= 8 => {
            const LENGTHS: [usize; 7] = [0, 1, 63, 64, 200, 65_535, 65_536];
            let length = LENGTHS[random.below(LENGTHS.len())];
            bytes.splice(field.at..field.at + field.len, std::iter::repeat_n(b'x', length));
            if random.below(8) > 0 {
                bytes[field.at - 8..field.at].copy_from_slice(&(length as u64).to_le_bytes());
            }
        }
        Kind::Text => {}
    }
}

/// Two fields of one size exchanged: counts become offsets, types become lengths.
fn exchange(bytes: &mut [u8], random: &mut Random) {
    let found = fields(bytes);
    let (Some(&a), Some(&b)) = (random.pick(&found.fields), random.pick(&found.fields)) else { return };
    if a.len == b.len && a.len <= 8 {
        let (x, y) = (number(bytes, a), number(bytes, b));
        put(bytes, a, y);
        put(bytes, b, x);
    }
}

/// The end cut off or grown, at a field or anywhere; bytes anywhere.
fn rough(bytes: &mut Vec<u8>, random: &mut Random) {
    match random.below(4) {
        0 => {
            let ends: Vec<usize> = fields(bytes).fields.iter().map(|f| f.at + f.len).collect();
            let end = random.pick(&ends).copied().unwrap_or(0) + random.below(3);
            bytes.truncate(end.saturating_sub(1));
        }
        1 => bytes.truncate(random.below(bytes.len() + 1)),
        2 => {
            let more = random.below(100);
            bytes.extend((0..more).map(|_| random.next() as u8));
        }
        _ => {
            for _ in 0..=random.below(8) {
                let at = random.below(bytes.len());
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = random.next() as u8;
                }
            }
        }
    }
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 | 1 => restructure(bytes, random),
            2 => exchange(bytes, random),
            3 if random.below(2) == 0 => rough(bytes, random),
            _ => refield(bytes, random),
        }
    }
}

/// Mutant `seed`: one file, or the shards of a set.
fn mutant(seed: u64, golden: &[u8], llama: &[u8], set: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut random = Random(seed);
    let mut shards = match random.below(8) {
        0..3 => vec![golden.to_vec()],
        3..6 => vec![llama.to_vec()],
        _ => set.to_vec(),
    };
    if shards.len() > 1 && random.below(8) == 0 {
        let (a, b) = (random.below(shards.len()), random.below(shards.len()));
        match random.below(3) {
            0 => shards.swap(a, b),
            1 => shards[a] = shards[b].clone(),
            _ => drop(shards.remove(a)),
        }
    } else {
        let which = random.below(shards.len());
        mutate(&mut shards[which], &mut random);
    }
    shards
}

/// Decodes the first block of every tensor that can be decoded.
fn decode(gguf: &Gguf) {
    for info in gguf.tensors().iter().filter(|t| t.ty.is_supported()) {
        let mut values = vec![0.0; info.ty.block_len()];
        quant::decode(info.ty, &gguf.bytes(info)[..info.ty.block_bytes()], &mut values).unwrap();
    }
}

fn from_env(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |v| v.parse().expect("a whole number"))
}

#[test]
fn mutants_are_refused_or_usable() {
    let (golden, llama, set) = (golden().0, llama(), set());
    for whole in [vec![golden.clone()], vec![llama.clone()], set.clone()] {
        let gguf = Gguf::from_shards(whole.clone()).unwrap();
        let found = whole.iter().map(|bytes| fields(bytes));
        assert_eq!(
            found.map(|f| f.tensors.len()).sum::<usize>(),
            gguf.tensors().len(),
            "the fields are those of the file"
        );
    }
    let (count, start) = (from_env("TOMBOLO_MUTANTS", 10_000), from_env("TOMBOLO_SEED", 0));
    let (mut accepted, mut slowest) = (0u64, (Duration::ZERO, 0));
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    for seed in start..start + count {
        let shards = mutant(seed, &golden, &llama, &set);
        let started = Instant::now();
        // A panic says which mutant it was.
        let read = std::panic::catch_unwind(|| match Gguf::from_shards(shards) {
            Ok(gguf) => {
                use_it(&gguf);
                decode(&gguf);
                None
            }
            Err(error) => {
                let line = error.to_string();
                assert!(!line.chars().any(char::is_control) && line.len() < 70_000, "{line:?}");
                Some(format!("{:?}", error.fault))
            }
        });
        slowest = slowest.max((started.elapsed(), seed));
        match read {
            Ok(None) => accepted += 1,
            Ok(Some(fault)) => {
                let name: String = fault.chars().take_while(|c| c.is_alphanumeric()).collect();
                *faults.entry(name).or_default() += 1;
            }
            Err(_) => panic!("mutant {seed} panicked"),
        }
    }
    println!("{count} mutants from seed {start}: {accepted} accepted, slowest {slowest:?}, faults {faults:#?}");
    assert!(slowest.0 < Duration::from_secs(1), "{slowest:?}");
    // Mutations that only break the magic would prove nothing.
    assert!(count < 10_000 || (faults.len() > 25 && accepted > count / 100), "{accepted} accepted, {faults:?}");
}
