//! Access control on bridges, which sends peer traffic up to the root and back.

use super::{Severity, Verdict, evidence, p2p_possible};
use crate::machine::Machine;

pub(super) fn judge(machine: &Machine) -> Option<Verdict> {
    let bridges = machine.host.acs_bridges.as_ref().filter(|bridges| !bridges.is_empty())?;
    if !p2p_possible(machine) || machine.len() < 2 {
        return None;
    }
    let shown: Vec<&str> = bridges.iter().take(8).map(String::as_str).collect();
    let more =
        if bridges.len() > shown.len() { format!(" and {} more", bridges.len() - shown.len()) } else { String::new() };
    let fix: Vec<String> = bridges.iter().take(8).map(|b| format!("setpci -s {b} ECAP_ACS+6.w=0000")).collect();
    Some(Verdict {
        rule: "acs",
        severity: Severity::Error,
        title: match bridges.len() {
            1 => "access control (ACS) redirects peer traffic on a bridge".into(),
            n => format!("access control (ACS) redirects peer traffic on {n} bridges"),
        },
        evidence: vec![evidence(machine, format!("request or completion redirect is on at {}{more}", shown.join(", ")), &["acs"])],
        reason: "With it a switch may not pass a packet from one GPU straight to the next: everything climbs to the processor and comes \
                 back over the one shared uplink, if it comes back. NCCL's hangs were \
                 traced to it."
            .into(),
        fix: vec![
            "switch ACS off in the BIOS".into(),
            format!("or as root, at every boot: `{}`", fix.join("; ")),
        ],
    })
}
