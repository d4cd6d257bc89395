//! What the next fix or the next euro buys: the same placement on a machine that differs in one thing.

use crate::links::{Fabric, Nccl, peer_access};
use crate::placement::{Basis, Model, Placement, PlanError, Wish, chosen, placements};
use crate::reduce;
use serde::Serialize;
use tombolo_topology::{LinkClass, Machine, P2pState, Pairs};

/// One change.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Advice {
    /// What is changed.
    pub what: String,
    /// Tokens a second for one user then, at the best placement that fits and can run.
    pub tok_s_one: f64,
    /// The same for many.
    pub tok_s_many: f64,
    /// Against the machine as it is; `None`: the model does not fit in that.
    pub gain_one: Option<f64>,
    /// What must be known about the figure.
    pub note: String,
}

/// All changes that say something about this machine. `placed`: what [`placements`] gave for it.
///
/// # Errors
/// As [`placements`].
pub fn advice(
    model: &Model,
    machine: &Machine,
    wish: &Wish,
    basis: &Basis,
    placed: &[Placement],
) -> Result<Vec<Advice>, PlanError> {
    let Some(now) = best(placed) else { return until_it_fits(model, machine, wish, basis) };
    let mut changes: Vec<(String, Machine, String)> = Vec::new();
    let blocked = machine.pairs().any(|(a, b, _)| peer_access(machine, a, b) == Some(false));
    let pcie = machine.pairs().any(|(_, _, class)| class.is_some_and(|c| !c.is_nvlink()));
    if machine.len() > 1 && pcie {
        let (what, state) = match blocked {
            true => ("with P2P switched on and proven", P2pState::Ok),
            false => ("without P2P: everything through pinned host memory", P2pState::DisabledByRegistry),
        };
        let mut other = machine.clone();
        let table = Pairs::from_fn(machine.len(), |a, b| if a == b { P2pState::Itself } else { state });
        (other.p2p.read, other.p2p.write) = (Some(table.clone()), Some(table));
        other.all_reduce.clear();
        changes.push((what.into(), other, String::new()));
        let switched = with_links(machine, |_, _| LinkClass::Pix);
        let note = "switches with healthy posted writes; one uplink is shared, which decode does not cross".to_string();
        changes.push(("all cards below one PCIe switch".into(), switched, note));
    }
    let mut ranks = now.tensor_parallel;
    for more in 1..=tombolo_model::MAX_RANKS.saturating_sub(machine.len()) {
        let larger = with_more(machine, more);
        let (found, _) = placements(model, &larger, wish, basis)?;
        let then = best(&found).map_or(0, |b| b.tensor_parallel);
        // One more card need not make one more legal size: as many as make the next one.
        if then > ranks || more == 1 {
            let note = if then <= ranks { "no larger size is legal with it".to_string() } else { String::new() };
            changes.push((format!("{more} more of the same card"), larger, note));
        }
        ranks = ranks.max(then);
    }
    let mut faster = machine.clone();
    faster.gpus.iter_mut().for_each(|g| g.memory_gb_s = g.memory_gb_s.map(|b| 2.0 * b));
    changes.push(("cards with twice the memory bandwidth".into(), faster, String::new()));
    let mut found = Vec::new();
    for (what, other, note) in changes {
        let (placed, _) = placements(model, &other, wish, basis)?;
        if let Some(b) = best(&placed) {
            found.push(entry(what, b.tok_s_one, b.tok_s_many, now, note));
        }
    }
    if let Some(drafted) = drafting(model, machine, wish, basis, now)? {
        found.push(drafted);
    }
    found.extend(through_nccl(machine, basis, now)?);
    found.sort_by(|a, b| b.tok_s_one.total_cmp(&a.tok_s_one));
    Ok(found)
}

/// How many more cards a model needs that does not fit.
fn until_it_fits(model: &Model, machine: &Machine, wish: &Wish, basis: &Basis) -> Result<Vec<Advice>, PlanError> {
    for more in 1..=tombolo_model::MAX_RANKS.saturating_sub(machine.len()) {
        let (found, _) = placements(model, &with_more(machine, more), wish, basis)?;
        if let Some(b) = best(&found).filter(|b| b.cannot_run_yet.is_none()) {
            return Ok(vec![Advice {
                what: format!("{more} more of the same card: the model fits, as {}", b.name),
                tok_s_one: b.tok_s_one,
                tok_s_many: b.tok_s_many,
                gain_one: None,
                note: String::new(),
            }]);
        }
    }
    Ok(Vec::new())
}

fn entry(what: String, one: f64, many: f64, now: &Placement, note: String) -> Advice {
    Advice { what, tok_s_one: one, tok_s_many: many, gain_one: Some(one / now.tok_s_one - 1.0), note }
}

/// The best placement that fits, of those that can run if any does.
pub fn best(placed: &[Placement]) -> Option<&Placement> {
    placed.iter().find(|p| p.fits && p.cannot_run_yet.is_none()).or_else(|| placed.iter().find(|p| p.fits))
}

fn with_links(machine: &Machine, class: impl Fn(usize, usize) -> LinkClass) -> Machine {
    let mut other = machine.clone();
    let itself = |a, b| Some(if a == b { LinkClass::Itself } else { class(a, b) });
    other.links = Some(Pairs::from_fn(machine.len(), itself));
    // Paths would contradict it, and what was measured was measured on other links.
    other.all_reduce.clear();
    other.gpus.iter_mut().for_each(|g| g.pci_path = None);
    other
}

/// The machine with more cards beside its last one.
fn with_more(machine: &Machine, more: usize) -> Machine {
    let count = machine.len();
    let mut other = machine.clone();
    let Some(last) = machine.gpus.last() else { return other };
    for n in 0..more {
        other.gpus.push(tombolo_topology::Gpu { index: last.index + 1 + n as u32, ..last.clone() });
    }
    let like = |gpu: usize| gpu.min(count - 1);
    // A new card is as near to the last one as its neighbour is.
    let neighbour = if count > 1 { machine.class(count - 2, count - 1) } else { Some(LinkClass::Phb) };
    other.links = Some(Pairs::from_fn(count + more, |a, b| match (a == b, like(a) == like(b)) {
        (true, _) => Some(LinkClass::Itself),
        (_, true) => neighbour,
        _ => machine.class(like(a), like(b)),
    }));
    // What the driver allows the cards that are there, it allows one more of them.
    let grown = |table: &Option<Pairs<P2pState>>| {
        let table = table.as_ref()?;
        let between = |a: usize, b: usize| table.get(like(a), like(b)).copied().unwrap_or(P2pState::Unknown);
        let others = if count > 1 { between(0, 1) } else { P2pState::Unknown };
        Some(Pairs::from_fn(count + more, |a, b| match (a == b, like(a) == like(b)) {
            (true, _) => P2pState::Itself,
            (_, true) => others,
            _ => between(a, b),
        }))
    };
    let (read, write) = (grown(&machine.p2p.read), grown(&machine.p2p.write));
    other.p2p = tombolo_topology::P2p { read, write, ..Default::default() };
    other.gpus.iter_mut().for_each(|g| g.pci_path = None);
    other
}

/// Drafts by the model's own block, where it has one and none were wished for.
fn drafting(
    model: &Model,
    machine: &Machine,
    wish: &Wish,
    basis: &Basis,
    now: &Placement,
) -> Result<Option<Advice>, PlanError> {
    if model.config.draft_layers == 0 || wish.speculation.is_some() {
        return Ok(None);
    }
    let wish = Wish { speculation: Some((3, 0.7)), ..*wish };
    let (placed, _) = placements(model, machine, &wish, basis)?;
    let same = placed.iter().find(|p| p.tensor_parallel == now.tensor_parallel && p.pipeline == 1 && !p.experts_whole);
    let what = "speculation, 3 drafts of the model's own block, 70 % of them right".to_string();
    let note = "cannot run on GPUs yet".to_string();
    Ok(same.map(|p| entry(what, p.tok_s_one, p.tok_s_many, now, note)))
}

/// What it would be with NCCL in place of our all-reduce.
fn through_nccl(machine: &Machine, basis: &Basis, now: &Placement) -> Result<Option<Advice>, PlanError> {
    if now.tensor_parallel < 2 {
        return Ok(None);
    }
    let fabric = Fabric::of(machine, &chosen(machine, now.tensor_parallel))?;
    let beyond = machine.pairs().any(|(_, _, class)| class.is_some_and(LinkClass::through_host));
    // Its default takes peer memory up to PXB only.
    let way = if beyond || reduce::through_host(&fabric) { Nccl::LlPinned } else { Nccl::Ll };
    let nccl = reduce::nccl(&fabric, now.budget.all_reduce_bytes, way, &basis.params);
    let slower = (nccl.us - now.all_reduce.us) * now.budget.all_reduces as f64 / 1e3;
    let ms = now.one.ms + slower;
    let what = format!("{} in place of tombolo's all-reduce ({:.1} us a call)", nccl.by, nccl.us);
    let one = now.tok_s_one * now.one.ms / ms;
    let many = now.tok_s_many * now.many.ms / (now.many.ms + slower.max(0.0));
    Ok(Some(entry(what, one, many, now, "by NCCL's own latency model, calibrated".into())))
}
