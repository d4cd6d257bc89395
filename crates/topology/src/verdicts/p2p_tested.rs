//! Whether peer access was tested with real data, and what came of it. What the driver says is no proof.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::gpus::{self, P2pPolicy};
use crate::machine::{Machine, P2pTest};

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let allowed: Vec<_> = machine.pairs().filter(|&(a, b, _)| machine.p2p_allowed(a, b) == Some(true)).collect();
    let result = |a, b| machine.p2p.tested.as_ref().and_then(|t| *t.get(a, b)?);
    let ways = || allowed.iter().flat_map(|&(a, b, _)| [(a, b), (b, a)]);
    let Some(&(a, b, _)) = allowed.first() else { return unknown(machine) };
    if let Some((a, b)) = ways().find(|&(a, b)| matches!(result(a, b), Some(P2pTest::Wrong | P2pTest::Silent))) {
        return Some(failed(machine, a, b, result(a, b) == Some(P2pTest::Silent)));
    }
    let open = ways().filter(|&(a, b)| result(a, b).is_none()).count();
    if open == 0 {
        return Some(Verdict {
            rule: "p2p-tested",
            severity: Severity::Good,
            title: format!("peer access tested with data: every byte arrived, {} ways", ways().count()),
            evidence: vec![evidence(machine, "a test pattern was stored, read back and compared", &["p2p.tested"])],
            reason: "Silent corruption and hangs by IOMMU, ACS or cables show in such a test; most others trust the driver's word.".into(),
            fix: Vec::new(),
        });
    }
    let fact = match allowed.len() - 1 {
        0 => format!("{} is OK", gpu_list(machine, &[a, b]).replace(", ", " to ")),
        1 => format!("{} and 1 more pair are OK", gpu_list(machine, &[a, b]).replace(", ", " to ")),
        others => format!("{} and {others} more pairs are OK", gpu_list(machine, &[a, b]).replace(", ", " to ")),
    };
    Some(Verdict {
        rule: "p2p-tested",
        severity: Severity::Note,
        title: "the driver allows peer access, and nobody has tested it with data".into(),
        evidence: vec![evidence(machine, fact, &["p2p.read", "p2p.write"])],
        reason: "`OK` is looked up, not tried. With a translating IOMMU, access control on bridges or a bad riser, stores are lost or \
                 arrive wrong while it still says OK: hangs at full load and idle watts, or output like `!!!!`."
            .into(),
        fix: vec![
            "tombolo tests peer access with its own kernels before it uses it, and goes through host memory where that fails".into(),
            "for other servers: `all_reduce_perf -b 8K -e 64M -f 4 -c 1` of nccl-tests compares data".into(),
        ],
    })
}

/// No text says what the driver allows. Of cards that get nothing from it another rule speaks.
fn unknown(machine: &Machine) -> Option<Verdict> {
    let asked = machine.pairs().any(|(a, b, _)| machine.p2p_allowed(a, b).is_some());
    let never =
        machine.gpus.iter().filter_map(|g| gpus::facts(g.name.as_deref()?)).flatten().any(|c| c.p2p != P2pPolicy::Yes);
    if asked || never || machine.len() < 2 || machine.fully_connected_by_nvlink() != Some(false) {
        return None;
    }
    Some(Verdict {
        rule: "p2p-tested",
        severity: Severity::Note,
        title: "whether the driver allows peer access is not known".into(),
        evidence: vec![evidence(machine, "no text holds a table of `nvidia-smi topo -p2p`", &[])],
        reason: "Everything quick between GPUs rests on it: where the driver withholds it, all traffic goes through host memory, \
                 whatever the links could do."
            .into(),
        fix: vec!["paste `nvidia-smi topo -p2p r` and `nvidia-smi topo -p2p w` along".into()],
    })
}

fn failed(machine: &Machine, a: usize, b: usize, silent: bool) -> Verdict {
    let (x, y) = (machine.gpus[a].index, machine.gpus[b].index);
    let what = if silent { "never arrived" } else { "arrived wrong" };
    Verdict {
        rule: "p2p-tested",
        severity: Severity::Error,
        title: format!("peer access is broken: what GPU{x} stored in GPU{y} {what}"),
        evidence: vec![evidence(machine, format!("GPU{x} to GPU{y}: {what}"), &["p2p.tested"])],
        reason: "The driver allows it and it does not work. Servers that trust the driver hang or compute rubbish here, without a \
                 message. The usual causes are a translating IOMMU and access control (ACS) on the bridges above the GPUs."
            .into(),
        fix: vec![
            "boot with `iommu=pt` (or the IOMMU off in the BIOS), and switch ACS off in the BIOS or with `setpci -s BRIDGE \
             ECAP_ACS+6.w=0000` for every bridge above a GPU"
                .into(),
            "until then: `NCCL_P2P_DISABLE=1` for others; tombolo has gone over to host memory by itself".into(),
            "if it stays: reseat cards, risers and cables, and look for replays (`nvidia-smi -q | grep -i replay`)".into(),
        ],
    }
}
