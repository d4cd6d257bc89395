//! Texts as strangers paste them: what is read, what is refused with which words, and what is said about the machine.

mod common;

use common::{data, of_rule, rules};
use tombolo_topology::{Machine, Severity, Source, gpus, read, verdicts};

fn of(name: &str, text: &str) -> Source {
    Source { name: name.into(), text: text.into() }
}

fn machine(name: &str) -> Machine {
    common::machine(&[name])
}

fn pasted(text: &str) -> Machine {
    read(&[of("pasted", text)]).unwrap_or_else(|error| panic!("{error}"))
}

fn fault(sources: &[Source]) -> String {
    read(sources).map_or_else(|error| error.to_string(), |m| format!("no error: {m:?}"))
}

/// A matrix of two GPUs.
fn two(class: &str, affinity: &str) -> String {
    format!("\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{class}\t{affinity}\nGPU1\t{class}\t X \t{affinity}\n")
}

#[test]
fn matrices_that_differ_are_of_two_machines() {
    let (phb, nv18) = (of("a.txt", &two("PHB", "0-63")), data("h200-x2/topo-m.txt"));
    let wanted = "topo-m.txt, line 2: GPU0 to GPU1 is NV18, and PHB according to a.txt, line 2: these are two machines, or two \
                  states of one";
    assert!(fault(&[phb.clone(), nv18.clone()]).starts_with(wanted), "{}", fault(&[phb.clone(), nv18.clone()]));
    assert!(
        fault(&[nv18, phb]).starts_with("a.txt, line 2: GPU0 to GPU1 is PHB, and NV18 according to topo-m.txt, line 2")
    );
    // One text with both is no better.
    let both = format!("machine A:\n{}machine B:\n{}", two("PHB", "0-15"), two("SYS", "0-15"));
    assert!(fault(&[of("p", &both)]).starts_with("p, line 7: GPU0 to GPU1 is SYS, and PHB according to p, line 3"));
    // `topo -mp` leaves NVLink out, in either order.
    let mp = format!("$ nvidia-smi topo -mp\n{}$ nvidia-smi topo -m\n{}", two("PHB", "0-15"), two("NV4", "0-15"));
    assert_eq!(pasted(&mp).class(0, 1).map(|c| c.to_string()).as_deref(), Some("NV4"));
    // A tree that is computed gives way to what the driver says.
    assert!(read(&[data("4x3090-nv4.txt"), data("lspci-4x3090.txt")]).is_ok());
}

#[test]
fn processors_that_differ_are_noted() {
    let m = read(&[of("a", &two("PHB", "0-15")), of("b", &two("PHB", "0-31"))]).unwrap_or_default();
    assert_eq!(m.gpus[0].cpu_affinity.as_deref(), Some("0-15"));
    assert!(
        m.notes[0]
            .starts_with("the processors near GPU0 are 0-15 according to a, line 2 and 0-31 according to b, line 2"),
        "{:?}",
        m.notes
    );
}

#[test]
fn devices_that_cannot_access_each_other_have_no_peer_access() {
    let m = machine("bandwidth-2x4090-no-peers.txt");
    assert_eq!(m.p2p_allowed(0, 1), Some(false));
    assert_eq!(m.p2p.measured_gb_s, None);
    let staged = m.p2p.staged_gb_s.as_ref().and_then(|t| *t.get(0, 1)?);
    assert_eq!(staged, Some(22.20));
    let off = of_rule(&m, "p2p-off");
    assert_eq!(
        (off.severity, off.title.as_str()),
        (Severity::Warning, "no peer access between the two GPUs: the driver says NS")
    );
    assert_eq!(off.evidence[0].origin, "bandwidth-2x4090-no-peers.txt, line 4");
    assert_eq!(off.evidence[1].fact, "GPU0 to GPU1 through host memory: 22.2 GB/s measured");
    assert!(verdicts(&m).iter().all(|v| v.severity != Severity::Error), "{}", rules(&m));
    // Without the table with peer access off, the other one is what host memory gave.
    let text = data("bandwidth-2x4090-no-peers.txt").text;
    let cut = text.split("Unidirectional P2P=Disabled").next().unwrap_or_default().to_string()
        + "Unidirectional P2P=Enabled Bandwidth (P2P Writes) Matrix (GB/s)\n   D\\D     0      1\n     0 911.00  22.10\n     1  22.30 922.37\n";
    assert_eq!(pasted(&cut).p2p.staged_gb_s.as_ref().and_then(|t| *t.get(0, 1)?), Some(22.10));
    // The driver's own table goes before, and the difference is told.
    let table = "$ nvidia-smi topo -p2p r\n \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n";
    let m = read(&[data("bandwidth-2x4090-no-peers.txt"), of("t", table)]).unwrap_or_default();
    assert_eq!(m.p2p_allowed(0, 1), Some(true));
    assert!(
        m.notes.iter().any(|n| n.contains("GPU0 cannot access GPU1, for which another text says OK")),
        "{:?}",
        m.notes
    );
}

#[test]
fn a_guest_is_told_by_what_it_shows() {
    let wsl = machine("wsl-2x4090.txt");
    assert_eq!((wsl.class(0, 1), wsl.islands()), (None, None));
    assert!(wsl.notes[0].contains("line 2: the driver names no processor and no NUMA node"), "{:?}", wsl.notes);
    assert_eq!(rules(&wsl), "p2p-off:warning paths-unknown:note multicast:note virtual-machine:note");
    let real = machine("4x5090-threadripper.txt");
    assert!(verdicts(&real).iter().all(|v| v.rule != "virtual-machine"), "{}", rules(&real));
    let guest = read(&[data("h200-x2/topo-m.txt"), data("h200-x2/pcie.csv")]).unwrap_or_default();
    let verdict = of_rule(&guest, "virtual-machine");
    assert!(verdict.title.starts_with("a virtual machine"), "{}", verdict.title);
    assert!(verdict.evidence[0].fact.contains("0000:00:06.0 and 0000:00:07.0, right on the root bus"), "{verdict:?}");
    // On a machine that names its processors SYS stays SYS.
    assert_eq!(pasted(&two("SYS", "0-15")).islands(), Some(vec![vec![0], vec![1]]));
}

#[test]
fn figures_are_of_the_hardware_that_they_name() {
    let four = of_rule(&machine("4x4090-two-sockets.txt"), "sockets");
    assert!(!four.reason.contains("GB/s") && !four.reason.contains("eight"), "{}", four.reason);
    assert!(four.reason.contains("on 4 GPUs sends 4 messages"), "{}", four.reason);
    let each = pasted(&two("SYS", "0-15"));
    let sockets = of_rule(&each, "sockets");
    assert_eq!(sockets.title, "2 GPUs on as many NUMA nodes");
    assert!(
        sockets.fix.iter().all(|f| !f.contains("over 1")) && sockets.fix[1].starts_with("a larger one"),
        "{:?}",
        sockets.fix
    );
    assert!(!sockets.reason.contains("messages"), "{}", sockets.reason);
}

#[test]
fn geforce_cards_without_peer_access() {
    for name in ["4x5090-threadripper.txt", "8x4090-switches.txt", "4x4090-two-sockets.txt"] {
        let m = machine(name);
        let found = verdicts(&m);
        assert_eq!((found[0].rule, found[0].severity), ("p2p-off", Severity::Warning), "{name}: {}", rules(&m));
        assert!(
            found[0]
                .fix
                .iter()
                .any(|f| f.contains("modified open kernel modules exist") && f.contains("test with data"))
        );
        assert!(found.iter().all(|v| v.rule != "nccl-path" && v.rule != "write-collapse"), "{name}: {}", rules(&m));
        let texts = found.iter().flat_map(|v| v.fix.iter().chain([&v.title]));
        assert!(texts.clone().all(|t| !t.contains("NCCL_P2P_LEVEL")), "{name}");
    }
    // A bridge between some: NCCL's default is judged over the pairs that have peer access.
    let bridged = machine("4x3090-nv4.txt");
    assert!(verdicts(&bridged).iter().all(|v| v.rule != "nccl-path"), "{}", rules(&bridged));
}

#[test]
fn links_are_judged_by_what_they_carry_under_load() {
    let m = machine("4x5090-threadripper.txt");
    let speed = of_rule(&m, "link-speed");
    assert_eq!(speed.title, "GPU3: PCIe link held below what the card can do (15.8 of 63.0 GB/s each way)");
    let width = of_rule(&m, "link-width");
    assert_eq!(
        (width.severity, width.title.as_str()),
        (Severity::Warning, "GPU2: x4 instead of x16, 15.8 GB/s each way")
    );
    assert!(verdicts(&m).iter().all(|v| v.rule != "asymmetric" && v.severity != Severity::Error), "{}", rules(&m));
    let one = machine("3060-q.txt");
    assert_eq!(rules(&one), "link-width:warning link-speed:warning link-replays:note");
    assert!(of_rule(&one, "link-speed").title.contains("(3.9 of 7.9 GB/s each way)"));
    assert!(of_rule(&one, "link-replays").title.contains("3411 at the most"));
    let bridged = machine("2x3090-nvlink-x8.txt");
    let width = of_rule(&bridged, "link-width");
    assert_eq!(width.severity, Severity::Note);
    assert!(width.reason.contains("All-reduces go over NVLink here"), "{}", width.reason);
}

#[test]
fn a_generation_that_the_card_does_not_have_is_noted() {
    let m = read(&[data("8x4090-switches.txt"), data("rtx-pro-6000-x8/pcie.csv")]).unwrap_or_default();
    let note = m.notes.iter().find(|n| n.contains("PCIe generation 5 of GPU0, GPU1"));
    assert!(note.is_some_and(|n| n.contains("`NVIDIA GeForce RTX 4090` has 4 at best")), "{:?}", m.notes);
}

#[test]
fn cards_without_a_matrix() {
    let windows = machine("windows-2-cards.txt");
    let verdict = of_rule(&windows, "paths-unknown");
    assert_eq!(verdict.title, "what connects the GPUs is not known");
    assert!(verdict.fix[0].starts_with("Windows has no `nvidia-smi topo`"), "{:?}", verdict.fix);
    assert_eq!(verdict.evidence[1].origin, "windows-2-cards.txt, line 10");
    assert_eq!(of_rule(&windows, "asymmetric").title, "2 GPUs of 2 kinds");
    let table = machine("3-cards-table.txt");
    assert!(of_rule(&table, "paths-unknown").fix[0].starts_with("paste `nvidia-smi topo -m` (Linux)"));
}

#[test]
fn numbers_on_the_bus_name_cards() {
    let m = machine("nccl-4x4090.xml");
    assert!(m.gpus.iter().all(|g| g.name.as_deref() == Some("NVIDIA GeForce RTX 4090")), "{:?}", m.gpus);
    assert_eq!(gpus::name_of_device("0x2335"), Some("NVIDIA H200"));
    assert_eq!(gpus::name_of_device("0xffff"), None);
    let numbers: Vec<&String> = gpus::cards().iter().flat_map(|c| &c.devices).collect();
    let plain = |n: &&&String| n.len() == 4 && n.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
    assert!(numbers.len() >= 40 && numbers.iter().all(|n| plain(&n)), "{numbers:?}");
    assert!(numbers.iter().enumerate().all(|(at, n)| !numbers[..at].contains(n)), "one number, one card");
}

#[test]
fn a_tree_says_nothing_of_pairs_that_it_does_not_know() {
    let m = machine("lspci-4-cards.txt");
    let unknown = of_rule(&m, "paths-unknown");
    assert_eq!(unknown.title, "what connects 5 of 6 pairs of GPUs is not known");
    let custom = of_rule(&m, "custom-all-reduce");
    assert!(custom.evidence[0].fact.ends_with("of 5 of 6 pairs it is not known"), "{custom:?}");
    assert!(verdicts(&m).iter().all(|v| v.rule != "write-collapse"), "one switch");
}

#[test]
fn a_card_that_is_named_already_is_not_named_again() {
    let mut m = machine("4x4090-two-sockets.txt");
    assert!(gpus::name(&mut m, "NVIDIA H200"));
    assert_eq!(
        m.notes.last().map(String::as_str),
        Some("`--gpu NVIDIA H200` is ignored: the texts name the cards themselves (NVIDIA GeForce RTX 4090)")
    );
    assert_eq!(m.gpus[0].name.as_deref(), Some("NVIDIA GeForce RTX 4090"));
    let mut same = machine("4x4090-two-sockets.txt");
    assert!(gpus::name(&mut same, "GeForce RTX 4090") && same.notes.is_empty());
}

#[test]
fn every_way_to_paste_a_matrix_is_right_or_one_clear_line() {
    let right = [
        "    1 |         GPU0    GPU1    CPU Affinity\n    2 | GPU0     X      PHB     0-15\n    3 | GPU1    PHB      X      0-15\n",
        "\tgpu0\tgpu1\tcpu affinity\ngpu0\t x \tphb\t0-15\ngpu1\tphb\t x \t0-15\n",
        "<pre><code>\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-15\nGPU1\tPHB\t X \t0-15\n</code></pre><p>&quot;3090&quot;</p>\n",
    ];
    for text in right {
        let m = pasted(text);
        assert_eq!(m.class(0, 1).map(|c| c.to_string()).as_deref(), Some("PHB"), "{text}");
        assert_eq!(m.gpus[1].cpu_affinity.as_deref(), Some("0-15"), "{text}");
    }
    let cut = "> > \tGPU0\tGPU1\tCPU Aff...\n> > GPU0\t X \tPHB\t0-4...\n> > GPU1\tPHB\t X \t0-4...\n";
    let m = pasted(cut);
    assert_eq!((m.class(0, 1).map(|c| c.to_string()).as_deref(), &m.gpus[0].cpu_affinity), (Some("PHB"), &None));
    let wrong = [
        (
            cut.replace("GPU0\t X \tPHB", "GPU0\t X \tPH..."),
            "p, line 2: `PH...` between GPU0 and GPU1 is cut short: paste the row whole",
        ),
        (
            "GPUO GPU1 CPU Affinity\nGPUO X PHB 0-15\nGPU1 PHB X 0-15\n".into(),
            "p, line 1: `GPUO` is no GPU: a letter stands where a digit belongs",
        ),
        (
            "\tGPU0\tGPU1\nGPU0\t X \tNV99\nGPU1\tNV99\t X \n".into(),
            "p, line 2: `NV99` between GPU0 and GPU1 is none of X, NV1 to NV18",
        ),
        (
            "=== ROCm System Management Interface ===\n       GPU0  GPU1\nGPU0   0     PCIE\n".into(),
            "p, line 1: this is of AMD's tools",
        ),
        (
            "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t0-7\t0\n".into(),
            "p, line 2: the row of GPU0 has 2 cells and the first line names 3",
        ),
        (
            "\tGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\nGPU0\t X \tPHB\tSYS\t0-7\t0\nGPU1\tPHB\tSYS\t0-7\t0\n"
                .into(),
            "p, line 3: the row of GPU1 has 2 cells and the first line names 3",
        ),
        ("0, 5, 16\n1, 5, 16\n4096, 5, 16\n".into(), "p, line 3: `4096` is no number of a GPU"),
    ];
    for (text, start) in wrong {
        let found = fault(&[of("p", &text)]);
        assert!(found.starts_with(start), "{text}\ngives  {found}\nwanted {start}");
    }
}

#[test]
fn json_may_stand_in_prose_and_must_be_of_a_machine() {
    let m = machine("4x4090-two-sockets.txt");
    let json = serde_json::to_string_pretty(&m).unwrap_or_default();
    let found = pasted(&format!("here is my json:\n```\n{json}\n```\n"));
    assert_eq!(found.links, m.links);
    assert_eq!(found.notes.last().map(String::as_str), Some("pasted: what stands around the JSON is not read"));
    assert!(pasted(&format!("```\n{json}\n```\n")).notes.is_empty());
    let broken = format!("see:\n{}", json.replacen("\"index\"", "\"indx\"", 1));
    assert!(
        fault(&[of("p", &broken)]).starts_with("p, line 5: JSON that describes no machine: unknown field `indx`"),
        "{}",
        fault(&[of("p", &broken)])
    );
    let plan = "{\"figures\": \"\", \"machine\": {\"gpus\": [\"NVIDIA GeForce RTX 4090\"]}, \"placements\": []}";
    assert!(
        fault(&[of("p", plan)]).contains("it is what `tombolo plan --json` prints; give what `tombolo doctor --json`")
    );
}
