//! Files on disk: G48, as far as a file system can be had in a test; and that opening reads what is there.

use crate::raw::golden;
use std::path::PathBuf;
use tombolo_gguf::{Fault, Gguf};

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tombolo-gguf-{}-{name}", std::process::id()))
}

#[test]
fn opens_what_is_there() {
    let path = path("good.gguf");
    std::fs::write(&path, golden().0).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(gguf.path(), Some(path.as_path()));
    assert_eq!(gguf.file_bytes(), golden().0.len() as u64);
    let held = golden().read().unwrap();
    for (a, b) in gguf.tensors().iter().zip(held.tensors()) {
        assert_eq!((a, gguf.bytes(a)), (b, held.bytes(b)));
    }
}

#[test]
fn g48_what_is_no_file() {
    let error = Gguf::open(&path("absent")).unwrap_err();
    assert!(matches!(error.fault, Fault::Io { what: "open", .. }), "{error}");
    assert!(error.to_string().contains("absent: cannot open: "), "{error}");
    let error = Gguf::open(&std::env::temp_dir()).unwrap_err();
    assert!(matches!(error.fault, Fault::NotAFile { found: "a directory" }), "{error}");
    let empty = path("empty");
    std::fs::write(&empty, []).unwrap();
    assert!(matches!(Gguf::open(&empty).unwrap_err().fault, Fault::Truncated { .. }));
    std::fs::remove_file(empty).unwrap();
}

#[cfg(unix)]
#[test]
fn g48_devices_links_and_sparse_files() {
    let error = Gguf::open("/dev/zero".as_ref()).unwrap_err();
    assert!(matches!(error.fault, Fault::NotAFile { .. }), "{error}");
    let link = path("loop");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    assert!(matches!(Gguf::open(&link).unwrap_err().fault, Fault::Io { .. }));
    std::fs::remove_file(link).unwrap();
    let sparse = path("sparse");
    std::fs::File::create(&sparse).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(Gguf::open(&sparse).unwrap_err().fault, Fault::BadMagic { .. }));
    std::fs::remove_file(sparse).unwrap();
}

#[test]
fn a_path_cannot_forge_a_line() {
    let error = Gguf::open("no\nsuch\u{1b}[31m file".as_ref()).unwrap_err();
    assert!(!error.to_string().chars().any(char::is_control), "{error}");
}

#[test]
fn threads_can_share_a_file() {
    let gguf = golden().read().unwrap();
    std::thread::scope(|s| {
        let reads: Vec<_> = gguf.tensors().iter().map(|info| s.spawn(|| gguf.bytes(info).len())).collect();
        let lengths: Vec<usize> = reads.into_iter().map(|r| r.join().unwrap()).collect();
        assert_eq!(lengths, [68, 12, 144]);
    });
}
