//! The simulation: a schedule's hops as events over the ports, uplinks and interconnects that they share.
//!
//! A rank does its hops in order; each costs it the time to store what it sends, in its blocks. Bytes then pass every
//! resource of their path, which serve one transfer after the other (cut through: a transfer may enter the next before
//! it has left the last), and arrive a latency later. A wait costs a poll, and the time to read what has arrived.

use super::{Cost, Fabric, Params, Wire};
use std::collections::{BTreeMap, BTreeSet};
use tombolo_collective::schedule::{Move, Payload, Schedule};

/// How a kernel carries a schedule out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Style {
    /// Thread blocks of a rank.
    pub blocks: usize,
    /// Bytes on the wire for a byte of payload: 2 where half of every line are flags (LL16), else 1.
    pub line: f64,
    /// Data and flag are apart, with a fence between them.
    pub fence: bool,
    /// Ranks meet once more at the end.
    pub end_barrier: bool,
    /// Residual add and RMSNorm are in the same kernel.
    pub fused: bool,
    /// It only gathers: nothing is summed, every rank brings its share of the bytes.
    pub gather: bool,
}

impl Style {
    /// Flags in 16-byte lines beside the data: what our kernels do.
    pub const LL16: Self = Self { blocks: 6, line: 2.0, fence: false, end_barrier: false, fused: false, gather: false };
    /// A value that no data have says "not yet": all bytes are payload.
    pub const SENTINEL: Self = Self { blocks: 8, line: 1.0, ..Self::LL16 };
    /// Data, fence, flag.
    pub const FENCED: Self = Self { blocks: 8, line: 1.0, fence: true, ..Self::LL16 };
}

/// What was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    /// Until the last rank has the sum, in microseconds.
    pub us: f64,
    /// Of it, what stays for a message of one line: latency.
    pub latency_us: f64,
    /// Ranks whose writes collapsed at a switch.
    pub collapsed: bool,
}

/// Simulates an all-reduce of `bytes` of 16-bit values.
///
/// # Panics
/// If the schedule and the links are for different numbers of ranks, or the schedule is none ([`Schedule::check`]).
pub fn simulate(schedule: &Schedule, fabric: &Fabric, bytes: usize, style: Style, params: &Params) -> Simulated {
    assert_eq!(schedule.ranks, fabric.ranks(), "a schedule for these ranks");
    if schedule.ranks == 1 {
        return Simulated { us: 0.0, latency_us: 0.0, collapsed: false };
    }
    let (us, collapsed) = Run::new(schedule, fabric, bytes, style, params).run();
    let least = schedule.pieces * 16;
    let (latency_us, _) = Run::new(schedule, fabric, least.min(bytes), style, params).run();
    Simulated { us, latency_us, collapsed }
}

/// [`Simulated::us`] alone.
pub(super) fn time_us(schedule: &Schedule, fabric: &Fabric, bytes: usize, style: Style, params: &Params) -> f64 {
    Run::new(schedule, fabric, bytes, style, params).run().0
}

/// What serves one transfer after the other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Resource {
    Out(usize, bool),
    In(usize, bool),
    Up(usize),
    Down(usize),
    Between(usize, usize),
    Collapsed(usize),
}

struct Run<'a> {
    schedule: &'a Schedule,
    fabric: &'a Fabric,
    params: &'a Params,
    style: Style,
    values: usize,
    /// Per hop: the level of its wait, and what it waits for.
    level: Vec<usize>,
    free: BTreeMap<Resource, f64>,
    arrived: Vec<Option<f64>>,
    /// Hops whose data their receiver has read.
    seen: Vec<bool>,
    clock: Vec<f64>,
    /// Chips whose writes to elsewhere collapse, by level.
    collapsing: BTreeSet<(usize, usize)>,
}

impl<'a> Run<'a> {
    fn new(schedule: &'a Schedule, fabric: &'a Fabric, bytes: usize, style: Style, params: &'a Params) -> Self {
        let hops = schedule.hops.len();
        let mut level = vec![0; hops];
        // Hops come after what they wait for in every schedule that there is.
        for (i, hop) in schedule.hops.iter().enumerate() {
            level[i] = hop.after.iter().map(|&a| level[a] + 1).max().unwrap_or(0);
        }
        let values = bytes / 2;
        let own = if style.gather { 1.0 / schedule.ranks as f64 } else { 1.0 };
        let stage = params.get(Cost::StagePerKb) * bytes as f64 * own / 1e3 / style.blocks as f64;
        let mut run = Self {
            schedule,
            fabric,
            params,
            style,
            values,
            level,
            free: BTreeMap::new(),
            arrived: vec![None; hops],
            seen: vec![false; hops],
            clock: vec![stage; schedule.ranks],
            collapsing: BTreeSet::new(),
        };
        run.find_collapses();
        run
    }

    /// Two or more GPUs of a chip that write, at one level, to GPUs behind two or more other roots.
    fn find_collapses(&mut self) {
        if !self.fabric.collapses {
            return;
        }
        let mut writers: BTreeMap<(usize, usize), (BTreeSet<usize>, BTreeSet<usize>)> = BTreeMap::new();
        for (i, hop) in self.schedule.hops.iter().enumerate().filter(|(_, h)| h.by == Move::Push) {
            let (from, to) = (self.fabric.gpu[hop.from], self.fabric.gpu[hop.to]);
            let f = self.fabric;
            let Some(chip) = f.chip[from].filter(|&chip| f.chip[to] != Some(chip)) else { continue };
            let found = writers.entry((chip, self.level[i])).or_default();
            found.0.insert(from);
            found.1.insert(f.switch[to].unwrap_or(usize::MAX - to));
        }
        let collapses = |(_, (from, to)): &(_, (BTreeSet<_>, BTreeSet<_>))| from.len() > 1 && to.len() > 1;
        self.collapsing = writers.into_iter().filter(collapses).map(|(at, _)| at).collect();
    }

    fn run(mut self) -> (f64, bool) {
        let mine = |rank| {
            let hops = self.schedule.hops.iter().enumerate();
            hops.filter(move |(_, hop)| hop.actor() == rank).map(|(i, _)| i).collect::<Vec<_>>()
        };
        let orders: Vec<Vec<usize>> = (0..self.schedule.ranks).map(mine).collect();
        let mut next = vec![0; self.schedule.ranks];
        // The earliest hop that can be done comes first, so that resources serve in the order of time.
        loop {
            let ready =
                |rank: usize| orders[rank].get(next[rank]).and_then(|&hop| Some((self.ready(rank, hop)?, rank)));
            let first = (0..orders.len()).filter_map(ready).min_by(|a, b| a.0.total_cmp(&b.0));
            let Some((at, rank)) = first else { break };
            self.carry_out(orders[rank][next[rank]], at);
            next[rank] += 1;
        }
        let end = (0..orders.len()).map(|rank| self.end(rank)).fold(0.0, f64::max);
        let pulls = self.schedule.hops.iter().any(|hop| hop.by == Move::Pull);
        let call = if self.style.fence || pulls { Cost::Call } else { Cost::CallPush };
        (self.params.get(call) + end + self.after_the_sum(), !self.collapsing.is_empty())
    }

    /// When a rank can do a hop: what it waits for has arrived and was read.
    fn ready(&self, rank: usize, hop: usize) -> Option<f64> {
        self.all_here(self.clock[rank], &self.schedule.hops[hop].after)
    }

    /// What was read before costs nothing again.
    fn all_here(&self, clock: f64, hops: &[usize]) -> Option<f64> {
        let (mut at, mut read, mut fresh) = (clock, 0.0, 0);
        for &hop in hops {
            at = at.max(self.arrived[hop]?);
            if !self.seen[hop] {
                read += 0.5 * self.block_us(hop);
                fresh += 1;
            }
        }
        if fresh == 0 {
            return Some(at);
        }
        // Reading overlaps with arriving but for what comes last.
        Some((clock + read).max(at + read / fresh as f64) + self.params.get(Cost::Poll))
    }

    /// When a rank has the sum of every piece.
    fn end(&self, rank: usize) -> f64 {
        let hops = self.schedule.hops.iter().enumerate();
        let into = hops.filter(|(_, hop)| hop.to == rank && hop.by != Move::Announce);
        let into: Vec<usize> = into.map(|(i, _)| i).collect();
        self.all_here(self.clock[rank], &into).unwrap_or(f64::INFINITY)
    }

    fn after_the_sum(&self) -> f64 {
        let fused = if self.style.fused { self.params.get(Cost::Fused) } else { 0.0 };
        let meet = |a: usize, b: usize| self.params.get(self.fabric.between(a, b).latency());
        let ranks = self.schedule.ranks;
        let farthest = (0..ranks).flat_map(|a| (0..ranks).map(move |b| meet(a, b))).fold(0.0, f64::max);
        let barrier = if self.style.end_barrier { farthest + self.params.get(Cost::Poll) } else { 0.0 };
        let sentinel = !self.style.fence && self.style.line < 2.0;
        fused + barrier + if sentinel { self.params.get(Cost::Clear) } else { 0.0 }
    }

    /// Bytes of payload of a hop.
    fn payload(&self, hop: usize) -> f64 {
        let hop = &self.schedule.hops[hop];
        let values = self.schedule.range(hop.piece, self.values).len();
        let share = if self.style.gather { 1.0 / self.schedule.ranks as f64 } else { 1.0 };
        hop.bytes(values, 2) as f64 * share
    }

    /// What a rank's blocks need for a hop's bytes, stored and read.
    fn block_us(&self, hop: usize) -> f64 {
        self.params.get(Cost::PeerPerKb) * self.payload(hop) / 1e3 / self.style.blocks as f64
    }

    fn carry_out(&mut self, i: usize, at: f64) {
        let hop = &self.schedule.hops[i];
        let (by, from, to, payload) = (hop.by, hop.from, hop.to, hop.payload);
        let rank = hop.actor();
        let wire = self.fabric.between(from, to);
        let latency = self.params.get(wire.latency());
        let fence = if self.style.fence && by != Move::Pull { self.params.get(Cost::Fence) } else { 0.0 };
        debug_assert!(!matches!((by, payload), (Move::Pull, Payload::Prefix(_))));
        let issue = if by == Move::Push { 0.5 * self.block_us(i) } else { 0.0 };
        self.clock[rank] = at + issue;
        let after = &self.schedule.hops[i].after;
        after.iter().for_each(|&a| self.seen[a] = true);
        let bytes = self.payload(i) * self.style.line;
        // A read asks first; the request is on its way for a latency.
        let start = if by == Move::Pull { at + latency } else { at };
        let through = self.pass(i, wire, start, bytes);
        self.arrived[i] = Some(through.max(self.clock[rank]) + fence + latency);
    }

    /// When the last byte is through the slowest resource of the path.
    fn pass(&mut self, i: usize, wire: Wire, start: f64, bytes: f64) -> f64 {
        if bytes == 0.0 || wire == Wire::Local {
            return start;
        }
        let (mut begin, mut end) = (start, start);
        for (resource, gb_s) in self.path(i, wire) {
            let free = self.free.entry(resource).or_insert(0.0);
            begin = begin.max(*free);
            let done = begin + bytes / (gb_s * 1e3);
            *free = done;
            end = end.max(done);
        }
        end
    }

    fn path(&self, i: usize, wire: Wire) -> Vec<(Resource, f64)> {
        let hop = &self.schedule.hops[i];
        let f = self.fabric;
        let (from, to) = (f.gpu[hop.from], f.gpu[hop.to]);
        let (out, into) = (f.port(from, wire, self.params), f.port(to, wire, self.params));
        let into = match wire {
            Wire::Pinned => f.port_gb_s[to] * self.params.get(Cost::PinnedRead),
            _ => into,
        };
        let nvlink = wire == Wire::Nvlink;
        let mut path = vec![(Resource::Out(from, nvlink), out)];
        if !nvlink {
            let leaves = f.switch[from] != f.switch[to] || wire == Wire::Pinned;
            if let Some(switch) = f.switch[from].filter(|_| leaves) {
                path.push((Resource::Up(switch), out));
            }
            let collapsing =
                |&chip: &usize| f.chip[to] != Some(chip) && self.collapsing.contains(&(chip, self.level[i]));
            if let Some(chip) = f.chip[from].filter(collapsing).filter(|_| hop.by == Move::Push) {
                path.push((Resource::Collapsed(chip), self.params.get(Cost::Collapse)));
            }
            if f.socket[from] != f.socket[to] {
                let between = Resource::Between(f.socket[from], f.socket[to]);
                path.push((between, self.params.get(Cost::Interconnect)));
            }
            if let Some(switch) = f.switch[to].filter(|_| leaves) {
                path.push((Resource::Down(switch), into));
            }
        }
        path.push((Resource::In(to, nvlink), into));
        path
    }
}
