//! Files on disk: G48, as far as a file system can be had in a test; and that opening reads what is there.

use crate::raw::{Raw, golden};
use std::path::PathBuf;
use tombolo_gguf::{CUT_FILE_EXIT_CODE, Fault, Gguf, exit_when_a_file_is_cut, word_cut_files};

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
    let directory = path("directory");
    std::fs::create_dir_all(directory.join("m-00002-of-00002.gguf")).unwrap();
    let error = Gguf::open(&directory).unwrap_err();
    assert!(matches!(error.fault, Fault::NoModel { .. }), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
    let empty = path("empty");
    std::fs::write(&empty, []).unwrap();
    assert!(matches!(Gguf::open(&empty).unwrap_err().fault, Fault::Truncated { .. }));
    std::fs::remove_file(empty).unwrap();
}

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
fn g48_pipes_are_not_waited_for() {
    let pipe = path("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let error = Gguf::open(&pipe).unwrap_err();
    std::fs::remove_file(pipe).unwrap();
    assert!(matches!(error.fault, Fault::NotAFile { found: "a device, pipe or socket" }), "{error}");
    // Files of /proc say that they have no bytes.
    assert!(matches!(Gguf::open("/proc/self/status".as_ref()).unwrap_err().fault, Fault::Truncated { .. }));
}

#[test]
fn g48_a_file_that_changes_is_found_out() {
    let path = path("changing.gguf");
    std::fs::write(&path, golden().0).unwrap();
    let length = golden().0.len() as u64;
    let gguf = Gguf::open(&path).unwrap();
    gguf.check_unchanged().unwrap();
    // Another file under the same name: the one that is mapped lives on.
    let other = path.with_extension("other");
    std::fs::write(&other, b"other").unwrap();
    std::fs::rename(&other, &path).unwrap();
    gguf.check_unchanged().unwrap();
    assert_eq!(gguf.bytes(&gguf.tensors()[0]).len(), 68);

    std::fs::write(&path, golden().0).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
    let error = gguf.check_unchanged().unwrap_err();
    assert!(matches!(error.fault, Fault::Changed { was, is: 100 } if was == length), "{error}");
    assert!(error.to_string().contains("changing.gguf: changed while it was in use"), "{error}");
    std::fs::remove_file(&path).unwrap();
    gguf.check_unchanged().unwrap();
}

#[test]
fn bytes_that_were_released_come_back() {
    let path = path("released.gguf");
    let mut w = tombolo_gguf::Writer::new(Vec::new());
    w.tensor("t", &[1 << 20], tombolo_gguf::TensorType::F32).unwrap().finish_header().unwrap();
    let data: Vec<u8> = (0..4usize << 20).map(|i| (i % 251) as u8).collect();
    w.data(&data).unwrap();
    std::fs::write(&path, w.finish().unwrap()).unwrap();
    let gguf = Gguf::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let info = gguf.tensor("t").unwrap();
    for _ in 0..2 {
        assert!(gguf.bytes(info) == data);
        gguf.release(info);
    }
    assert!(gguf.bytes(info) == data);
    golden().read().unwrap().release(info);
}

/// Set for a copy of this test program that is to read past the end of a file.
const READ_CUT_FILE: &str = "TOMBOLO_TEST_READ_CUT_FILE";
/// Set for one that words the line itself.
const WORDED: &str = "TOMBOLO_TEST_WORDED";

#[test]
fn g48_a_file_that_is_cut_ends_the_program_with_one_line() {
    if let Some(path) = std::env::var_os(READ_CUT_FILE) {
        exit_when_a_file_is_cut().unwrap();
        if std::env::var_os(WORDED).is_some() {
            word_cut_files(|what| format!("<{what}>"));
        }
        let gguf = Gguf::open(path.as_ref()).unwrap();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(100).unwrap();
        let sum: u64 = gguf.bytes(&gguf.tensors()[0]).iter().map(|&b| u64::from(b)).sum();
        panic!("read {sum} from a file that is not there");
    }
    let path = path("cut.gguf");
    let test = "files::g48_a_file_that_is_cut_ends_the_program_with_one_line";
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", test, "--nocapture"]).env(READ_CUT_FILE, &path);
    for begin in ["error: ", "<"] {
        std::fs::write(&path, Raw::new(1, 0).tensor("t", &[1 << 20], 24, 0).data(1 << 20).0).unwrap();
        let ran = child.output().unwrap();
        let errors = String::from_utf8(ran.stderr).unwrap();
        assert_eq!(ran.status.code(), Some(CUT_FILE_EXIT_CODE), "{errors}");
        let line = errors.lines().last().unwrap();
        assert!(line.starts_with(begin) && line.contains("cut.gguf: bytes that were there"), "{errors}");
        assert_eq!(line.ends_with('>'), begin == "<", "{errors}");
        child.env(WORDED, "");
    }
    std::fs::remove_file(&path).unwrap();
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
