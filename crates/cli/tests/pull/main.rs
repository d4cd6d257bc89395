//! `tombolo pull`, from a hub in the same process.
#![allow(missing_docs)]

mod hub;

use hub::{Hub, Manner, sum};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

fn pull(hub: &Hub, dir: &Path, more: &[&str]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tombolo"));
    command.args(["pull", "--endpoint", &hub.base, "--dir", dir.to_str().unwrap(), "--retries", "1"]).args(more);
    command.env("NO_PROXY", "*").env_remove("HF_TOKEN").env_remove("SSL_CERT_FILE").env("TOMBOLO_CONFIG", "none");
    let output = command.output().expect("the binary starts");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Ran { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

#[track_caller]
fn succeeds(hub: &Hub, dir: &Path, more: &[&str]) -> Ran {
    let ran = pull(hub, dir, more);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    ran
}

/// Ends with this code, and one line at the end that holds all parts.
#[track_caller]
fn fails(hub: &Hub, dir: &Path, more: &[&str], code: i32, parts: &[&str]) {
    let ran = pull(hub, dir, more);
    assert_eq!(ran.code, Some(code), "{}", ran.err);
    let last = ran.err.lines().last().unwrap_or_default();
    assert!(last.starts_with("error: ") && parts.iter().all(|part| last.contains(part)), "{parts:?}: {}", ran.err);
}

/// A folder of this test, empty.
fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("pull-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Bytes that differ from place to place.
fn content(length: usize) -> Vec<u8> {
    (0..length as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

const NAME: &str = "M-Q4_K_M.gguf";
const PART: &str = "M-Q4_K_M.gguf.part";

#[test]
fn a_file_comes_whole_and_is_not_fetched_again() {
    let (bytes, dir) = (content(600_000), folder("fresh"));
    let files: [(&str, &[u8]); 3] = [(NAME, &bytes), ("M-Q8_0.gguf", b"other"), ("README.md", b"text")];
    let hub = Hub::start(&files, Manner { token: Some("secret"), page: Some(1), ..Manner::default() });
    let ran = succeeds(&hub, &dir, &["o/m", "--token", "secret"]);
    assert_eq!(ran.out.trim_end(), dir.join(NAME).to_str().unwrap());
    assert_eq!(names(&dir), [NAME]);
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
    let ran = succeeds(&hub, &dir, &["o/m:q4_k_m", "--token", "secret", "--json"]);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    let file = &json["files"][0];
    assert_eq!((&file["downloaded"], &file["bytes"]), (&json!(0), &json!(600_000)));
    assert_eq!((&file["sha256"], &json["quant"]), (&json!(sum(&bytes)), &json!("Q4_K_M")));
    assert_eq!(hub.ranges(), [None]);
    std::fs::write(dir.join(NAME), vec![0; bytes.len()]).unwrap();
    fails(&hub, &dir, &["o/m", "--token", "secret"], 1, &["another file of the same size"]);
    assert!(!ran.err.contains("secret") && !ran.out.contains("secret"));
}

#[test]
fn what_broke_off_goes_on_where_it_was() {
    let (bytes, dir) = (content(900_000), folder("resume"));
    let manner = Manner { breaks_after: Some(300_000), breaks: 2, ..Manner::default() };
    let hub = Hub::start(&[(NAME, &bytes)], manner);
    let ran = succeeds(&hub, &dir, &["o/m"]);
    assert!(ran.err.contains("going on after"), "{}", ran.err);
    let ranges: Vec<u64> =
        hub.ranges().iter().flatten().map(|range| range[6..range.len() - 1].parse().unwrap()).collect();
    assert_eq!(ranges.len(), 2);
    assert!(ranges[0] <= 300_000 && ranges[0] > 0 && ranges[1] > ranges[0], "{ranges:?}");
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
    assert_eq!(names(&dir), [NAME]);
}

#[test]
fn another_run_goes_on_too() {
    let (bytes, dir) = (content(700_000), folder("again"));
    let hub = Hub::start(&[(NAME, &bytes)], Manner::default());
    std::fs::write(dir.join(PART), &bytes[..400_000]).unwrap();
    let ran = succeeds(&hub, &dir, &["o/m", "--json"]);
    let json: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(json["files"][0]["downloaded"], 300_000);
    assert_eq!(hub.ranges(), [Some("bytes=400000-".to_string())]);
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
    // All of it is there, and only its name is missing.
    std::fs::rename(dir.join(NAME), dir.join(PART)).unwrap();
    succeeds(&hub, &dir, &["o/m"]);
    assert_eq!(hub.ranges().len(), 1);
}

#[test]
fn a_hub_without_ranges_begins_anew() {
    let (bytes, dir) = (content(500_000), folder("ignores"));
    let hub = Hub::start(&[(NAME, &bytes)], Manner { ignores_range: true, ..Manner::default() });
    std::fs::write(dir.join(PART), b"something else").unwrap();
    let ran = succeeds(&hub, &dir, &["o/m"]);
    assert!(ran.err.contains("once more from the beginning"), "{}", ran.err);
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
}

#[test]
fn a_wrong_checksum_leaves_nothing() {
    let (bytes, dir) = (content(100_000), folder("lies"));
    let hub = Hub::start(&[(NAME, &bytes)], Manner { lies: true, ..Manner::default() });
    fails(&hub, &dir, &["o/m"], 1, &["SHA-256", "should have", &sum(&bytes)]);
    assert_eq!(names(&dir), [] as [&str; 0]);
    // A beginning that is none is found out too.
    let honest = Hub::start(&[(NAME, &bytes)], Manner::default());
    std::fs::write(dir.join(PART), [7; 1000]).unwrap();
    fails(&honest, &dir, &["o/m"], 1, &["SHA-256"]);
    succeeds(&honest, &dir, &["o/m"]);
}

#[test]
fn what_stays_short_is_kept_for_later() {
    let (bytes, dir) = (content(400_000), folder("short"));
    let manner = Manner { breaks_after: Some(0), breaks: usize::MAX, ..Manner::default() };
    let hub = Hub::start(&[(NAME, &bytes)], manner);
    std::fs::write(dir.join(PART), &bytes[..1000]).unwrap();
    fails(&hub, &dir, &["o/m"], 1, &["stays, and the same command goes on"]);
    assert_eq!(std::fs::read(dir.join(PART)).unwrap(), &bytes[..1000]);
    assert_eq!(names(&dir), [PART]);
}

#[test]
fn shards_come_together_or_not_at_all() {
    let parts = [content(1000), content(2000)];
    let files: [(&str, &[u8]); 2] =
        [("Q4_K_M/M v2-Q4_K_M-00002-of-00002.gguf", &parts[1]), ("Q4_K_M/M v2-Q4_K_M-00001-of-00002.gguf", &parts[0])];
    let dir = folder("shards");
    let hub = Hub::start(&files, Manner::default());
    let ran = succeeds(&hub, &dir, &["o/m"]);
    assert!(ran.out.trim_end().ends_with("M v2-Q4_K_M-00001-of-00002.gguf"), "{}", ran.out);
    assert_eq!(names(&dir), ["M v2-Q4_K_M-00001-of-00002.gguf", "M v2-Q4_K_M-00002-of-00002.gguf"]);
    let hub = Hub::start(&files[..1], Manner::default());
    fails(&hub, &folder("half"), &["o/m"], 2, &["1 of 2 shards"]);
    let ran = succeeds(&hub, &dir, &["o/m", "--list"]);
    assert!(ran.out.starts_with("Q4_K_M"), "{}", ran.out);
}

#[test]
fn a_token_does_not_follow_to_another_host() {
    let (bytes, dir) = (content(5000), folder("redirect"));
    let elsewhere = Hub::start(&[(NAME, &bytes)], Manner::default());
    // Another name of this machine.
    let to = elsewhere.base.replace("127.0.0.1", "localhost");
    let manner = Manner { token: Some("secret"), redirects_to: Some(to), ..Manner::default() };
    let hub = Hub::start(&[(NAME, &bytes)], manner);
    succeeds(&hub, &dir, &["o/m", "--token", "secret"]);
    let seen = elsewhere.seen();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].token, None);
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
}

#[test]
fn redirects_are_followed_where_they_may_lead() {
    let bytes = content(5000);
    let leading = |location: &str| {
        let manner = Manner { token: Some("secret"), location: Some(location.into()), ..Manner::default() };
        Hub::start(&[(NAME, &bytes)], manner)
    };
    // On the same host, the token is still asked for.
    let dir = folder("moved");
    succeeds(&leading(&format!("/moved/{NAME}")), &dir, &["o/m", "--token", "secret"]);
    assert_eq!(std::fs::read(dir.join(NAME)).unwrap(), bytes);
    let dir = folder("astray");
    for (location, part) in [
        ("file:///etc/passwd", "a redirect leads to file:, and only http and https are followed"),
        ("ftp://localhost/x", "leads to ftp:"),
        ("http:///x", "leads to no address"),
        (&format!("/o/m/resolve/main/{NAME}"), "more than 10 redirects"),
    ] {
        let hub = leading(location);
        fails(&hub, &dir, &["o/m", "--token", "secret"], 1, &[part]);
        assert!(hub.ranges().len() <= 11, "it is asked once, not again");
    }
    assert_eq!(names(&dir), [] as [&str; 0]);
}

#[test]
fn a_hub_that_wants_to_be_asked_later_is() {
    let (bytes, dir) = (content(5000), folder("later"));
    let busy = |status, again| {
        let manner = Manner { refuses: (1, status), again: Some(again), ..Manner::default() };
        Hub::start(&[(NAME, &bytes)], manner)
    };
    let started = std::time::Instant::now();
    let ran = succeeds(&busy(429, "1"), &dir, &["o/m"]);
    assert!(started.elapsed().as_millis() >= 1000, "{}", ran.err);
    assert!(ran.err.contains("answers 429: to be asked again in 1 s; going on"), "{}", ran.err);
    let dir = folder("much-later");
    let hub = busy(503, "86400");
    fails(&hub, &dir, &["o/m"], 1, &["answers 503: to be asked again in 86400 s", "the same command tries again"]);
    assert_eq!((hub.ranges().len(), names(&dir)), (1, Vec::new()));
    let date = "Wed, 21 Oct 2026 07:28:00 GMT";
    assert!(succeeds(&busy(503, date), &dir, &["o/m"]).err.contains(&format!("again after {date}")));
    let all = Manner { status: Some(429), again: Some("30"), ..Manner::default() };
    fails(&Hub::start(&[], all), &dir, &["o/m"], 1, &["too many requests: try again in 30 s"]);
}

#[test]
fn nothing_is_left_that_holds_nothing() {
    let (bytes, dir) = (content(5000), folder("nothing"));
    for (status, code) in [(401, 2), (404, 2), (500, 1)] {
        let manner = Manner { refuses: (usize::MAX, status), ..Manner::default() };
        let hub = Hub::start(&[(NAME, &bytes)], manner);
        fails(&hub, &dir, &["o/m"], code, &[&status.to_string()]);
        assert_eq!(names(&dir), [] as [&str; 0], "{status}");
        // One that was there goes, too.
        std::fs::write(dir.join(PART), b"").unwrap();
        fails(&hub, &dir, &["o/m"], code, &[]);
        assert_eq!(names(&dir), [] as [&str; 0], "{status}");
    }
    let manner = Manner { breaks_after: Some(0), breaks: usize::MAX, ..Manner::default() };
    fails(&Hub::start(&[(NAME, &bytes)], manner), &dir, &["o/m"], 1, &["nothing came"]);
    assert_eq!(names(&dir), [] as [&str; 0]);
}

#[test]
fn a_token_that_is_none_is_named_and_not_shown() {
    let hub = Hub::start(&[(NAME, b"abc")], Manner::default());
    let dir = folder("token");
    for token in ["hf_very\nsecret", "hf_very secret", "hf_very\u{7f}secret", "hf_very\u{e9}secret"] {
        let ran = pull(&hub, &dir, &["o/m", "--token", token]);
        assert_eq!(ran.code, Some(2), "{}", ran.err);
        assert!(ran.err.contains("error: --token") && !ran.err.contains("secret"), "{}", ran.err);
    }
    assert_eq!(hub.seen(), []);
    let config = dir.join("config.toml");
    std::fs::write(&config, "[pull]\ntoken = \"very\\nsecret\"\n").unwrap();
    let ran = pull(&hub, &dir, &["o/m", "--config", config.to_str().unwrap()]);
    assert!(ran.code == Some(2) && ran.err.contains("config.toml: line 2: --token"), "{}", ran.err);
    assert!(!ran.err.contains("secret"), "{}", ran.err);
}

#[test]
fn folders_that_cannot_be_written_to_are_told() {
    let hub = Hub::start(&[(NAME, b"abc")], Manner::default());
    let file = folder("no-folder").join("file");
    std::fs::write(&file, b"").unwrap();
    for (dir, parts) in [
        (Path::new("/proc"), &["/proc", "--dir"][..]),
        (Path::new("/proc/none"), &["--dir /proc/none", "cannot be made"]),
        (&file, &["it is a file, and a folder is needed"]),
    ] {
        fails(&hub, dir, &["o/m"], 1, parts);
    }
}

#[test]
fn one_odd_entry_spoils_no_list() {
    let (bytes, dir) = (*b"abc", folder("odd"));
    let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(self::sum(&bytes), sum);
    let list = r#"[{"type":"file","path":"a-Q2_K.gguf","size":-5}, 7, null, {"type":"file","path":"b-Q3_K.gguf","size":1e999},
        {"type":"file","path":["c"],"size":"x"}, {"type":"directory","path":"d"},
        {"type":"file","path":"M-Q4_K_M.gguf","size":3,"lfs":{"size":3,"oid":"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}}]"#;
    let hub = Hub::start(&[(NAME, &bytes)], Manner { list_text: Some(list), ..Manner::default() });
    let ran = succeeds(&hub, &dir, &["o/m"]);
    assert!(ran.err.contains("5 files with impossible names or sizes are left out"), "{}", ran.err);
    assert_eq!(names(&dir), [NAME]);
}

#[test]
fn what_is_wrong_is_one_line() {
    let dir = folder("wrong");
    let hub = Hub::start(&[("M-Q2_K.gguf", b"12"), ("M-Q3_K_S.gguf", b"34")], Manner::default());
    fails(&hub, &dir, &["o/m"], 2, &["which one?", "Q2_K", "Q3_K_S"]);
    fails(&hub, &dir, &["o/m:Q8_0"], 2, &["which one?"]);
    fails(&hub, &dir, &["o/other"], 2, &["o/other", "does not have it", "404"]);
    fails(&hub, &dir, &["../../etc"], 2, &["OWNER/NAME"]);
    fails(&hub, &dir, &["o/m", "--revision", ".."], 2, &["--revision"]);
    let with = |status| Hub::start(&[], Manner { status: Some(status), ..Manner::default() });
    fails(&with(401), &dir, &["o/m"], 2, &["--token"]);
    fails(&with(403), &dir, &["o/m", "--token", "x"], 2, &["the token does not open it"]);
    fails(&with(500), &dir, &["o/m"], 1, &["500"]);
    let listing = |list| Hub::start(&[], Manner { list: Some(list), ..Manner::default() });
    fails(&listing(json!({"error": "x"})), &dir, &["o/m"], 1, &["not as a hub has it"]);
    fails(&listing(json!([])), &dir, &["o/m"], 2, &["no GGUF files"]);
    assert_eq!(names(&dir), [] as [&str; 0]);
}

#[test]
fn hostile_names_reach_no_file() {
    let dir = folder("hostile");
    let entry = |path: &str| json!({"type": "file", "path": path, "size": 3, "lfs": {"oid": sum(b"abc"), "size": 3}});
    let list: Vec<Value> =
        ["../../up-Q4_K_M.gguf", "/etc/abs-Q4_K_M.gguf", ".hid-Q4_K_M.gguf", "a\\b-Q4_K_M.gguf", "a\n.gguf"]
            .map(entry)
            .to_vec();
    let hub = Hub::start(&[], Manner { list: Some(list.into()), ..Manner::default() });
    let ran = pull(&hub, &dir, &["o/m:Q4_K_M"]);
    assert_eq!(ran.code, Some(2), "{}", ran.err);
    assert!(ran.err.contains("5 files with impossible names"), "{}", ran.err);
    assert_eq!(names(&dir), [] as [&str; 0]);
    assert!(hub.ranges().is_empty());
    let many: Vec<Value> = (0..50_000).map(|i| entry(&format!("{i}-Q{i}.gguf"))).collect();
    let hub = Hub::start(&[], Manner { list: Some(many.into()), ..Manner::default() });
    fails(&hub, &dir, &["o/m"], 2, &["which one?"]);
}

#[test]
fn a_disk_without_room_is_told_before_and_when_it_is_full() {
    let dir = folder("space");
    let huge = json!([{"type": "file", "path": NAME, "size": 3, "lfs": {"oid": sum(b"abc"), "size": 1u64 << 44}}]);
    let hub = Hub::start(&[(NAME, b"abc")], Manner { list: Some(huge), ..Manner::default() });
    fails(&hub, &dir, &["o/m"], 1, &["16384.00 GiB are needed"]);
    assert!(hub.ranges().is_empty(), "nothing was asked for");
    // Writing to this device always finds no room.
    let full = folder("full");
    std::os::unix::fs::symlink("/dev/full", full.join(PART)).unwrap();
    let hub = Hub::start(&[(NAME, &content(5000))], Manner::default());
    fails(&hub, &full, &["o/m"], 1, &[PART]);
    assert!(!full.join(NAME).exists());
}

#[test]
fn two_at_once_do_not_write_the_same_file() {
    let dir = folder("lock");
    let hub = Hub::start(&[(NAME, &content(5000))], Manner::default());
    let held = std::fs::File::create(dir.join(PART)).unwrap();
    held.lock().unwrap();
    fails(&hub, &dir, &["o/m"], 1, &["another download"]);
    drop(held);
    succeeds(&hub, &dir, &["o/m"]);
}
