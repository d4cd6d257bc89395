//! Several texts about one machine put together: who is who, what contradicts, and what no text says.

use super::error::{Fault, ReadError, place};
use super::part::{Capability, Found, Key, Part, Table};
use crate::gpus;
use crate::limits::GPUS_MAX;
use crate::link::{LinkClass, P2pState, Pairs};
use crate::machine::{Gpu, Host, Machine};
use std::collections::{BTreeMap, BTreeSet};

/// What has been read so far.
#[derive(Default)]
pub(crate) struct Merge {
    base: Option<(String, Machine)>,
    parts: Vec<(String, Part)>,
    /// A record that says how many cards of which name there are, and in which file.
    pub(crate) cards: Option<(String, usize, String)>,
}

/// The GPUs, and how texts may name them.
struct Roster {
    indexes: Vec<u32>,
    by_bus: BTreeMap<String, u32>,
    /// The text that says which GPUs there are.
    origin: String,
}

impl Merge {
    pub(crate) fn add(&mut self, file: &str, part: Part) {
        self.parts.push((file.to_string(), part));
    }

    /// A whole machine, which other texts may add to.
    pub(crate) fn add_machine(&mut self, file: &str, machine: Machine) -> Result<(), ReadError> {
        if let Some((other, _)) = &self.base {
            let fault = Fault::Contradiction {
                what: "the machine".into(),
                here: "given whole".into(),
                there: "given whole as well".into(),
                origin: other.clone(),
            };
            return Err(ReadError::new(file, None, fault));
        }
        self.base = Some((file.to_string(), machine));
        Ok(())
    }

    /// The machine.
    pub(crate) fn finish(mut self) -> Result<Machine, ReadError> {
        let roster = self.roster()?;
        let mut machine = self.base.take().map(|(_, machine)| machine).unwrap_or_default();
        for &index in &roster.indexes {
            if !machine.gpus.iter().any(|g| g.index == index) {
                machine.gpus.push(Gpu { index, ..Gpu::default() });
            }
        }
        // Stated classes go before those computed from a tree, and a matrix with NVLink before one that leaves it out.
        self.parts.sort_by_key(|(_, part)| (part.computed, part.without_nvlink));
        for (file, part) in &self.parts {
            add_part(&mut machine, &roster, file, part)?;
        }
        for (file, part) in self.parts.iter().filter(|(_, part)| part.peers.is_some()) {
            add_peers(&mut machine, &roster, file, part)?;
        }
        if let Some((file, count, name)) = &self.cards {
            name_cards(&mut machine, file, *count, name)?;
        }
        remark(&mut machine);
        gpus::fill(&mut machine);
        Ok(machine)
    }

    /// Which GPUs there are. A matrix lists all of them; without one, everything that any text lists counts.
    fn roster(&self) -> Result<Roster, ReadError> {
        if let Some((file, machine)) = &self.base {
            let by_bus = machine.gpus.iter().filter_map(|g| Some((g.pci_bus_id.clone()?, g.index))).collect();
            let indexes = machine.gpus.iter().map(|g| g.index).collect();
            return self.named(Roster { indexes, by_bus, origin: file.clone() });
        }
        let matrix = self.parts.iter().find_map(|(file, part)| {
            let keys = part.links.as_ref().map(|t| &t.keys).or(part.p2p.first().map(|(_, t)| &t.keys))?;
            let indexes: Option<Vec<u32>> = keys.iter().map(index_of).collect();
            Some((file.clone(), indexes?))
        });
        let (origin, mut indexes) = matrix.unwrap_or_else(|| {
            let listed = self.parts.iter().filter(|(_, part)| part.gpus.iter().any(|f| index_of(&f.key).is_some()));
            let origin = listed.clone().next().map(|(file, _)| file.clone()).unwrap_or_default();
            let all: BTreeSet<u32> =
                listed.flat_map(|(_, part)| part.gpus.iter().filter_map(|f| index_of(&f.key))).collect();
            (origin, all.into_iter().collect())
        });
        indexes.sort_unstable();
        self.named(Roster { indexes, by_bus: BTreeMap::new(), origin })
    }

    /// Finds out which address is which GPU: where a text gives both, by that; else in the order of addresses, in which
    /// `nvidia-smi` numbers GPUs.
    fn named(&self, mut roster: Roster) -> Result<Roster, ReadError> {
        let found = || self.parts.iter().flat_map(|(file, part)| part.gpus.iter().map(move |f| (file, f)));
        for (_, f) in found() {
            if let (Key::Index(index), Some(bus)) = (&f.key, &f.gpu.pci_bus_id) {
                roster.by_bus.insert(bus.clone(), *index);
            }
        }
        let mut unknown: BTreeMap<&String, (&String, usize)> = BTreeMap::new();
        for (file, f) in found() {
            if let Key::Bus(bus) = &f.key
                && !roster.by_bus.contains_key(bus)
            {
                unknown.entry(bus).or_insert((file, f.line));
            }
        }
        if roster.indexes.is_empty() {
            // Lists without numbers: the longest says which GPUs there are.
            let size = |p: &Part| p.gpus.len().max(p.measured.as_ref().map_or(0, |t| t.keys.len()));
            let longest = self.parts.iter().rev().max_by_key(|(_, p)| size(p));
            let count = longest.map_or(0, |(_, p)| size(p)).min(GPUS_MAX);
            roster.indexes = (0..count as u32).collect();
            roster.origin = longest.map(|(file, _)| file.clone()).unwrap_or_default();
        }
        let named: BTreeSet<u32> = roster.by_bus.values().copied().collect();
        let free: Vec<u32> = roster.indexes.iter().copied().filter(|i| !named.contains(i)).collect();
        if let Some((bus, (file, line))) = unknown.iter().next()
            && unknown.len() != free.len()
        {
            let count = roster.indexes.len();
            let fault = Fault::Stranger { gpu: format!("the GPU at {bus}"), count, origin: roster.origin.clone() };
            return Err(ReadError::new(file, *line, fault));
        }
        roster.by_bus.extend(unknown.keys().map(|bus| (*bus).clone()).zip(free));
        Ok(roster)
    }
}

fn index_of(key: &Key) -> Option<u32> {
    match key {
        Key::Index(index) => Some(*index),
        _ => None,
    }
}

impl Roster {
    /// The place of a GPU in the machine.
    fn place(&self, file: &str, line: usize, key: &Key, listed: usize) -> Result<usize, ReadError> {
        let index = match key {
            Key::Index(index) => Some(*index),
            Key::Bus(bus) => self.by_bus.get(bus).copied(),
            Key::Order(at) if listed == self.indexes.len() => self.indexes.get(*at).copied(),
            Key::Order(_) => None,
        };
        index.and_then(|index| self.indexes.iter().position(|i| *i == index)).ok_or_else(|| {
            let gpu = match key {
                Key::Index(index) => format!("GPU{index}"),
                Key::Bus(bus) => format!("the GPU at {bus}"),
                Key::Order(at) => format!("GPU {} of {listed} without a number", at + 1),
            };
            let fault = Fault::Stranger { gpu, count: self.indexes.len(), origin: self.origin.clone() };
            ReadError::new(file, Some(line).filter(|l| *l > 0), fault)
        })
    }

    fn places<T>(&self, file: &str, table: &Table<T>) -> Result<Vec<usize>, ReadError> {
        let n = table.keys.len();
        table.keys.iter().zip(&table.lines).map(|(key, &line)| self.place(file, line, key, n)).collect()
    }
}

fn add_part(machine: &mut Machine, roster: &Roster, file: &str, part: &Part) -> Result<(), ReadError> {
    for found in &part.gpus {
        let at = roster.place(file, found.line, &found.key, part.gpus.len())?;
        add_gpu(machine, at, file, found)?;
    }
    if let Some(table) = &part.links {
        add_links(machine, roster, file, table, part)?;
    }
    for (capability, table) in &part.p2p {
        add_p2p(machine, roster, file, *capability, table)?;
    }
    for (table, measured) in [(&part.measured, true), (&part.staged, false)] {
        let Some(table) = table else { continue };
        let places = roster.places(file, table)?;
        let n = machine.len();
        let at = |gpu: usize| places.iter().position(|p| *p == gpu);
        let pairs = Pairs::from_fn(n, |a, b| *table.pairs.get(at(a)?, at(b)?)?);
        let (slot, name) = match measured {
            true => (&mut machine.p2p.measured_gb_s, "p2p.measured_gb_s"),
            false => (&mut machine.p2p.staged_gb_s, "p2p.staged_gb_s"),
        };
        *slot = Some(pairs);
        machine.origin.insert(name.into(), place(file, table.lines.first().copied()));
    }
    add_host(machine, file, part);
    for (key, line) in [("no affinity", part.no_affinity), ("windows", part.windows)] {
        if line.is_some() {
            machine.origin.entry(key.into()).or_insert_with(|| place(file, line));
        }
    }
    for nic in &part.nics {
        if !machine.nics.contains(nic) {
            machine.nics.push(nic.clone());
        }
    }
    machine.notes.extend(part.notes.iter().cloned());
    Ok(())
}

fn add_host(machine: &mut Machine, file: &str, part: &Part) {
    let Host { driver, .. } = &part.host;
    if machine.host.driver.is_none() && driver.is_some() {
        machine.host.driver.clone_from(driver);
        machine.origin.insert("driver".into(), place(file, part.host_line));
    }
}

/// Fills what is `None`, and refuses what differs. Facts that change from one second to the next are overwritten.
fn add_gpu(machine: &mut Machine, at: usize, file: &str, found: &Found) -> Result<(), ReadError> {
    let (mut facts, mut notes): (Vec<&str>, Vec<String>) = (Vec::new(), Vec::new());
    let index = machine.gpus[at].index;
    let origin = machine.origin.clone();
    let gpu = &mut machine.gpus[at];
    let differs = |what: &str, here: String, there: String| {
        let known = origin.get(&format!("{what}[{at}]")).cloned();
        let origin = known.unwrap_or_else(|| "another text".into());
        let fault = Fault::Contradiction { what: format!("{what} of GPU{index}"), here, there, origin };
        ReadError::new(file, Some(found.line).filter(|l| *l > 0), fault)
    };
    macro_rules! same {
        ($name:literal, $($field:ident).+) => {
            match (&gpu.$($field).+, &found.gpu.$($field).+) {
                (Some(old), Some(new)) if old != new => return Err(differs($name, format!("{new:?}"), format!("{old:?}"))),
                (None, Some(new)) => {
                    gpu.$($field).+ = Some(new.clone());
                    facts.push($name);
                }
                _ => {}
            }
        };
    }
    macro_rules! last {
        ($name:literal, $($field:ident).+) => {
            if let Some(new) = &found.gpu.$($field).+ {
                gpu.$($field).+ = Some(new.clone());
                facts.push($name);
            }
        };
    }
    match (&gpu.name, &found.gpu.name) {
        (Some(old), Some(new)) if !found.weak_name => match whole_name(old, new) {
            Some(name) => gpu.name = Some(name),
            None => return Err(differs("name", new.clone(), old.clone())),
        },
        (None, Some(new)) => {
            gpu.name = Some(new.clone());
            facts.push("name");
        }
        _ => {}
    }
    same!("uuid", uuid);
    same!("address", pci_bus_id);
    same!("memory", memory_bytes);
    same!("compute capability", compute_capability);
    same!("numa", numa_node);
    same!("best PCIe generation", pcie.gen_max);
    same!("best PCIe width", pcie.width_max);
    same!("BAR1", bar1_bytes);
    match (&gpu.cpu_affinity, &found.gpu.cpu_affinity) {
        (Some(old), Some(new)) if old != new => {
            let known = origin.get(&format!("cpus[{at}]")).cloned().unwrap_or_else(|| "another text".into());
            let here = place(file, Some(found.line).filter(|l| *l > 0));
            notes.push(format!(
                "the processors near GPU{index} are {old} according to {known} and {new} according to {here}: two machines, \
                 or one in two states (a container, another BIOS setting)? The first is shown"
            ));
        }
        (None, Some(new)) => {
            gpu.cpu_affinity = Some(new.clone());
            facts.push("cpus");
        }
        _ => {}
    }
    last!("path", pci_path);
    last!("pcie", pcie.gen_gpu);
    last!("pcie", pcie.width_now);
    last!("pcie", pcie.replays);
    last!("nvlinks", nvlinks);
    last!("power", power_limit_w);
    last!("power", power_default_w);
    last!("persistence", persistence);
    last!("state", performance_state);
    last!("mig", mig);
    last!("display", display);
    // The quicker of two readings: a link sleeps while the GPU does.
    if found.gpu.pcie.gen_now > gpu.pcie.gen_now {
        gpu.pcie.gen_now = found.gpu.pcie.gen_now;
        facts.push("pcie");
    }
    let line = Some(found.line).filter(|l| *l > 0);
    for fact in facts {
        machine.origin.entry(format!("{fact}[{at}]")).or_insert_with(|| place(file, line));
    }
    notes.into_iter().for_each(|text| note(machine, text));
    Ok(())
}

/// Two spellings of one name: the longer, if the other is a cut or bare form of it.
fn whole_name(old: &str, new: &str) -> Option<String> {
    let start = |name: &str| {
        let bare = name.trim_start_matches("NVIDIA ").to_ascii_lowercase();
        let cut = bare.strip_suffix("...").map(|s| s.trim_end().to_string());
        (cut.clone().unwrap_or(bare), cut.is_some())
    };
    let ((a, a_cut), (b, b_cut)) = (start(old), start(new));
    let same = a == b || a_cut && b.starts_with(&a) || b_cut && a.starts_with(&b);
    let longer = if (b_cut, new.len()) < (a_cut, old.len()) || a_cut && !b_cut { new } else { old };
    same.then(|| longer.to_string())
}

fn add_links(
    machine: &mut Machine,
    roster: &Roster,
    file: &str,
    table: &Table<Option<LinkClass>>,
    part: &Part,
) -> Result<(), ReadError> {
    let places = roster.places(file, table)?;
    let n = machine.len();
    let mut rows: Vec<Vec<Option<LinkClass>>> = match machine.links.take() {
        Some(links) => links.into(),
        None => (0..n).map(|a| (0..n).map(|b| (a == b).then_some(LinkClass::Itself)).collect()).collect(),
    };
    for (x, &a) in places.iter().enumerate() {
        for (y, &b) in places.iter().enumerate().filter(|&(_, &b)| b != a) {
            let Some(new) = table.pairs.get(x, y).copied().flatten() else { continue };
            match rows[a][b] {
                Some(old) if old == new || part.computed => {}
                // `topo -mp` leaves NVLink out: both are right.
                Some(old) if part.without_nvlink && old.is_nvlink() => {}
                Some(old) => {
                    let origin = machine.origin.get(&format!("links[{a}]")).cloned().unwrap_or_default();
                    let (a, b) = (roster.indexes[a], roster.indexes[b]);
                    let fault = Fault::Paths { a, b, here: new.to_string(), there: old.to_string(), origin };
                    return Err(ReadError::new(file, table.lines[x], fault));
                }
                None => rows[a][b] = Some(new),
            }
        }
        machine.origin.entry(format!("links[{a}]")).or_insert_with(|| place(file, Some(table.lines[x])));
    }
    machine.links = Pairs::new(rows).ok();
    Ok(())
}

fn add_p2p(
    machine: &mut Machine,
    roster: &Roster,
    file: &str,
    capability: Capability,
    table: &Table<P2pState>,
) -> Result<(), ReadError> {
    let places = roster.places(file, table)?;
    let at = |gpu: usize| places.iter().position(|p| *p == gpu);
    let pairs = Pairs::from_fn(machine.len(), |a, b| {
        let cell = at(a).zip(at(b)).and_then(|(x, y)| table.pairs.get(x, y).copied());
        cell.unwrap_or(if a == b { P2pState::Itself } else { P2pState::Unknown })
    });
    let (slot, name) = match capability {
        Capability::Read => (&mut machine.p2p.read, "p2p.read"),
        Capability::Write => (&mut machine.p2p.write, "p2p.write"),
        Capability::Atomics => (&mut machine.p2p.atomics, "p2p.atomics"),
        Capability::NvLink => (&mut machine.p2p.nvlink, "p2p.nvlink"),
    };
    if slot.as_ref().is_some_and(|old| *old != pairs) {
        let origin = machine.origin.get(name).cloned().unwrap_or_default();
        let fault =
            Fault::Contradiction { what: name.into(), here: "one table".into(), there: "another".into(), origin };
        return Err(ReadError::new(file, table.lines.first().copied(), fault));
    }
    *slot = Some(pairs);
    machine.origin.insert(name.into(), place(file, table.lines.first().copied()));
    Ok(())
}

/// Takes what a program was told by CUDA about peer access for what the driver's own table would say, where no text has
/// that. What was measured between GPUs without peer access went through host memory, whatever the title says.
fn add_peers(machine: &mut Machine, roster: &Roster, file: &str, part: &Part) -> Result<(), ReadError> {
    let Some(table) = &part.peers else { return Ok(()) };
    let places = roster.places(file, table)?;
    let at = |gpu: usize| places.iter().position(|p| *p == gpu);
    let said = |a: usize, b: usize| table.pairs.get(at(a)?, at(b)?).copied().flatten();
    let n = machine.len();
    let here = place(file, table.lines.first().copied());
    match &machine.p2p.read {
        None => {
            machine.p2p.read = Some(Pairs::from_fn(n, |a, b| match said(a, b) {
                _ if a == b => P2pState::Itself,
                Some(true) => P2pState::Ok,
                Some(false) => P2pState::NotSupported,
                None => P2pState::Unknown,
            }));
            machine.origin.insert("p2p.read".into(), here);
        }
        Some(read) => {
            let states = |a, b| read.get(a, b).copied().filter(|s| *s != P2pState::Unknown);
            let differs =
                |a, b| said(a, b).zip(states(a, b)).is_some_and(|(said, s)| a != b && said != (s == P2pState::Ok));
            if let Some((a, b)) = (0..n).flat_map(|a| (0..n).map(move |b| (a, b))).find(|&(a, b)| differs(a, b)) {
                let word = |can| if can { "can" } else { "cannot" };
                let (x, y) = (roster.indexes[a], roster.indexes[b]);
                let (said, state) = (word(said(a, b) == Some(true)), states(a, b).map_or("?", P2pState::word));
                note(
                    machine,
                    format!("{here}: GPU{x} {said} access GPU{y}, for which another text says {state}; that is taken"),
                );
            }
        }
    }
    let (Some(with), Some(read)) = (machine.p2p.measured_gb_s.take(), &machine.p2p.read) else { return Ok(()) };
    let off = |a, b| a != b && read.get(a, b).is_some_and(|s| !matches!(s, P2pState::Ok | P2pState::Unknown));
    let cell = |t: &Pairs<Option<f64>>, a, b| t.get(a, b).copied().flatten();
    let without = machine.p2p.staged_gb_s.take();
    let staged = Pairs::from_fn(n, |a, b| {
        without.as_ref().and_then(|t| cell(t, a, b)).or_else(|| cell(&with, a, b).filter(|_| off(a, b)))
    });
    let measured = Pairs::from_fn(n, |a, b| cell(&with, a, b).filter(|_| !off(a, b)));
    if let Some(origin) = machine.origin.get("p2p.measured_gb_s").cloned() {
        machine.origin.entry("p2p.staged_gb_s".into()).or_insert(origin);
    }
    let any = |t: &Pairs<Option<f64>>| t.pairs().any(|(_, _, v)| v.is_some());
    machine.p2p.staged_gb_s = Some(staged).filter(|t| without.is_some() || any(t));
    machine.p2p.measured_gb_s = Some(measured).filter(any);
    Ok(())
}

/// Names the cards as a record of a deployment does, where no other text does.
fn name_cards(machine: &mut Machine, file: &str, count: usize, name: &str) -> Result<(), ReadError> {
    if machine.is_empty() {
        machine.gpus = (0..count as u32).map(|index| Gpu { index, ..Gpu::default() }).collect();
    }
    if machine.len() != count {
        let fault = Fault::Contradiction {
            what: "the number of GPUs".into(),
            here: count.to_string(),
            there: machine.len().to_string(),
            origin: "the other texts".into(),
        };
        return Err(ReadError::new(file, None, fault));
    }
    for (at, gpu) in machine.gpus.iter_mut().enumerate().filter(|(_, g)| g.name.is_none()) {
        gpu.name = Some(name.to_string());
        machine.origin.insert(format!("name[{at}]"), file.to_string());
    }
    Ok(())
}

/// Notes what is missing, so that nobody takes a part for the whole.
fn remark(machine: &mut Machine) {
    let mut skipped: Vec<(u32, u32)> = Vec::new();
    let mut next = 0;
    for gpu in &machine.gpus {
        if gpu.index > next {
            skipped.push((next, gpu.index - 1));
        }
        next = gpu.index + 1;
    }
    if !skipped.is_empty() {
        let run = |(first, last): &(u32, u32)| match last - first {
            0 => format!("GPU{first}"),
            1 => format!("GPU{first}, GPU{last}"),
            2 => format!("GPU{first}, GPU{}, GPU{last}", first + 1),
            _ => format!("GPU{first} to GPU{last}"),
        };
        let runs = skipped.iter().map(run).collect::<Vec<_>>().join(", ");
        note(machine, format!("a part of a machine: {runs} not in the texts"));
    }
    let list = |gpus: Vec<u32>| gpus.iter().map(|i| format!("GPU{i}")).collect::<Vec<_>>().join(", ");
    let linked = |g: &&Gpu| g.pcie.gb_s().is_some();
    let without: Vec<u32> = machine.gpus.iter().filter(|g| !linked(g)).map(|g| g.index).collect();
    if !without.is_empty() && without.len() < machine.len() {
        note(machine, format!("PCIe generation and width of {} are in none of the texts", list(without)));
    }
}

/// Adds a note once: a machine that was written and read again has it already.
fn note(machine: &mut Machine, note: String) {
    if !machine.notes.contains(&note) {
        machine.notes.push(note);
    }
}
