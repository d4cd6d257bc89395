//! Pasted texts into machines: every layout, every cut and every damage gives the right machine or an error.

mod common;

use common::{data, machine};
use proptest::prelude::*;
use std::fmt::Write;
use tombolo_topology::{Machine, Source, read};

fn of(text: &str) -> Source {
    Source { name: "pasted".into(), text: text.into() }
}

/// The matrix in one line, rows parted by `/`.
fn matrix(machine: &Machine) -> String {
    let class = |a, b| machine.class(a, b).map_or("?".into(), |c| c.to_string());
    let row = |a| (0..machine.len()).map(|b| class(a, b)).collect::<Vec<_>>().join(" ");
    (0..machine.len()).map(row).collect::<Vec<_>>().join(" / ")
}

/// What is known of each GPU, one line each.
fn gpus(machine: &Machine) -> String {
    let mut out = String::new();
    for g in &machine.gpus {
        let opt = |v: Option<String>| v.unwrap_or_else(|| "-".into());
        let num = |v: Option<u8>| opt(v.map(|v| v.to_string()));
        let _ = writeln!(
            out,
            "{} {} | {} MiB | gen {}/{} x{}/{} | node {} | {}",
            g.index,
            opt(g.name.clone()),
            opt(g.memory_bytes.map(|b| (b >> 20).to_string())),
            num(g.pcie.gen_now),
            num(g.pcie.gen_max),
            num(g.pcie.width_now),
            num(g.pcie.width_max),
            opt(g.numa_node.map(|n| n.to_string())),
            opt(g.pci_bus_id.clone()),
        );
    }
    out
}

#[test]
fn the_starting_case() {
    let m = machine(&["rtx-pro-6000-x8/topo-m.txt", "rtx-pro-6000-x8/pcie.csv", "rtx-pro-6000-x8/observed.json"]);
    assert_eq!(m.islands(), Some(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]));
    for (a, b, class) in m.pairs() {
        let wanted = if a / 4 == b / 4 { "NODE" } else { "SYS" };
        assert_eq!(class.map(|c| c.to_string()).as_deref(), Some(wanted), "{a} {b}");
        let gb_s = m.pair_gb_s(a, b).unwrap_or_default();
        assert!((gb_s - 63.015).abs() < 0.001, "{gb_s}");
    }
    assert_eq!(m.fully_connected_by_nvlink(), Some(false));
    assert_eq!(m.gpus[5].name.as_deref(), Some("RTX PRO 6000 Blackwell"));
    assert_eq!((m.gpus[5].numa_node, m.gpus[5].cpu_affinity.as_deref()), (Some(1), Some("64-127")));
    assert_eq!(m.gpus[0].multicast, Some(false));
    assert_eq!(m.origin.get("links[5]").map(String::as_str), Some("topo-m.txt, line 7"));
    assert_eq!(m.origin.get("pcie[0]").map(String::as_str), Some("pcie.csv, line 1"));
}

#[test]
fn two_h200_with_colours() {
    let m = machine(&["h200-x2/topo-m.txt", "h200-x2/pcie.csv", "h200-x2/topo-p2p-r.txt"]);
    assert_eq!(matrix(&m), "X NV18 / NV18 X");
    assert_eq!(m.fully_connected_by_nvlink(), Some(true));
    assert_eq!(m.pair_gb_s(0, 1), Some(450.0));
    assert_eq!(m.p2p_allowed(0, 1), Some(true));
    assert_eq!(m.p2p.write, None);
    assert_eq!(m.gpus[1].memory_gb_s, Some(4800.0));
    let wanted = "0 NVIDIA H200 | 144384 MiB | gen 5/5 x16/- | node 0 | 0000:00:06.0\n\
                  1 NVIDIA H200 | 144384 MiB | gen 5/5 x16/- | node 0 | 0000:00:07.0\n";
    assert_eq!(gpus(&m), wanted);
}

#[test]
fn a_terminal_session_with_four_commands() {
    let m = machine(&["2x3090-phb.txt"]);
    assert_eq!(matrix(&m), "X PHB / PHB X");
    let wanted = "0 NVIDIA GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node 0 | 0000:21:00.0\n\
                  1 NVIDIA GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node 0 | 0000:22:00.0\n";
    assert_eq!(gpus(&m), wanted);
    assert_eq!((m.p2p_allowed(0, 1), m.p2p.read.is_some(), m.p2p.write.is_some()), (Some(false), true, true));
    assert_eq!(m.host.driver.as_deref(), Some("580.95.05"));
    let first = &m.gpus[0];
    assert_eq!((first.persistence, first.display, first.performance_state), (Some(false), Some(true), Some(8)));
    assert_eq!((first.power_limit_w, first.power_default_w), (Some(350.0), Some(350.0)));
}

#[test]
fn a_quoted_forum_post() {
    let m = machine(&["4x4090-two-sockets.txt"]);
    assert_eq!(matrix(&m), "X NODE SYS SYS / NODE X SYS SYS / SYS SYS X NODE / SYS SYS NODE X");
    assert_eq!(m.gpus[1].pcie.gb_s().map(|g| g.round()), Some(16.0));
    assert_eq!((m.gpus[3].numa_node, m.gpus[3].cpu_affinity.as_deref()), (Some(1), Some("32-63,96-127")));
}

#[test]
fn adapters_are_names_only() {
    let m = machine(&["8xh100-nv18.txt"]);
    assert!(matrix(&m).starts_with("X NV18 NV18 NV18 NV18 NV18 NV18 NV18 / NV18 X NV18"));
    assert_eq!(m.nics.len(), 9);
    assert_eq!(m.nics[8], "mlx5_8");
    assert_eq!(m.gpus[7].numa_node, Some(1));
}

#[test]
fn other_layouts() {
    let nv4 = machine(&["4x3090-nv4.txt"]);
    assert_eq!(matrix(&nv4), "X NV4 PHB PHB / NV4 X PHB PHB / PHB PHB X NV4 / PHB PHB NV4 X");
    assert_eq!((nv4.p2p_allowed(0, 1), nv4.p2p_allowed(0, 2)), (Some(true), Some(false)));
    assert!(nv4.p2p.nvlink.is_some());
    let switches = machine(&["8xa6000-switches.txt"]);
    assert_eq!(switches.islands(), Some(vec![vec![0, 1, 2, 3], vec![4, 5, 6, 7]]));
    assert_eq!(switches.uplinks().iter().map(|u| u.gpus.clone()).collect::<Vec<_>>(), [[0, 1, 2, 3], [4, 5, 6, 7]]);
    assert!(switches.notes[0].contains("taken for reads"), "{:?}", switches.notes);
    let vm = machine(&["vm-4xl40s.txt"]);
    assert_eq!(matrix(&vm), "X PHB PHB PHB / PHB X PHB PHB / PHB PHB X PHB / PHB PHB PHB X");
    assert_eq!((vm.gpus[0].numa_node, vm.gpus[0].cpu_affinity.as_deref()), (None, Some("0-63")));
    let old = machine(&["k80-2016.txt"]);
    assert_eq!(matrix(&old), "X PIX SYS SYS / PIX X SYS SYS / SYS SYS X PIX / SYS SYS PIX X");
    assert_eq!(old.gpus[2].cpu_affinity.as_deref(), Some("10-19,30-39"));
    assert_eq!(matrix(&machine(&["topo.md"])), "X NODE NODE / NODE X NODE / NODE NODE X");
}

#[test]
fn trees() {
    let m = machine(&["lspci-4x3090.txt"]);
    assert_eq!(matrix(&m), "X PIX PHB ? / PIX X PHB ? / PHB PHB X ? / ? ? ? X");
    let wanted = "0 GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node - | 0000:43:00.0\n\
                  1 GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node - | 0000:44:00.0\n\
                  2 GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node - | 0000:47:00.0\n\
                  3 GeForce RTX 3090 | 24576 MiB | gen -/- x-/- | node - | 0000:c1:00.0\n";
    assert_eq!(gpus(&m), wanted);
    assert_eq!(m.islands(), None);
    let uplinks: Vec<_> = m.uplinks().into_iter().map(|u| (u.bridge.unwrap_or_default(), u.gpus)).collect();
    assert_eq!(uplinks, [("0000:40:01.1".to_string(), vec![0, 1])]);
    let m = machine(&["nccl-8xpro6000.xml"]);
    assert_eq!(
        matrix(&m).split(" / ").next(),
        Some("X PIX PHB PHB SYS SYS SYS SYS"),
        "NCCL knows the switches and the nodes"
    );
    assert_eq!((m.gpus[7].pcie.gen_now, m.gpus[7].compute_capability), (Some(5), Some((12, 0))));
    assert_eq!(m.nics, ["mlx5_0", "mlx5_1"]);
    assert_eq!(matrix(&machine(&["nccl-2xh200.xml"])), "X NV18 / NV18 X");
}

#[test]
fn long_queries_and_bandwidths() {
    let m = machine(&["2xa6000-q.txt"]);
    let wanted = "0 NVIDIA RTX A6000 | 49140 MiB | gen 1/4 x16/16 | node - | 0000:01:00.0\n\
                  1 NVIDIA RTX A6000 | 49140 MiB | gen 1/4 x8/16 | node - | 0000:41:00.0\n";
    assert_eq!(gpus(&m), wanted);
    let g = &m.gpus[1];
    assert_eq!((g.bar1_bytes, g.power_limit_w, g.power_default_w), (Some(256 << 20), Some(200.0), Some(300.0)));
    let m = machine(&["bandwidth-2x5090.txt"]);
    let cell = |t: &Option<tombolo_topology::Pairs<Option<f64>>>, a, b| t.as_ref().and_then(|t| *t.get(a, b)?);
    assert_eq!((cell(&m.p2p.measured_gb_s, 0, 1), cell(&m.p2p.staged_gb_s, 1, 0)), (Some(9.90), Some(40.02)));
    assert_eq!(m.gpus[1].pci_bus_id.as_deref(), Some("0000:d8:00.0"));
}

#[test]
fn columns_come_in_any_order_and_units_may_lack() {
    let header = "pcie.link.width.current, power.limit [W], index, name, pcie.link.gen.max, memory.total [MiB]\n";
    for row in ["8, 300.00 W, 3, NVIDIA L40S, 4, 46068 MiB", "8, 300.00, 3, NVIDIA L40S, 4, 46068"] {
        let m = read(&[of(&format!("{header}{row}\n"))]).unwrap_or_default();
        assert_eq!(gpus(&m), "3 NVIDIA L40S | 46068 MiB | gen -/4 x8/- | node - | -\n");
        assert_eq!(m.gpus[0].power_limit_w, Some(300.0));
        assert!(m.notes[0].contains("GPU0, GPU1, GPU2 not in the texts"), "{:?}", m.notes);
    }
    let command = "$ nvidia-smi --query-gpu=index,pcie.link.gen.max,pcie.link.width.max --format=csv,noheader\n0, 4, 16\n1, 4, 16\n";
    let m = read(&[of(command)]).unwrap_or_default();
    assert_eq!(gpus(&m), "0 - | - MiB | gen -/4 x-/16 | node - | -\n1 - | - MiB | gen -/4 x-/16 | node - | -\n");
    let unknown = "index, pcie.link.gen.current, power.limit [W]\n0, [N/A], [Not Supported]\n";
    assert_eq!(gpus(&read(&[of(unknown)]).unwrap_or_default()), "0 - | - MiB | gen -/- x-/- | node - | -\n");
}

/// What is wrong with a text.
fn fault(text: &str) -> String {
    read(&[of(text)]).map_or_else(|error| error.to_string(), |m| format!("no error: {}", matrix(&m)))
}

#[test]
fn a_damaged_text_is_an_error_with_its_line() {
    let right = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPHB\t0-7\nGPU1\tPHB\t X \t0-7\n";
    let starts = [
        ("", "pasted: nothing here describes GPUs"),
        ("hello", "pasted: nothing here describes GPUs"),
        (&right.replace("GPU1\tPHB", "GPU1\tNODE"), "pasted, line 3: GPU0 to GPU1 is PHB and back it is NODE"),
        (
            &right.replace("\tPHB\t0-7", "\tPHP\t0-7"),
            "pasted, line 2: `PHP` between GPU0 and GPU1 is none of X, NV1 to NV18",
        ),
        (&right.replace("GPU0\t X \tPHB", "GPU0\tPHB\tPHB"), "pasted, line 2: GPU0 and GPU0: `X` stands for"),
        (&right.replace("GPU0\t X \tPHB", "GPU0\t X \t X "), "pasted, line 2: GPU0 and GPU1: `X` stands for"),
        (
            &right.replace("\tGPU1\tCPU", "\tCPU"),
            "pasted, line 2: the row of GPU0 has 2 cells and the first line names 1",
        ),
        (&right.replace("GPU1\tPHB\t X \t0-7\n", ""), "pasted, line 1: the matrix has 2 GPUs and the row of GPU1"),
        (&right.replace("GPU1\tPHB\t X \t0-7", "GPU1\tPHB"), "pasted, line 3: the row of GPU1 has 1 cells"),
        (&right.replace("GPU1\tPHB", "GPU0\tPHB"), "pasted, line 3: GPU0 comes twice"),
        (&right.replace("\tGPU0\tGPU1", "\tGPU0\tGPU0"), "pasted, line 1: GPU0 comes twice"),
        (&right.replace("GPU1\tPHB", "GPU2\tPHB"), "pasted, line 3: GPU2 has a row but no column"),
        (&right[right.find("GPU0\t X").unwrap_or(0)..], "pasted, line 1: a row of the matrix without its first line"),
        ("0, NVIDIA L4, 4, 16\n", "pasted, line 1: values without the line that names them"),
        ("index, pcie.link.gen.max\n0, 4, 16\n", "pasted, line 2: 3 values, and the header names 2"),
        ("index, pcie.link.gen.max\n0, 9\n", "pasted, line 2: `9` is no generation of PCIe"),
        ("index, pcie.link.gen.max\n0, 4\n0, 4\n", "pasted, line 3: GPU0 comes twice"),
        ("index, pcie.link.width.max\n0, 15\n", "pasted, line 2: `15` is no width of a PCIe link"),
        (
            "{\"gpus\": [{\"index\": 0}], \"links\": [[\"X\", \"PIX\"], [\"PIX\", \"X\"]]}",
            "pasted: JSON that describes no",
        ),
        ("{\n\"gpus\": [{\"indx\": 0}]}", "pasted, line 2: JSON that describes no machine: unknown field `indx`"),
        ("{", "pasted, line 1: JSON that describes no machine"),
        (
            "<system><cpu><pci busid=\"x\"/></cpu></system>",
            "pasted, line 1: XML that is no topology of NCCL: `x` is no",
        ),
        ("<a/>", "pasted, line 1: XML that is no topology of NCCL: it begins with <a>"),
        ("<system>", "pasted: XML that is no topology of NCCL"),
        ("-[0000:00]-+-00.0  x\n           \\-01.0  y\n           \\-02.0  z\n", "pasted, line 3: a branch of the PCI"),
        ("-[0000:00]-+-00.0  x\n        +-01.0  y\n", "pasted, line 2: a branch of the PCI tree that hangs nowhere"),
    ];
    for (text, start) in starts {
        let found = fault(text);
        assert!(found.starts_with(start), "{text:?}\n gives {found}\nwanted {start}");
    }
}

#[test]
fn texts_of_different_machines_do_not_mix() {
    let both = |a: &str, b: &str| read(&[data(a), data(b)]).map_or_else(|e| e.to_string(), |_| "no error".into());
    let wanted = "pcie.csv, line 3: GPU2 is not among the 2 GPUs of topo-m.txt: are these of one machine?";
    assert_eq!(both("h200-x2/topo-m.txt", "rtx-pro-6000-x8/pcie.csv"), wanted);
    assert!(both("h200-x2/topo-m.txt", "vm-4xl40s.txt").contains("GPU2 is not among the 2 GPUs"));
    let nv4 = both("4x4090-two-sockets.txt", "vm-4xl40s.txt");
    assert!(nv4.starts_with("vm-4xl40s.txt, line 3: GPU0 to GPU1 is PHB, and NODE according to 4x4090"), "{nv4}");
    assert!(both("2xa6000-q.txt", "bandwidth-2x5090.txt").contains("is not among the 2 GPUs"));
}

#[test]
fn a_tree_fills_what_a_matrix_leaves_open() {
    let m = read(&[data("lspci-4x3090.txt"), data("4x3090-nv4.txt")]).unwrap_or_default();
    assert_eq!(matrix(&m), "X NV4 PHB PHB / NV4 X PHB PHB / PHB PHB X NV4 / PHB PHB NV4 X");
    assert_eq!(m.gpus[3].pci_bus_id.as_deref(), Some("0000:c1:00.0"));
}

#[test]
fn a_machine_comes_back_from_its_own_json() {
    for name in [
        "rtx-pro-6000-x8/observed.json",
        "rtx-pro-6000-x8/topo-m.txt",
        "2xa6000-q.txt",
        "4x3090-nv4.txt",
        "lspci-4x3090.txt",
    ] {
        let m = machine(&[name]);
        let text = serde_json::to_string(&m).unwrap_or_default();
        assert_eq!(read(&[of(&text)]).ok(), Some(m.clone()), "{name}");
        assert_eq!(read(&[of(&format!("{{\"machine\": {text}, \"verdicts\": []}}"))]).ok(), Some(m), "{name}");
    }
}

/// Every text of the tests.
const ALL: [&str; 28] = [
    "rtx-pro-6000-x8/topo-m.txt",
    "rtx-pro-6000-x8/pcie.csv",
    "rtx-pro-6000-x8/observed.json",
    "h200-x2/topo-m.txt",
    "h200-x2/topo-p2p-r.txt",
    "h200-x2/pcie.csv",
    "2x3090-nvlink-x8.txt",
    "2x3090-phb.txt",
    "2xa6000-q.txt",
    "3-cards-table.txt",
    "3060-q.txt",
    "4x3090-nv4.txt",
    "4x5090-threadripper.txt",
    "8x4090-switches.txt",
    "bandwidth-2x4090-no-peers.txt",
    "lspci-4-cards.txt",
    "nccl-4x4090.xml",
    "windows-2-cards.txt",
    "wsl-2x4090.txt",
    "4x4090-two-sockets.txt",
    "8xa6000-switches.txt",
    "8xh100-nv18.txt",
    "bandwidth-2x5090.txt",
    "k80-2016.txt",
    "lspci-4x3090.txt",
    "nccl-2xh200.xml",
    "nccl-8xpro6000.xml",
    "topo.md",
];

/// Whether `part` says nothing that `whole` does not say: the same GPUs or fewer, each fact the same or missing.
fn is_part(part: &Machine, whole: &Machine) -> Result<(), String> {
    let mut places = Vec::new();
    for gpu in &part.gpus {
        // A list without numbers counts from 0 again; its GPUs are known by their address.
        let same = |g: &&tombolo_topology::Gpu| match &gpu.pci_bus_id {
            Some(bus) if g.pci_bus_id.is_some() => g.pci_bus_id.as_ref() == Some(bus),
            _ => g.index == gpu.index,
        };
        let at = whole.gpus.iter().position(|g| same(&g)).ok_or(format!("GPU{} is new", gpu.index))?;
        let old = &whole.gpus[at];
        places.push(at);
        macro_rules! kept {
            ($($field:ident).+) => {
                if gpu.$($field).+.is_some() && gpu.$($field).+ != old.$($field).+ {
                    return Err(format!("GPU{}: {} {:?}, was {:?}", gpu.index, stringify!($($field).+), gpu.$($field).+, old.$($field).+));
                }
            };
        }
        // Where the driver does not say it, the table of cards gives the nominal size.
        if let (Some(new), Some(old)) = (gpu.memory_bytes, old.memory_bytes)
            && new.abs_diff(old) > old / 20
        {
            return Err(format!("GPU{}: {new} bytes of memory, were {old}", gpu.index));
        }
        kept!(numa_node);
        kept!(cpu_affinity);
        kept!(pcie.gen_now);
        kept!(pcie.gen_max);
        kept!(pcie.width_now);
        kept!(pcie.width_max);
        kept!(bar1_bytes);
        kept!(power_limit_w);
        kept!(persistence);
    }
    for (a, b, class) in part.pairs().filter(|(_, _, class)| class.is_some()) {
        let was = whole.class(places[a], places[b]);
        if class != was {
            return Err(format!("{a} to {b}: {class:?}, was {was:?}"));
        }
    }
    Ok(())
}

#[test]
fn every_prefix_is_right_or_an_error() {
    for name in ALL {
        let source = data(name);
        let whole = read(std::slice::from_ref(&source)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let (mut right, mut wrong) = (0, 0);
        for end in (0..source.text.len()).filter(|&end| source.text.is_char_boundary(end)) {
            let text = source.text[..end].to_string();
            match read(&[Source { name: source.name.clone(), text }]) {
                Ok(part) => {
                    right += 1;
                    is_part(&part, &whole).unwrap_or_else(|why| panic!("{name} cut at byte {end}: {why}"));
                }
                Err(error) => {
                    wrong += 1;
                    assert!(error.to_string().len() > 20, "{error}");
                }
            }
        }
        assert!(wrong > 0, "{name}: no cut is an error");
        assert!(right > 0 || name.ends_with(".xml") || name.ends_with(".json") || name.ends_with(".md"), "{name}");
    }
}

#[test]
fn every_line_dropped_is_right_or_an_error() {
    for name in ALL {
        let source = data(name);
        let whole = read(std::slice::from_ref(&source)).unwrap_or_else(|error| panic!("{name}: {error}"));
        let lines: Vec<&str> = source.text.split_inclusive('\n').collect();
        for dropped in 0..lines.len() {
            let text: String = lines.iter().enumerate().filter(|(at, _)| *at != dropped).map(|(_, l)| *l).collect();
            if let Ok(part) = read(&[Source { name: source.name.clone(), text }]) {
                is_part(&part, &whole).unwrap_or_else(|why| panic!("{name} without line {}: {why}", dropped + 1));
            }
        }
    }
}

#[test]
fn limits_are_errors() {
    use tombolo_topology::limits;
    assert!(read(&vec![of("x"); limits::SOURCES_MAX + 1]).is_err());
    assert!(fault(&"x".repeat(limits::SOURCE_BYTES_MAX + 1)).contains("is the most"));
    let wide: String = (0..=limits::GPUS_MAX).map(|i| format!("GPU{i}\t")).collect();
    assert!(fault(&wide).contains("is the most"), "{}", fault(&wide));
    let long: String = (0..=limits::GPUS_MAX).map(|i| format!("{i}, 4\n")).collect();
    assert!(fault(&format!("index, pcie.link.gen.max\n{long}")).contains("is the most"));
    let deep = "<pci busid=\"0:1:0.0\">".repeat(100);
    assert!(fault(&format!("<system><cpu>{deep}{}</cpu></system>", "</pci>".repeat(100))).contains("64 bridges"));
}

#[test]
fn numbers_that_nothing_has_are_errors() {
    let machine = read(&[data(ALL[0])]).unwrap();
    let whole = serde_json::to_value(&machine).unwrap();
    let n = machine.gpus.len();
    let with = |path: &str, value: serde_json::Value| {
        let mut changed = whole.clone();
        *changed.pointer_mut(path).unwrap_or_else(|| panic!("no {path}")) = value;
        fault(&changed.to_string())
    };
    let pairs = vec![vec![Some(1e308); n]; n];
    for (path, value, part) in [
        ("/gpus/0/memory_bytes", 0u64.into(), "bytes of memory of GPU 0: 0.0"),
        ("/gpus/0/memory_bytes", u64::MAX.into(), "bytes of memory of GPU 0: 1.8"),
        ("/gpus/1/memory_gb_s", 1e308.into(), "GB/s of memory of GPU 1: 1e308"),
        ("/gpus/1/memory_gb_s", 0.into(), "GB/s of memory of GPU 1: 0.0"),
        ("/gpus/0/power_limit_w", (-1).into(), "watts of GPU 0: -1.0"),
        ("/gpus/0/name", "x".repeat(5000).into(), "has 5000 characters"),
        ("/host/memory_bytes", u64::MAX.into(), "bytes of the host's memory"),
        ("/host/cpu", "x".repeat(5000).into(), "has 5000 characters"),
        ("/p2p/staged_gb_s", serde_json::json!(pairs), "GB/s from GPU 0 to GPU 0: 1e308"),
    ] {
        let why = with(path, value);
        assert!(why.contains(part), "{path}: {why}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes replaced, taken out and put in at random: a machine or an error, and no matrix that is not one.
    #[test]
    fn mutations_never_panic(which in 0..ALL.len(), edits in prop::collection::vec((any::<prop::sample::Index>(), 0..4u8, any::<u8>()), 1..6)) {
        let source = data(ALL[which]);
        let mut bytes = source.text.into_bytes();
        for (at, kind, byte) in edits {
            if bytes.is_empty() { break; }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => { bytes.remove(at); }
                2 => bytes.insert(at, byte),
                _ => { let other = usize::from(byte) % bytes.len(); bytes.swap(at, other); }
            }
        }
        let text = String::from_utf8_lossy(&bytes).into_owned();
        if let Ok(m) = read(&[Source { name: source.name, text }]) {
            for (a, b, class) in m.pairs() {
                prop_assert_eq!(class, m.class(b, a));
            }
            let _ = (m.islands(), m.uplinks(), m.fully_connected_by_nvlink());
        }
    }

    /// Anything at all.
    #[test]
    fn noise_never_panics(text in "[GPU0-9XNVPIBHS \t\n,.:|+\\\\\\[\\]<>{}\"a-f-]{0,200}") {
        let _ = read(&[of(&text)]);
    }
}
