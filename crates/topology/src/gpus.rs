//! What is printed on the box of a card: memory, its bandwidth, PCIe, NVLink, and whether the driver lets two of them
//! reach each other. From `data/gpus.toml`, which gives a source for each row. What a machine itself says goes before.

use crate::machine::{Gpu, Machine};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// What the unmodified driver allows between two cards of a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum P2pPolicy {
    /// Peer access over PCIe and NVLink.
    Yes,
    /// Over an NVLink bridge only.
    NvLink,
    /// None.
    No,
}

/// One card.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Card {
    /// As the driver prints it.
    pub name: String,
    /// Other names, among them those of a family.
    #[serde(default)]
    pub also: Vec<String>,
    /// Its numbers on the PCI bus, in four hexadecimal digits.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Nominal memory in GB.
    pub memory_gb: Option<u32>,
    /// Peak bandwidth of the memory in GB/s.
    pub memory_gb_s: f64,
    /// Generation and lanes.
    pub pcie: (u8, u8),
    /// Major and minor.
    pub compute_capability: (u8, u8),
    /// NVLinks.
    pub nvlinks: Option<u8>,
    /// What one NVLink carries each way, in GB/s.
    pub nvlink_gb_s: Option<f64>,
    /// What the unmodified driver allows.
    pub p2p: P2pPolicy,
    /// Whether it comes on boards with NVSwitch.
    #[serde(default)]
    pub nvswitch: bool,
    /// Power limit that it comes with, in watts.
    pub power_w: f64,
    /// Where these figures are from.
    pub source: String,
}

#[derive(Deserialize)]
struct Table {
    card: Vec<Card>,
}

/// All cards that are known.
pub fn cards() -> &'static [Card] {
    static CARDS: OnceLock<Vec<Card>> = OnceLock::new();
    // The table is part of the binary and a test reads it; without it every card is merely unknown.
    CARDS.get_or_init(|| toml::from_str::<Table>(include_str!("../data/gpus.toml")).map(|t| t.card).unwrap_or_default())
}

/// The cards that a name means: one, or several of a family that share it, or none.
pub fn facts(name: &str) -> Option<Vec<&'static Card>> {
    let wanted = plain(name);
    let cut = wanted.strip_suffix("...").or_else(|| wanted.strip_suffix('…')).map(str::trim_end);
    let means = |card: &Card| match cut {
        // `nvidia-smi` cuts long names: every card that begins so is meant.
        Some(start) => start.len() >= 8 && plain(&card.name).starts_with(start),
        None => plain(&card.name) == wanted || card.also.iter().any(|other| plain(other) == wanted),
    };
    let exact: Vec<_> = cards().iter().filter(|card| means(card)).collect();
    (!exact.is_empty()).then_some(exact)
}

/// The name of the card with a number on the PCI bus, as `0x2684` or `2684`.
pub fn name_of_device(number: &str) -> Option<&'static str> {
    let number = number.trim().trim_start_matches("0x").to_ascii_lowercase();
    cards().iter().find(|card| card.devices.contains(&number)).map(|card| card.name.as_str())
}

/// Whether a name is one of cards that have no NVLink.
pub fn without_nvlink(name: &str) -> bool {
    facts(name).is_some_and(|cards| cards.iter().all(|card| card.nvlinks.is_none()))
}

/// A name without what some drivers and tables put before it.
fn plain(name: &str) -> String {
    let name = name.to_ascii_lowercase();
    let words =
        name.split_whitespace().filter(|w| !["nvidia", "geforce", "tesla", "quadro", "corporation"].contains(w));
    words.collect::<Vec<_>>().join(" ")
}

/// What all of several cards agree in; `None` where they differ.
pub fn agreed<T: PartialEq>(cards: &[&Card], fact: impl Fn(&Card) -> T) -> Option<T> {
    let mut facts = cards.iter().map(|card| fact(card));
    let first = facts.next()?;
    facts.all(|other| other == first).then_some(first)
}

/// Gives every GPU without a name this one, and what is known of such cards; `false` where no such card is known.
pub fn name(machine: &mut Machine, name: &str) -> bool {
    let Some(cards) = facts(name) else { return false };
    let named = machine.gpus.iter().filter(|gpu| gpu.name.is_some()).count();
    if named > 0 && named == machine.len() {
        let same = |gpu: &Gpu| gpu.name.as_deref().and_then(facts).is_some_and(|own| own == cards);
        if !machine.gpus.iter().all(same) {
            let own = machine.gpus[0].name.clone().unwrap_or_default();
            machine
                .notes
                .push(format!("`--gpu {}` is ignored: the texts name the cards themselves ({own})", name.trim()));
        }
        return true;
    }
    for gpu in machine.gpus.iter_mut().filter(|gpu| gpu.name.is_none()) {
        gpu.name = Some(name.trim().to_string());
        // Slots are not told by a name: the card's own link is the best that they can give it.
        gpu.pcie.gen_max = gpu.pcie.gen_max.or_else(|| agreed(&cards, |c| c.pcie.0));
        gpu.pcie.width_max = gpu.pcie.width_max.or_else(|| agreed(&cards, |c| c.pcie.1));
    }
    fill(machine);
    true
}

/// Puts what is known of each card where the machine does not say it itself.
pub(crate) fn fill(machine: &mut Machine) {
    let mut notes = Vec::new();
    let mut beyond: BTreeMap<(String, u8, u8), Vec<String>> = BTreeMap::new();
    for (at, gpu) in machine.gpus.iter_mut().enumerate() {
        let Some(cards) = gpu.name.as_deref().and_then(facts) else { continue };
        let missing = gpu.memory_gb_s.is_none();
        if missing {
            let least = cards.iter().map(|c| c.memory_gb_s).fold(f64::INFINITY, f64::min);
            gpu.memory_gb_s = Some(least);
            machine.origin.insert(format!("memory_gb_s[{at}]"), format!("table of cards: {}", cards[0].source));
            if agreed(&cards, |c| c.memory_gb_s).is_none() {
                let names: Vec<&str> = cards.iter().map(|c| c.name.as_str()).collect();
                let name = gpu.name.as_deref().unwrap_or_default();
                notes.push(format!(
                    "`{name}` is the name of {}: the least memory bandwidth of them is taken, {least} GB/s",
                    names.join(", ")
                ));
            }
        }
        if gpu.memory_bytes.is_none() {
            // Device memory is sold in 2^30 bytes; the driver keeps a little for itself.
            gpu.memory_bytes = agreed(&cards, |c| c.memory_gb).flatten().map(|gb| u64::from(gb) << 30);
        }
        gpu.compute_capability = gpu.compute_capability.or_else(|| agreed(&cards, |c| c.compute_capability));
        gpu.nvlink_gb_s = gpu.nvlink_gb_s.or_else(|| agreed(&cards, |c| c.nvlink_gb_s).flatten());
        let best = cards.iter().map(|c| c.pcie.0).max();
        if let (Some(best), Some(told)) = (best, gpu.pcie.gen_max.max(gpu.pcie.gen_now))
            && told > best
        {
            let name = gpu.name.clone().unwrap_or_default();
            beyond.entry((name, told, best)).or_default().push(format!("GPU{}", gpu.index));
        }
        gpu.pcie.gen_gpu = gpu.pcie.gen_gpu.or_else(|| agreed(&cards, |c| c.pcie.0));
        gpu.power_default_w = gpu.power_default_w.or_else(|| agreed(&cards, |c| c.power_w));
        if gpu.multicast.is_none() && cards.iter().all(|c| !c.nvswitch) {
            gpu.multicast = Some(false);
        }
    }
    for ((name, told, best), gpus) in beyond {
        let gpus = gpus.join(", ");
        notes.push(format!(
            "PCIe generation {told} of {gpus}: `{name}` has {best} at best. Is the list of links of this machine?"
        ));
    }
    notes.dedup();
    notes.retain(|note| !machine.notes.contains(note));
    machine.notes.extend(notes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sound() {
        assert!(cards().len() >= 30, "{}", cards().len());
        for card in cards() {
            assert!((200.0..10_000.0).contains(&card.memory_gb_s), "{}", card.name);
            assert!(crate::link::pcie_gb_s(card.pcie.0, card.pcie.1).is_some(), "{}", card.name);
            assert_eq!(card.nvlinks.is_some(), card.nvlink_gb_s.is_some(), "{}", card.name);
            assert!(!card.source.is_empty() && (50.0..1500.0).contains(&card.power_w), "{}", card.name);
            assert_eq!(facts(&card.name).map(|found| found[0].name.as_str()), Some(card.name.as_str()));
        }
    }

    #[test]
    fn names_are_found_and_families_are_told_apart() {
        let names = |name: &str| facts(name).unwrap_or_default().iter().map(|c| c.name.clone()).collect::<Vec<_>>();
        assert_eq!(names("GeForce RTX 3090"), ["NVIDIA GeForce RTX 3090"]);
        assert_eq!(names("NVIDIA GeForce RTX 4070").len(), 0);
        assert_eq!(names("NVIDIA RTX PRO 6000 Blac...").len(), 3);
        let family = facts("RTX PRO 6000 Blackwell").unwrap_or_default();
        assert_eq!(agreed(&family, |c| c.memory_gb), Some(Some(96)));
        assert_eq!(agreed(&family, |c| c.memory_gb_s), None);
    }
}
