//! `tombolo doctor` as a stranger runs it: pasted text in, a diagnosis and an exit code out.
#![allow(missing_docs)]

mod common;

use common::{run, run_with_input, scratch, succeed, text};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn machine(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../topology/tests/data")).join(name)
}

#[test]
fn the_starting_case_in_one_command_and_under_a_second() {
    let case = machine("rtx-pro-6000-x8");
    let started = Instant::now();
    let ran = succeed(&["doctor", "--machine", text(&case)]);
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    for part in [
        "8x RTX PRO 6000 Blackwell, PCIe only, 2 islands",
        "┌─ island A · NUMA node 0 · CPUs 0-63",
        "┌─ island B · NUMA node 1 · CPUs 64-127",
        "║ SYS: the interconnect between NUMA nodes",
        "GPU7  RTX PRO 6000 Blackwell  96 GiB  PCIe 5.0 x16, 63.0 GB/s each way",
        "between them: NODE, 63.0 GB/s each way",
        "GPU4     SYS   SYS   SYS   SYS     X  NODE  NODE  NODE",
        "0 errors, 3 warnings, 3 notes",
        "WARNING vLLM and SGLang turn their custom all-reduce off: 8 GPUs, not fully connected by NVLink",
        "WARNING NCCL by default uses peer access up to PXB only: here for none of 28 pairs",
        "NOTE    no multicast",
        "(topo-m.txt, line 2)",
        "NCCL_P2P_LEVEL=SYS",
    ] {
        assert!(ran.out.contains(part), "{part} is not in\n{}", ran.out);
    }
    assert!(!ran.out.contains('\u{1b}'), "no colours in a pipe");
}

#[test]
fn pasted_text_comes_by_standard_input() {
    let paste = std::fs::read(machine("4x4090-two-sockets.txt")).unwrap();
    let ran = run_with_input(&["doctor", "--machine", "-"], &paste);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("4x NVIDIA GeForce RTX 4090, PCIe only, 2 islands\n"), "{}", ran.out);
    assert!(ran.out.contains("GPU1: x8 instead of x16, 15.8 GB/s each way"), "{}", ran.out);
    // PowerShell's `>` writes UTF-16.
    let wide: Vec<u8> = [0xff, 0xfe]
        .into_iter()
        .chain(String::from_utf8_lossy(&paste).encode_utf16().flat_map(u16::to_le_bytes))
        .collect();
    assert_eq!(run_with_input(&["doctor", "--machine", "-"], &wide).out, ran.out);
}

#[test]
fn json_is_what_machine_reads() {
    let (a, b) = (machine("4x3090-nv4.txt"), machine("lspci-4x3090.txt"));
    let ran = succeed(&["doctor", "--machine", text(&a), text(&b), "--json"]);
    let report: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(report["healthy"], true);
    assert_eq!(report["islands"], serde_json::json!([[0, 1, 2, 3]]));
    assert_eq!(report["machine"]["links"][0][1], "NV4");
    assert_eq!(report["verdicts"][0]["rule"], "p2p-off");
    let again = run_with_input(&["doctor", "--machine", "-", "--json"], ran.out.as_bytes());
    assert_eq!(again.out, ran.out);
}

#[test]
fn the_worst_stands_first_and_what_is_slow_is_not_broken() {
    let ran = succeed(&["doctor", "--machine", text(&machine("4x5090-threadripper.txt"))]);
    let lines: Vec<&str> = ran.out.lines().take(4).collect();
    assert!(
        lines[1].starts_with("  WARNING no peer access between any of the 4 GPUs: the driver says NS"),
        "{}",
        ran.out
    );
    assert!(lines[3].starts_with("  WARNING GPU2: x4 instead of x16, 15.8 GB/s each way"), "{}", ran.out);
    let ran = succeed(&["doctor", "--machine", text(&machine("windows-2-cards.txt"))]);
    for part in
        ["driver       581.57 on Windows", "NOTE    what connects the GPUs is not known", "WARNING 2 GPUs of 2 kinds"]
    {
        assert!(ran.out.contains(part), "{part} is not in\n{}", ran.out);
    }
    let ran = succeed(&["doctor", "--machine", text(&machine("2x3090-phb.txt")), "--gpu", "NVIDIA H200"]);
    assert!(
        ran.out.contains("note: `--gpu NVIDIA H200` is ignored: the texts name the cards themselves"),
        "{}",
        ran.out
    );
}

#[test]
fn two_machines_are_not_mixed() {
    let h200 = machine("h200-x2/topo-m.txt");
    let ran = run(&["doctor", "--machine", text(&machine("2x3090-phb.txt")), text(&h200)]);
    assert_eq!((ran.code, ran.err.lines().count()), (Some(2), 1), "{}", ran.err);
    assert!(ran.err.contains("GPU0 to GPU1 is NV18, and PHB according to 2x3090-phb.txt, line"), "{}", ran.err);
}

#[test]
fn a_page_is_written_beside_the_text() {
    let page = scratch("machine.html");
    let ran = succeed(&["doctor", "--machine", text(&machine("topo.md")), "--report", text(&page)]);
    assert!(ran.out.contains("3x GPU without a name"), "{}", ran.out);
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(
        html.starts_with("<!doctype html>") && html.contains("<svg") && html.contains("custom-all-reduce"),
        "{html}"
    );
    let gone = run(&["doctor", "--machine", text(&machine("topo.md")), "--report", "/nowhere/page.html"]);
    assert_eq!((gone.code, gone.err.lines().count()), (Some(1), 1), "{}", gone.err);
}

#[test]
fn what_is_broken_is_exit_code_one() {
    let ran = run(&["doctor", "--machine", text(&machine("bandwidth-2x5090.txt"))]);
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.contains("ERROR   peer access takes a detour: 9.9 GB/s"), "{}", ran.out);
}

#[test]
fn a_wrong_text_is_one_line_that_names_its_line() {
    let bad = scratch("bad.txt");
    std::fs::write(&bad, "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tNODE\t X \t0-7\n").unwrap();
    let ran = run(&["doctor", "--machine", text(&bad)]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(2), ""));
    let wanted = "error: bad.txt, line 3: GPU0 to GPU1 is PHB and back it is NODE: the matrix was changed or mixed up on its way here\n";
    assert_eq!(ran.err, wanted);
    for args in [
        &["doctor", "--machine", "/nowhere"][..],
        &["doctor", "--machine"],
        &["doctor", "--machine", env!("CARGO_MANIFEST_DIR")],
    ] {
        let ran = run(args);
        // The crate's own folder has a manifest and no listings.
        assert_eq!((ran.code, ran.err.lines().count()), (Some(2), 1), "{args:?}: {}", ran.err);
    }
}

#[test]
fn this_machine_is_looked_at_with_or_without_gpus() {
    let ran = run(&["doctor"]);
    assert!(matches!(ran.code, Some(0 | 1)), "{}", ran.err);
    assert!(ran.out.contains("Looked at") && ran.out.contains("libnvidia-ml.so.1 (NVML)"), "{}", ran.out);
    let json: serde_json::Value = serde_json::from_str(&run(&["doctor", "--json"]).out).unwrap();
    assert!(json["looked"].as_array().is_some_and(|looked| looked.len() >= 4), "{json}");
}
