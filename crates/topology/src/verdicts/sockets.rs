//! GPUs on several NUMA nodes.

use super::{Severity, Verdict, evidence, gpu_list, pair};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let islands = machine.islands()?;
    let (a, b, _) = machine.pairs().find(|(_, _, class)| class.is_some_and(|c| c.crosses_nodes()))?;
    let shown: Vec<String> = islands.iter().map(|i| gpu_list(machine, i)).collect();
    let crossing = machine.pairs().filter(|(_, _, class)| class.is_some_and(|c| c.crosses_nodes())).count();
    let fact = match crossing - 1 {
        0 => format!("{} is SYS", pair(machine, a, b)),
        1 => format!("{} is SYS, as is 1 more pair", pair(machine, a, b)),
        others => format!("{} is SYS, as are {others} more pairs", pair(machine, a, b)),
    };
    let mut facts = vec![evidence(machine, fact, &[&format!("links[{a}]")])];
    // Ranks in the order of GPUs go to and fro between islands if one island's numbers are no run.
    let mixed = islands.iter().any(|i| i.windows(2).any(|w| w[1] != w[0] + 1));
    if mixed {
        facts.push(evidence(machine, format!("the islands' numbers interleave: {}", shown.join(" and ")), &[]));
    }
    let mut fix = fixes(machine, &islands);
    if mixed {
        let order: Vec<String> = islands.iter().flatten().map(|&g| machine.gpus[g].index.to_string()).collect();
        fix.insert(0, format!("number ranks island by island: `CUDA_VISIBLE_DEVICES={}`", order.join(",")));
    }
    Some(Verdict {
        rule: "sockets",
        severity: Severity::Warning,
        title: match islands.iter().all(|i| i.len() == 1) {
            true => format!("{} GPUs on as many NUMA nodes", machine.len()),
            false => format!("{} islands: {} GPUs on different NUMA nodes", islands.len(), machine.len()),
        },
        evidence: facts,
        reason: format!(
            "{} are islands: between them every byte crosses the processors' interconnect, which takes longer and which all pairs \
             share. {}{}",
            shown.join(" and "),
            flat(&islands),
            measured(machine)
        ),
        fix,
    })
}

fn fixes(machine: &Machine, islands: &[Vec<usize>]) -> Vec<String> {
    let largest = islands.iter().map(Vec::len).max().unwrap_or(1);
    let mut fix = vec![match largest {
        1 => "a model that fits one card: one replica on each".to_string(),
        n => format!("a model that fits one island: tensor parallelism over {n} and one replica on each island"),
    }];
    fix.push(match largest {
        1 => "a larger one has to be one group over all cards: every all-reduce crosses then, and few large messages (prefill, batches) \
              lose less by it than many small ones"
            .into(),
        _ => "a larger one: one group over all islands, with an all-reduce that sums within each and then exchanges between pairs only; \
              NCCL's ring and vLLM's one-shot do not. Or servers with pipeline parallelism: one island a stage"
            .into(),
    });
    let sockets = machine.host.sockets.map(|s| s as usize);
    if sockets.is_none_or(|s| s < islands.len()) && machine.host.virtual_machine != Some(true) {
        fix.push("if the machine has one socket, its BIOS splits it: `NPS1` (AMD), SNC off (Intel)".into());
    }
    fix
}

/// What a flat all-reduce sends from the first island to the others.
fn flat(islands: &[Vec<usize>]) -> String {
    let all: usize = islands.iter().map(Vec::len).sum();
    let out = islands.first().map_or(0, |first| first.len() * (all - first.len()));
    match out {
        0 | 1 => String::new(),
        _ => format!("A flat all-reduce on {all} GPUs sends {out} messages out of the first island at once."),
    }
}

/// Figures that were published for machines like this one.
fn measured(machine: &Machine) -> &'static str {
    let gen5 = |g: &crate::machine::Gpu| (g.pcie.gen_max.or(g.pcie.gen_now), g.pcie.width_now) == (Some(5), Some(16));
    match machine.gpus.iter().all(gen5) {
        true if machine.len() == 8 => {
            " Published for RTX PRO 6000 on EPYC (PCIe 5.0 x16): 39 to 51 GB/s across and 53 to 56 on one node; an all-reduce of 8 KB over \
             eight took 64 µs on one board with two sockets and 9 µs on one with one."
        }
        true => " Published for RTX PRO 6000 on EPYC (PCIe 5.0 x16): 39 to 51 GB/s across and 53 to 56 on one node.",
        false => "",
    }
}
