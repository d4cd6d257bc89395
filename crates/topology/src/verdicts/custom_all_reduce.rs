//! More than two GPUs that NVLink does not join: the quick all-reduce of vLLM and SGLang is off.

use super::{Evidence, Severity, Verdict, all_gpus, evidence, p2p_possible, pair};
use crate::machine::Machine;

/// How many ranks that all-reduce is made for.
const SIZES: [usize; 4] = [2, 4, 6, 8];

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let n = machine.len();
    let joined = machine.fully_connected_by_nvlink()?;
    if n < 2 {
        return None;
    }
    if joined {
        return Some(Verdict {
            rule: "custom-all-reduce",
            severity: Severity::Good,
            title: format!("NVLink joins {}", all_gpus(machine)),
            evidence: first_pair(machine, true),
            reason: "Every server's quick path for small all-reduces is possible here.".into(),
            fix: Vec::new(),
        });
    }
    let peers = p2p_possible(machine);
    if n == 2 {
        return Some(Verdict {
            rule: "custom-all-reduce",
            severity: Severity::Note,
            title: "two GPUs with only PCIe between them".into(),
            evidence: first_pair(machine, false),
            reason: format!(
                "vLLM and SGLang use their own all-reduce over PCIe for exactly two GPUs, if peer access works{}. With a third GPU they would \
                 turn it off.",
                if peers { "" } else { ", which is not so here: NCCL does all of it, through host memory" }
            ),
            fix: Vec::new(),
        });
    }
    let odd = if SIZES.contains(&n) {
        String::new()
    } else {
        format!(" Nor is it made for {n} ranks, only for 2, 4, 6 and 8.")
    };
    let figures = match peers {
        true => {
            " Published for 12 KB on eight RTX PRO 6000 (PCIe 5.0): all-reduces made for PCIe take 5 to 12 µs where NCCL takes 17 to 60, and \
             127 µs with its defaults in one deployment, waiting included."
        }
        false => " Without peer access each of them passes through host memory, here in any server.",
    };
    Some(Verdict {
        rule: "custom-all-reduce",
        severity: Severity::Warning,
        title: format!("vLLM and SGLang turn their custom all-reduce off: {n} GPUs, not fully connected by NVLink"),
        evidence: first_pair(machine, false),
        reason: format!(
            "Both allow it beyond two GPUs only where the driver reports NVLink between every pair, and then give every \
             all-reduce to NCCL. Tensor parallelism makes two a layer with a few kilobytes each, so that latency and not \
             bandwidth decides.{figures} Removing the check in their Python does not help: the C++ behind it launches nothing for more than \
             two PCIe ranks.{odd}"
        ),
        fix: fixes(peers),
    })
}

fn fixes(peers: bool) -> Vec<String> {
    vec![
        "tombolo needs no NVLink: its all-reduce pushes data and flags together, into peer memory where that is proven sound and \
         else through pinned host memory, and is fused with the residual add and RMSNorm; it has been run on two GPUs so far"
            .into(),
        match peers {
            true => {
                "with vLLM or SGLang: `NCCL_PROTO=LL` and `NCCL_P2P_LEVEL=SYS` are worth one try; other NCCL variables change little \
                 at this size. FlashInfer's `pcie_ipc` and b12x are all-reduces for PCIe that can be patched in"
            }
            false => "with vLLM or SGLang: `NCCL_PROTO=LL` is worth one try; other NCCL variables change little at this size",
        }
        .into(),
    ]
}

/// The first pair with NVLink, or without.
fn first_pair(machine: &Machine, nvlink: bool) -> Vec<Evidence> {
    let found = machine.pairs().find(|(_, _, class)| class.is_some_and(|c| c.is_nvlink() == nvlink));
    let Some((a, b, Some(class))) = found else {
        return vec![evidence(machine, "the driver's table of peer access over NVLink", &["p2p.nvlink"])];
    };
    let of_all = machine.pairs().count();
    let such = machine.pairs().filter(|(_, _, c)| c.is_some_and(|c| c.is_nvlink() == nvlink)).count();
    let open = machine.pairs().filter(|(_, _, c)| c.is_none()).count();
    let with = if nvlink { "over NVLink" } else { "without NVLink" };
    let fact = match (of_all, open) {
        (1, _) => format!("{} is {class}", pair(machine, a, b)),
        (_, 0) => format!("{} is {class}; {such} of {of_all} pairs are {with}", pair(machine, a, b)),
        _ => format!("{} is {class}; of {open} of {of_all} pairs it is not known", pair(machine, a, b)),
    };
    vec![evidence(machine, fact, &[&format!("links[{a}]")])]
}
