//! Split sets: G47, and G21 across shards.

use crate::raw::golden;
use std::path::{Path, PathBuf};
use tombolo_gguf::{Fault, Gguf, GgufError, TensorType, Warning, Writer};

/// A directory of its own, gone with the value.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tombolo-splits-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Shards under the names that they need.
    fn set(&self, shards: &[Vec<u8>]) -> Vec<PathBuf> {
        let name = |i: usize| format!("m-{:05}-of-{:05}.gguf", i + 1, shards.len());
        shards.iter().enumerate().map(|(i, bytes)| self.write(&name(i), bytes)).collect()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A shard; tensors are F32 of 8 values, each byte of a tensor is the last letter of its name.
fn shard(number: u16, count: u16, total: i32, tensors: &[&str]) -> Vec<u8> {
    let mut w = Writer::new(Vec::new());
    if number == 0 {
        w.metadata("general.architecture", "llama").unwrap().metadata("general.name", "of the first shard").unwrap();
    }
    w.metadata("split.no", number).unwrap().metadata("split.count", count).unwrap();
    w.metadata("split.tensors.count", total).unwrap();
    for name in tensors {
        w.tensor(name, &[8], TensorType::F32).unwrap();
    }
    w.finish_header().unwrap();
    for name in tensors {
        w.data(&[*name.as_bytes().last().unwrap(); 32]).unwrap();
    }
    w.finish().unwrap()
}

/// The first shard has no tensors, as many sets in the wild do it.
fn set() -> Vec<Vec<u8>> {
    vec![shard(0, 3, 3, &[]), shard(1, 3, 3, &["a", "b"]), shard(2, 3, 3, &["c"])]
}

#[track_caller]
fn error(path: &Path) -> GgufError {
    let error = Gguf::open(path).expect_err("a bad set was accepted");
    let line = error.to_string();
    assert!(!line.chars().any(char::is_control), "{line:?}");
    error
}

#[track_caller]
fn check(gguf: &Gguf) {
    let found: Vec<(&str, usize, u8)> =
        gguf.tensors().iter().map(|t| (t.name.as_str(), t.shard, gguf.bytes(t)[31])).collect();
    assert_eq!(found, [("a", 1, b'a'), ("b", 1, b'b'), ("c", 2, b'c')]);
    assert_eq!(gguf.metadata().str("general.name"), Some("of the first shard"));
    assert_eq!(gguf.tensor("c").map(|t| t.shard), Some(2));
    assert_eq!(gguf.shards().len(), 3);
    assert_eq!(gguf.file_bytes(), set().iter().map(|s| s.len() as u64).sum::<u64>());
    assert_eq!(gguf.warnings(), []);
    gguf.check_unchanged().unwrap();
}

#[test]
fn any_shard_or_their_directory_opens_the_set() {
    let dir = Directory::new("any");
    let paths = dir.set(&set());
    for path in &paths {
        let gguf = Gguf::open(path).unwrap();
        check(&gguf);
        let opened: Vec<_> = gguf.shards().iter().map(|s| s.path().unwrap().to_path_buf()).collect();
        assert_eq!(opened, paths);
        assert_eq!(gguf.path(), Some(paths[0].as_path()));
    }
    dir.write("mmproj-m.gguf", b"a vision projector");
    dir.write("._m-00001-of-00003.gguf", b"what some systems leave behind");
    dir.write("README.md", b"");
    check(&Gguf::open(&dir.0).unwrap());
    check(&Gguf::from_shards(set()).unwrap());
}

#[test]
fn siblings_lie_beside_the_link_that_was_given() {
    let (blobs, links) = (Directory::new("blobs"), Directory::new("links"));
    for (i, bytes) in set().iter().enumerate() {
        let blob = blobs.write(&format!("{i:064x}"), bytes);
        std::os::unix::fs::symlink(blob, links.0.join(format!("m-{:05}-of-00003.gguf", i + 1))).unwrap();
    }
    check(&Gguf::open(&links.0.join("m-00002-of-00003.gguf")).unwrap());
    check(&Gguf::open(&links.0).unwrap());
    let blob = error(&blobs.0.join(format!("{:064x}", 1)));
    assert!(matches!(blob.fault, Fault::ShardName { number: 2, count: 3 }), "{blob}");
    assert!(blob.to_string().contains("-00002-of-00003.gguf"), "{blob}");
}

#[test]
fn g47_missing_shards_are_named() {
    let dir = Directory::new("missing");
    let paths = dir.set(&set());
    std::fs::remove_file(&paths[1]).unwrap();
    for path in &paths {
        let e = error(path);
        assert!(matches!(&e.fault, Fault::MissingShards { missing, count: 3 } if *missing == [2]), "{e}");
        assert_eq!(e.path.as_ref(), Some(&paths[1]));
        assert!(e.to_string().ends_with("m-00002-of-00003.gguf: shard 2 of 3 is missing"), "{e}");
    }
    std::fs::remove_file(&paths[0]).unwrap();
    assert!(error(&dir.0).to_string().ends_with("m-00001-of-00003.gguf: shard 1, 2 of 3 are missing"));
    std::fs::remove_file(&paths[2]).unwrap();
    assert!(matches!(error(&paths[2]).fault, Fault::Io { what: "open", .. }), "nothing is there of a set");
    assert!(matches!(error(&dir.0).fault, Fault::NoModel { hint: "" }));
}

#[test]
fn g47_numbers_and_counts() {
    let with = |name: &str, shards: &[Vec<u8>]| {
        let dir = Directory::new(name);
        let paths = dir.set(shards);
        error(&paths[0])
    };
    let [first, second, third] = set().try_into().unwrap();
    let twice = with("twice", &[first.clone(), second.clone(), second.clone()]);
    assert!(matches!(twice.fault, Fault::ShardNumber { expected: 3, declared: 2 }), "{twice}");
    assert!(twice.path.unwrap().ends_with("m-00003-of-00003.gguf"));
    let swapped = with("swapped", &[second.clone(), first.clone(), third.clone()]);
    assert!(matches!(swapped.fault, Fault::ShardNumber { expected: 1, declared: 2 }), "{swapped}");
    let short = with("short", &[first.clone(), second.clone()]);
    assert!(matches!(short.fault, Fault::ShardCount { expected: 2, declared: 3 }), "{short}");
    let other = with("other", &[first.clone(), shard(1, 4, 3, &["a", "b"]), third.clone()]);
    assert!(matches!(other.fault, Fault::ShardCount { expected: 3, declared: 4 }), "{other}");
    let whole = with("whole", &[first.clone(), golden().0, third.clone()]);
    assert!(matches!(whole.fault, Fault::ShardCount { expected: 3, declared: 1 }), "{whole}");
    let range = with("range", &[first.clone(), shard(3, 3, 3, &["a", "b"]), third.clone()]);
    assert!(matches!(range.fault, Fault::ShardKey { key: "split.no", .. }), "{range}");
    let huge = with("huge", &[shard(0, u16::MAX, 3, &[]), second, third]);
    assert!(matches!(huge.fault, Fault::TooMany { what: "shards", count: 65535, .. }), "{huge}");
}

#[test]
fn g47_keys_of_other_types() {
    let with = |key: &str, value: &str| {
        let mut w = Writer::new(Vec::new());
        for k in ["split.no", "split.count", "split.tensors.count"] {
            if k == key {
                w.metadata(k, value).unwrap();
            } else {
                w.metadata(k, 2u16).unwrap();
            }
        }
        w.finish_header().unwrap();
        Gguf::from_bytes(w.finish().unwrap()).unwrap_err().fault
    };
    assert!(matches!(with("split.count", "2"), Fault::ShardKey { key: "split.count", .. }));
    assert!(matches!(with("split.no", "0"), Fault::ShardKey { key: "split.no", .. }));
    let mut w = Writer::new(Vec::new());
    w.metadata("split.count", 2u64).unwrap().finish_header().unwrap();
    let fault = Gguf::from_bytes(w.finish().unwrap()).unwrap_err().fault;
    assert!(matches!(fault, Fault::ShardKey { key: "split.no", why: "is missing" }), "{fault}");
    let mut one = Writer::new(Vec::new());
    one.metadata("split.no", 0u16).unwrap().metadata("split.count", 1u16).unwrap().finish_header().unwrap();
    assert!(Gguf::from_bytes(one.finish().unwrap()).is_ok(), "one shard is a whole file");
}

#[test]
fn g47_shards_of_other_models() {
    let join = |shards: [Vec<u8>; 2]| Gguf::from_shards(shards.into()).unwrap_err().fault;
    let fault = join([shard(0, 2, 2, &["a"]), shard(1, 2, 3, &["b", "c"])]);
    assert!(matches!(fault, Fault::ForeignShard { key: "split.tensors.count", .. }), "{fault}");
    let fault = join([shard(0, 2, 4, &["a"]), shard(1, 2, 4, &["b", "c"])]);
    assert!(matches!(fault, Fault::ShardTensors { declared: 4, found: 3 }), "{fault}");
    let fault = join([shard(0, 2, 3, &["a"]), shard(1, 2, 3, &["b", "a"])]);
    assert!(matches!(&fault, Fault::TensorInTwoShards { tensor, first: 1 } if tensor == "a"), "{fault}");
    let mut w = Writer::new(Vec::new());
    w.metadata("general.architecture", "qwen2").unwrap().metadata("split.no", 1u16).unwrap();
    w.metadata("split.count", 2u16).unwrap().finish_header().unwrap();
    let fault = join([shard(0, 2, 1, &["a"]), w.finish().unwrap()]);
    assert!(matches!(&fault, Fault::ForeignShard { found, expected, .. } if found == "qwen2" && expected == "llama"));
}

#[test]
fn g47_files_put_together() {
    let dir = Directory::new("cat");
    for first in [vec![], vec!["a"], vec!["a", "b"]] {
        let total = first.len() as i32 + 1;
        let joined = [shard(0, 2, total, &first), shard(1, 2, total, &["c"])].concat();
        for name in ["m.gguf", "m-00001-of-00002.gguf"] {
            let e = error(&dir.write(name, &joined));
            assert!(matches!(e.fault, Fault::JoinedShards), "{e}");
            assert_eq!(e.offset as usize, shard(0, 2, total, &first).len());
        }
    }
}

#[test]
fn a_whole_file_may_be_named_like_a_shard() {
    let dir = Directory::new("named");
    let path = dir.write("m-00002-of-00003.gguf", &golden().0);
    let gguf = Gguf::open(&path).unwrap();
    assert_eq!(gguf.warnings(), [Warning::NamedLikeShard { path: path.clone() }]);
    assert!(gguf.warnings()[0].to_string().contains("read as a whole file"));
    let path = dir.write("m-00001-of-00001.gguf", &golden().0);
    assert_eq!(Gguf::open(&path).unwrap().warnings(), []);
}

#[test]
fn a_directory_has_one_model() {
    let dir = Directory::new("directory");
    dir.write("config.json", b"{}");
    dir.write("model.safetensors", b"");
    let e = error(&dir.0);
    assert!(e.to_string().contains("has no GGUF file in it; it has safetensors"), "{e}");
    let path = dir.write("b.GGUF", &golden().0);
    assert_eq!(Gguf::open(&dir.0).unwrap().path(), Some(path.as_path()));
    dir.set(&set());
    let e = error(&dir.0);
    assert!(matches!(&e.fault, Fault::ManyModels { count: 2, .. }), "{e}");
    assert!(e.to_string().ends_with("has 2 models in it (b.GGUF, m-00001-of-00003.gguf); name one of them"), "{e}");
}

#[test]
fn damage_in_a_shard_names_it() {
    let dir = Directory::new("damage");
    let mut shards = set();
    shards[2].pop();
    let e = error(&dir.set(&shards)[0]);
    assert!(e.path.unwrap().ends_with("m-00003-of-00003.gguf"));
    shards[2] = b"version https://git-lfs.github.com/spec/v1".to_vec();
    let e = error(&dir.set(&shards)[0]);
    assert!(e.to_string().contains("m-00003-of-00003.gguf, byte 0: not a GGUF file") && e.to_string().contains("lfs"));
    shards[2] = shard(2, 3, 3, &["c"]);
    shards[2].extend([7; 10]);
    let gguf = Gguf::open(&dir.set(&shards)[0]).unwrap();
    let trailing: Vec<String> = gguf.warnings().iter().map(Warning::to_string).collect();
    assert_eq!(trailing.len(), 1);
    assert!(trailing[0].ends_with("m-00003-of-00003.gguf: 10 bytes after the last tensor are ignored"), "{trailing:?}");
    assert_eq!(gguf.trailing_bytes(), 10);
}

#[test]
fn every_prefix_of_every_shard_is_an_error() {
    let whole = set();
    for cut in 0..3 {
        for n in 0..whole[cut].len() {
            let mut shards = whole.clone();
            shards[cut].truncate(n);
            let e = Gguf::from_shards(shards).expect_err("a truncated shard was accepted");
            assert!(matches!(
                e.fault,
                Fault::Truncated { .. } | Fault::PastEnd { .. } | Fault::CountExceedsFile { .. }
            ));
        }
    }
}
