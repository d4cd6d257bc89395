//! What a machine permits, what it costs and what mends it. One file for each rule; here is what a verdict is and in
//! which order they come. Rules are functions of the facts: a fact that is not known gives no verdict about it, except
//! where not knowing is the point.

mod acs;
mod asymmetric;
mod bar1;
mod custom_all_reduce;
mod hugepages;
mod iommu;
mod link_replays;
mod link_speed;
mod link_width;
mod memlock;
mod mig;
mod multicast;
mod nccl_path;
mod p2p_off;
mod p2p_staged;
mod p2p_tested;
mod paths_unknown;
mod persistence;
mod power;
mod shared_memory;
mod sockets;
mod virtual_machine;
mod write_collapse;

use crate::gpus::{self, P2pPolicy};
use crate::link::LinkClass;
use crate::machine::{Gpu, Machine};
use serde::{Deserialize, Serialize};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Broken: data can be wrong, work can hang, or a part runs far below what it is.
    Error,
    /// It costs speed, and something can be done.
    Warning,
    /// To know.
    Note,
    /// As it should be.
    Good,
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// Short name of the rule.
    pub rule: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// The finding in one line.
    pub title: String,
    /// What it rests on.
    pub evidence: Vec<Evidence>,
    /// Why it matters, in plain words.
    pub reason: String,
    /// What to do, most useful first; empty where nothing can be done or need be.
    pub fix: Vec<String>,
}

/// A fact that a verdict rests on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Evidence {
    /// The fact.
    pub fact: String,
    /// Where it was read, as `topo-m.txt, line 4`; empty if it was computed from other facts.
    pub origin: String,
}

type Rule = fn(&Machine) -> Option<Verdict>;

const RULES: [Rule; 23] = [
    p2p_tested::judge,
    p2p_staged::judge,
    iommu::judge,
    acs::judge,
    p2p_off::judge,
    custom_all_reduce::judge,
    nccl_path::judge,
    link_width::judge,
    link_speed::judge,
    sockets::judge,
    paths_unknown::judge,
    multicast::judge,
    write_collapse::judge,
    bar1::judge,
    asymmetric::judge,
    link_replays::judge,
    power::judge,
    persistence::judge,
    mig::judge,
    shared_memory::judge,
    memlock::judge,
    hugepages::judge,
    virtual_machine::judge,
];

/// All verdicts about a machine, the worst first; of equal ones in the order of the rules, which begins with what can be
/// mended and what decides most.
pub fn verdicts(machine: &Machine) -> Vec<Verdict> {
    let mut found: Vec<Verdict> = RULES.iter().filter_map(|judge| judge(machine)).collect();
    found.sort_by_key(|verdict| verdict.severity);
    found
}

/// The findings that a summary tells: the first three errors and warnings.
pub fn foremost(verdicts: &[Verdict]) -> impl Iterator<Item = &Verdict> {
    verdicts.iter().filter(|v| matches!(v.severity, Severity::Error | Severity::Warning)).take(3)
}

/// A fact and where it was read: the first of the keys of `Machine::origin` that is known.
fn evidence(machine: &Machine, fact: impl Into<String>, keys: &[&str]) -> Evidence {
    let origin = keys.iter().find_map(|key| machine.origin.get(*key)).cloned().unwrap_or_default();
    Evidence { fact: fact.into(), origin }
}

/// `GPU0–GPU3, GPU6`, by the numbers that `nvidia-smi` gives.
pub fn gpu_list(machine: &Machine, gpus: &[usize]) -> String {
    let numbers: Vec<u32> = gpus.iter().filter_map(|&g| machine.gpus.get(g)).map(|g| g.index).collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let run = |(first, last): &(u32, u32)| match last - first {
        0 => format!("GPU{first}"),
        1 => format!("GPU{first}, GPU{last}"),
        _ => format!("GPU{first}–GPU{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(", ")
}

/// `GPU0 to GPU3`.
fn pair(machine: &Machine, a: usize, b: usize) -> String {
    let index = |at: usize| machine.gpus.get(at).map_or(at as u32, |gpu| gpu.index);
    format!("GPU{} to GPU{}", index(a), index(b))
}

/// `the two GPUs`, `all 8 GPUs`.
fn all_gpus(machine: &Machine) -> String {
    if machine.len() == 2 { "the two GPUs".into() } else { format!("all {} GPUs", machine.len()) }
}

/// What the unmodified driver allows cards like this one, where the card is known.
fn policy(gpu: &Gpu) -> Option<P2pPolicy> {
    gpus::agreed(&gpus::facts(gpu.name.as_deref()?)?, |card| card.p2p)
}

/// Whether two GPUs may reach each other: by the driver's word, and where that was not asked by what the unmodified driver
/// does with such cards. `None` if neither is known.
pub fn p2p_expected(machine: &Machine, a: usize, b: usize) -> Option<bool> {
    if let Some(said) = machine.p2p_allowed(a, b) {
        return Some(said);
    }
    let policies = [policy(machine.gpus.get(a)?)?, policy(machine.gpus.get(b)?)?];
    match machine.class(a, b).map(LinkClass::is_nvlink) {
        _ if policies.contains(&P2pPolicy::No) => Some(false),
        Some(false) if policies.contains(&P2pPolicy::NvLink) => Some(false),
        _ => None,
    }
}

/// Whether the driver may let any two GPUs reach each other, as far as is known.
fn p2p_possible(machine: &Machine) -> bool {
    machine.pairs().any(|(a, b, _)| p2p_expected(machine, a, b) != Some(false))
}
