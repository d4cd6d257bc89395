//! What follows from machines: which verdicts, how severe, with which evidence.

mod common;

use common::{machine, of_rule, rules};
use std::collections::BTreeMap;
use tombolo_topology::verdicts;
use tombolo_topology::{Gpu, Host, Iommu, Machine, P2pState, P2pTest, Pairs, Pcie, Severity};

fn starting_case() -> Machine {
    machine(&["rtx-pro-6000-x8/topo-m.txt", "rtx-pro-6000-x8/pcie.csv", "rtx-pro-6000-x8/observed.json"])
}

#[test]
fn the_starting_case_says_what_took_days_to_find() {
    let m = starting_case();
    assert_eq!(
        rules(&m),
        "custom-all-reduce:warning nccl-path:warning sockets:warning p2p-tested:note p2p-staged:note multicast:note"
    );
    let custom = of_rule(&m, "custom-all-reduce");
    assert!(custom.title.contains("vLLM and SGLang turn their custom all-reduce off: 8 GPUs"), "{}", custom.title);
    assert_eq!(custom.evidence[0].fact, "GPU0 to GPU1 is NODE; 28 of 28 pairs are without NVLink");
    assert_eq!(custom.evidence[0].origin, "topo-m.txt, line 2");
    let nccl = of_rule(&m, "nccl-path");
    assert!(nccl.title.contains("uses peer access up to PXB only: here for none of 28 pairs"), "{}", nccl.title);
    assert!(nccl.fix[0].starts_with("`export NCCL_P2P_LEVEL=SYS`, once"), "{}", nccl.fix[0]);
    let sockets = of_rule(&m, "sockets");
    assert!(sockets.reason.starts_with("GPU0–GPU3 and GPU4–GPU7 are islands"), "{}", sockets.reason);
    assert!(of_rule(&m, "multicast").evidence.iter().any(|e| e.fact.contains("RTX PRO 6000 Blackwell has none")));
}

#[test]
fn common_machines() {
    let cases: [(&[&str], &str); 8] = [
        (
            &["h200-x2/topo-m.txt", "h200-x2/pcie.csv", "h200-x2/topo-p2p-r.txt"],
            "p2p-tested:note virtual-machine:note custom-all-reduce:good",
        ),
        (&["2x3090-phb.txt"], "p2p-off:warning custom-all-reduce:note multicast:note persistence:note"),
        (
            &["4x4090-two-sockets.txt"],
            "p2p-off:warning custom-all-reduce:warning link-width:warning sockets:warning multicast:note",
        ),
        (&["8xh100-nv18.txt"], "custom-all-reduce:good"),
        (&["4x3090-nv4.txt"], "p2p-off:warning custom-all-reduce:warning p2p-tested:note multicast:note"),
        (
            &["8xa6000-switches.txt"],
            "custom-all-reduce:warning nccl-path:warning sockets:warning p2p-tested:note multicast:note write-collapse:note",
        ),
        (
            &["vm-4xl40s.txt"],
            "custom-all-reduce:warning nccl-path:warning p2p-tested:note multicast:note virtual-machine:note",
        ),
        (
            &["2xa6000-q.txt"],
            "link-width:warning bar1:warning link-speed:note paths-unknown:note multicast:note power:note persistence:note",
        ),
    ];
    let found = cases.map(|(names, wanted)| (names, rules(&machine(names)), wanted));
    let wrong: Vec<_> = found.iter().filter(|(_, found, wanted)| found != wanted).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_verdict_has_evidence_a_reason_and_something_to_do() {
    let mut all = Vec::new();
    for names in [
        &["rtx-pro-6000-x8/topo-m.txt", "rtx-pro-6000-x8/pcie.csv"][..],
        &["2x3090-phb.txt"],
        &["4x4090-two-sockets.txt"],
        &["8xa6000-switches.txt"],
        &["nccl-8xpro6000.xml"],
        &["2xa6000-q.txt"],
        &["bandwidth-2x5090.txt"],
        &["vm-4xl40s.txt"],
        &["windows-2-cards.txt"],
        &["3060-q.txt"],
        &["8x4090-switches.txt"],
        &["bandwidth-2x4090-no-peers.txt"],
    ] {
        all.extend(verdicts(&machine(names)));
    }
    all.extend(verdicts(&troubled()));
    for verdict in &all {
        assert!(!verdict.evidence.is_empty() && verdict.reason.len() > 60, "{verdict:?}");
        let done = matches!(verdict.severity, Severity::Good) || verdict.rule == "custom-all-reduce";
        assert!(done || !verdict.fix.is_empty(), "{verdict:?}");
        for text in
            verdict.fix.iter().chain([&verdict.title, &verdict.reason]).chain(verdict.evidence.iter().map(|e| &e.fact))
        {
            assert!(!text.contains("  ") && !text.contains('\n') && !text.is_empty(), "{text:?}");
        }
    }
    let mut rules: Vec<_> = all.iter().map(|v| v.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    assert_eq!(rules.len(), 23, "{rules:?}");
}

/// A machine with everything wrong that can be.
fn troubled() -> Machine {
    let mut m = machine(&["8xa6000-switches.txt"]);
    for (at, gpu) in m.gpus.iter_mut().enumerate() {
        *gpu = Gpu {
            index: at as u32,
            name: Some("NVIDIA RTX A6000".into()),
            memory_bytes: Some(48 << 30),
            bar1_bytes: Some(256 << 20),
            power_limit_w: Some(200.0),
            power_default_w: Some(300.0),
            persistence: Some(false),
            performance_state: Some(0),
            mig: Some(at == 3),
            pcie: Pcie {
                gen_now: Some(3),
                gen_max: Some(4),
                width_now: Some(4),
                width_max: Some(16),
                ..Pcie::default()
            },
            ..gpu.clone()
        };
    }
    let mut tested: Vec<Vec<Option<P2pTest>>> = vec![vec![Some(P2pTest::Right); 8]; 8];
    tested[2][5] = Some(P2pTest::Silent);
    m.p2p.tested = Pairs::new(tested).ok();
    m.host = Host {
        iommu: Some(Iommu::Translated),
        acs_bridges: Some(vec!["0000:40:01.1".into()]),
        shm_bytes: Some(64 << 20),
        memlock_bytes: Some(8 << 20),
        transparent_hugepages: Some(false),
        virtual_machine: Some(true),
        container: Some(true),
        ..Host::default()
    };
    m
}

#[test]
fn trouble_is_found_and_the_worst_comes_first() {
    let found = rules(&troubled());
    let wanted = "p2p-tested:error iommu:error acs:error link-speed:error custom-all-reduce:warning \
                  nccl-path:warning link-width:warning sockets:warning bar1:warning mig:warning shared-memory:warning multicast:note \
                  write-collapse:note power:note persistence:note memlock:note hugepages:note virtual-machine:note";
    assert_eq!(found, wanted);
    assert_eq!(
        of_rule(&troubled(), "p2p-tested").title,
        "peer access is broken: what GPU2 stored in GPU5 never arrived"
    );
    assert!(of_rule(&troubled(), "acs").fix[1].contains("setpci -s 0000:40:01.1 ECAP_ACS+6.w=0000"));
    assert!(
        of_rule(&troubled(), "link-speed").title.contains("trained down while it works (3.9 of 7.9 GB/s each way)")
    );
}

#[test]
fn peer_access_slower_than_none_is_an_error() {
    let m = machine(&["bandwidth-2x5090.txt"]);
    let staged = of_rule(&m, "p2p-staged");
    assert_eq!(staged.severity, Severity::Error);
    assert!(staged.title.contains("takes a detour: 9.9 GB/s"), "{}", staged.title);
    assert_eq!(staged.evidence[1].fact, "GPU0 to GPU1 through host memory: 39.8 GB/s");
    let mut quick = m.clone();
    quick.p2p.measured_gb_s = Pairs::new(vec![vec![None, Some(54.0)], vec![Some(54.1), None]]).ok();
    assert!(verdicts(&quick).iter().all(|v| v.rule != "p2p-staged"));
}

#[test]
fn registry_keys_settle_the_question_of_staging() {
    let mut m = starting_case();
    assert_eq!(of_rule(&m, "p2p-staged").severity, Severity::Note);
    m.host.driver_registry = Some(BTreeMap::new());
    assert_eq!(of_rule(&m, "p2p-staged").severity, Severity::Warning);
    m.host.driver_registry = Some(BTreeMap::from([("ForceP2P".to_string(), "0x11".to_string())]));
    assert!(verdicts(&m).iter().all(|v| v.rule != "p2p-staged"));
}

#[test]
fn an_idle_link_is_no_fault_and_a_short_one_is() {
    let mut m = machine(&["2x3090-phb.txt"]);
    let pcie = |now, width| Pcie {
        gen_now: Some(now),
        gen_max: Some(4),
        width_now: Some(width),
        width_max: Some(16),
        ..Pcie::default()
    };
    (m.gpus[0].pcie, m.gpus[1].pcie) = (pcie(1, 16), pcie(1, 16));
    assert_eq!(of_rule(&m, "link-speed").severity, Severity::Note);
    m.gpus[0].performance_state = Some(2);
    assert_eq!(of_rule(&m, "link-speed").severity, Severity::Error);
    m.gpus[1].pcie = pcie(4, 8);
    let width = of_rule(&m, "link-width");
    assert_eq!(
        (width.severity, width.title.as_str()),
        (Severity::Warning, "GPU1: x8 instead of x16, 15.8 GB/s each way")
    );
    m.gpus[1].pcie = pcie(4, 1);
    assert_eq!(of_rule(&m, "link-width").severity, Severity::Warning, "slow, and not broken");
}

#[test]
fn interleaved_islands_get_an_order() {
    let mut m = starting_case();
    let near = |a: usize, b: usize| if a % 2 == b % 2 { "NODE" } else { "SYS" };
    m.links = Some(Pairs::from_fn(8, |a, b| if a == b { "X" } else { near(a, b) }.parse().ok()));
    assert_eq!(of_rule(&m, "sockets").fix[0], "number ranks island by island: `CUDA_VISIBLE_DEVICES=0,2,4,6,1,3,5,7`");
}

#[test]
fn three_roots_with_a_shared_one_risk_collapse() {
    let m = machine(&["nccl-8xpro6000.xml"]);
    let verdict = of_rule(&m, "write-collapse");
    assert_eq!(verdict.severity, Severity::Warning);
    assert!(
        verdict.evidence[0].fact.contains("GPU0, GPU1 | GPU2, GPU3 | GPU4, GPU5 | GPU6, GPU7"),
        "{:?}",
        verdict.evidence
    );
}

#[test]
fn what_is_not_known_is_not_judged() {
    assert_eq!(rules(&Machine::default()), "");
    let gpus = (0..4).map(|index| Gpu { index, ..Gpu::default() }).collect();
    assert_eq!(rules(&Machine { gpus, ..Machine::default() }), "paths-unknown:note");
    let mut m = machine(&["8xa6000-switches.txt"]);
    m.p2p.read = Some(Pairs::from_fn(8, |a, b| if a == b { P2pState::Itself } else { P2pState::DisabledByRegistry }));
    let off = of_rule(&m, "p2p-off");
    assert!(off.fix[0].contains("/proc/driver/nvidia/params"), "{off:?}");
    assert!(verdicts(&m).iter().all(|v| v.rule != "nccl-path" && v.rule != "p2p-tested"));
}
