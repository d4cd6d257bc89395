//! Several GPUs of which no text says what connects them.

use super::{Severity, Verdict, evidence, gpu_list};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let open: Vec<_> = machine.pairs().filter(|(_, _, class)| class.is_none()).collect();
    let (a, b, _) = *open.first()?;
    let all = machine.pairs().count();
    let windows = machine.origin.contains_key("windows");
    let some = open.len() < all;
    let title = match some {
        true => format!("what connects {} of {all} pairs of GPUs is not known", open.len()),
        false => "what connects the GPUs is not known".to_string(),
    };
    let fact = match some {
        true => format!(
            "{} have no known path between them, as have {} other pairs",
            gpu_list(machine, &[a, b]),
            open.len() - 1
        ),
        false => "no text holds a matrix of `nvidia-smi topo -m`".to_string(),
    };
    let paste = match windows {
        true => {
            "Windows has no `nvidia-smi topo`: boot a Linux from a stick and run `nvidia-smi topo -m` there, or look up in \
                 the board's manual where the slots go"
        }
        false => "paste `nvidia-smi topo -m` (Linux) along, and `nvidia-smi topo -p2p r`",
    };
    let mut facts = vec![evidence(machine, fact.replace(", as have 0 other pairs", ""), &[])];
    if windows {
        facts.push(evidence(machine, "the cards run under Windows (WDDM)", &["windows"]));
    }
    Some(Verdict {
        rule: "paths-unknown",
        severity: Severity::Note,
        title,
        evidence: facts,
        reason: "Most of what decides how several GPUs work together (NVLink, switches, sockets, peer access) cannot be read off a list \
                 of cards, and nothing is said here about it."
            .into(),
        fix: vec![paste.into()],
    })
}
