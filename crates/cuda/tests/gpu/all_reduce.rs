//! The all-reduce between real ranks: the same bits everywhere, in every call; and what happens when one stays away.

use crate::lab::{Lab, noise};
use std::time::{Duration, Instant};
use tombolo_cuda::collective::{Connected, Settings, Transport, connect};
use tombolo_cuda::driver::{CudaError, DevicePtr, Graph, Kernels};
use tombolo_cuda::kernels::all_reduce::{Then, Wire, all_reduce};

const EPS: f32 = 1e-5;

fn labs(ranks: usize) -> Vec<Lab> {
    let devices = tombolo_cuda::devices().unwrap().len();
    let labs: Vec<Lab> = (0..ranks).map(|r| Lab::new(r % devices)).collect();
    // A kernel that waits for its predecessor on an SM could keep the other rank of the same device out.
    labs.iter().for_each(|l| l.stream.set_overlap(devices >= ranks));
    labs
}

fn group(labs: &[Lab], transport: Transport, slot_lines: usize, deadline_ms: u64) -> Connected {
    let devices: Vec<_> = labs.iter().map(|l| l.device.clone()).collect();
    let kernels: Vec<&Kernels> = labs.iter().map(|l| &l.kernels).collect();
    let settings = Settings { slot_lines, deadline: Duration::from_millis(deadline_ms) };
    connect(&devices, &kernels, transport, &settings).unwrap()
}

fn on_wire(wire: Wire, v: f32) -> f32 {
    if wire == Wire::Bf16 { half::bf16::from_f32(v).to_f32() } else { v }
}

/// `CALLS` calls a graph, every residual kept, so that each call of each replay is compared.
fn soak(transport: Transport, replays: usize) {
    const CALLS: usize = 100;
    const WIDTH: usize = 2048;
    let labs = labs(2);
    let group = group(&labs, transport, 8192, 5000);
    let places: Vec<[DevicePtr; 4]> = labs
        .iter()
        .enumerate()
        .map(|(rank, lab)| {
            let partials = lab.put(&noise(rank as u32, CALLS * WIDTH));
            let history = lab.put(&vec![0f32; (CALLS + 1) * WIDTH]);
            [partials, history, lab.put(&noise(9, WIDTH)), lab.put(&vec![0f32; WIDTH])]
        })
        .collect();
    let mut graphs = Vec::new();
    for ((lab, end), &[partials, history, weight, out]) in labs.iter().zip(&group.ranks).zip(&places) {
        lab.device.make_current().unwrap();
        let graph = Graph::capture(&lab.stream, || {
            for call in 0..CALLS {
                // Every third call sums what the call before gave: equal on all ranks, and new in every replay.
                let partial = if call % 3 == 2 { out } else { partials.offset(4 * WIDTH * call) };
                let then = Then::AddNorm {
                    residual_in: history.offset(4 * WIDTH * call),
                    residual_out: history.offset(4 * WIDTH * (call + 1)),
                    weight,
                    out,
                    eps: EPS,
                };
                let wire = if call % 2 == 0 { Wire::Bf16 } else { Wire::F32 };
                // SAFETY: every address was put with room for what is offset into it; all ranks record the same.
                unsafe { all_reduce(&lab.stream, &lab.kernels, end.link(), wire, partial, &then, (1, WIDTH), 7) }?;
            }
            // The next replay goes on from here.
            // SAFETY: both ranges lie in the history.
            unsafe { lab.stream.copy(history, history.offset(4 * WIDTH * CALLS), 4 * WIDTH) }
        });
        graphs.push(graph.map_err(|e: CudaError| e.to_string()).unwrap());
    }
    for replay in 0..replays {
        for (lab, graph) in labs.iter().zip(&graphs) {
            lab.device.make_current().unwrap();
            graph.launch(&lab.stream).unwrap();
        }
        let histories: Vec<Vec<u32>> =
            labs.iter().zip(&places).map(|(lab, p)| lab.get(p[1].offset(4 * WIDTH), CALLS * WIDTH)).collect();
        assert!(group.ranks.iter().all(|r| r.fault().is_none()), "{:?}", group.ranks[0].fault());
        let differ = histories[0].iter().zip(&histories[1]).position(|(a, b)| a != b);
        assert_eq!(differ.map(|i| i / WIDTH), None, "replay {replay}: the call at which the ranks part");
        if replay == 0 {
            first_call_matches(&labs, &places, &histories[0]);
        }
    }
}

fn first_call_matches(labs: &[Lab], places: &[[DevicePtr; 4]], history: &[u32]) {
    let partials: Vec<Vec<f32>> = labs.iter().zip(places).map(|(l, p)| l.get(p[0], 4096)).collect();
    let width = 2048;
    let sum = |i: usize, wire| on_wire(wire, partials[0][i]) + on_wire(wire, partials[1][i]);
    for i in 0..width {
        let first = sum(i, Wire::Bf16);
        assert_eq!(history[i], first.to_bits(), "value {i} of call 0");
        assert_eq!(history[width + i], (first + sum(width + i, Wire::F32)).to_bits(), "value {i} of call 1");
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_hundred_thousand_calls_leave_the_same_bits_over_peer_memory() {
    soak(Transport::Peer, 1000);
}

#[test]
#[ignore = "needs a GPU"]
fn a_hundred_thousand_calls_leave_the_same_bits_over_host_memory() {
    soak(Transport::Host, 1000);
}

/// What one rank works on: partial, residual, weight, out.
#[derive(Clone, Copy)]
struct Place {
    partial: DevicePtr,
    residual: DevicePtr,
    weight: DevicePtr,
    out: DevicePtr,
}

/// One shape over one wire between the ranks of a group.
struct Form<'a> {
    labs: &'a [Lab],
    group: &'a Connected,
    places: Vec<Place>,
    wire: Wire,
    shape: (usize, usize),
}

impl Form<'_> {
    fn call(&self, then: impl Fn(&Place) -> Then) {
        for ((lab, end), place) in self.labs.iter().zip(&self.group.ranks).zip(&self.places) {
            lab.device.make_current().unwrap();
            let (link, then) = (end.link(), then(place));
            // SAFETY: every address was put with the shape's length; all ranks make the same call.
            unsafe { all_reduce(&lab.stream, &lab.kernels, link, self.wire, place.partial, &then, self.shape, 3) }
                .unwrap();
        }
    }

    /// Every rank holds exactly these bits.
    fn same(&self, what: &str, which: impl Fn(&Place) -> DevicePtr, want: &[f32]) {
        for (lab, place) in self.labs.iter().zip(&self.places) {
            let got: Vec<f32> = lab.get(which(place), want.len());
            let wrong = got.iter().zip(want).position(|(g, w)| g.to_bits() != w.to_bits());
            let transport = self.group.ranks[0].transport();
            assert_eq!(wrong, None, "{what} {} ranks {transport:?} {:?} {:?}", self.labs.len(), self.wire, self.shape);
        }
    }
}

/// All forms, wires, shapes that do not fill tiles, messages of several slots.
fn every_form(ranks: usize, transport: Transport) {
    let labs = labs(ranks);
    let group = group(&labs, transport, 4096, 5000);
    for (rows, width) in [(1, 4), (1, 576), (3, 1032), (1, 6144), (5, 4096), (33, 512)] {
        let n = rows * width;
        let partials: Vec<Vec<f32>> = (0..ranks).map(|r| noise(50 + r as u32, n)).collect();
        let (residual, weight) = (noise(77, n), noise(78, width));
        for wire in [Wire::Bf16, Wire::F32] {
            let place = |(lab, partial): (&Lab, &Vec<f32>)| Place {
                partial: lab.put(partial),
                residual: lab.put(&residual),
                weight: lab.put(&weight),
                out: lab.put(&vec![f32::NAN; n]),
            };
            let places = labs.iter().zip(&partials).map(place).collect();
            let form = Form { labs: &labs, group: &group, places, wire, shape: (rows, width) };
            let add = |sum: f32, p: &Vec<f32>, i: usize| sum + on_wire(wire, p[i]);
            let sum_at = |i: usize| partials[1..].iter().fold(on_wire(wire, partials[0][i]), |s, p| add(s, p, i));
            let sum: Vec<f32> = (0..n).map(sum_at).collect();
            let added: Vec<f32> = residual.iter().zip(&sum).map(|(r, s)| r + s).collect();
            form.call(|p| Then::Store { out: p.out });
            form.same("sum", |p| p.out, &sum);
            form.call(|p| Then::Add { residual_in: p.residual, residual_out: p.out });
            form.same("add", |p| p.out, &added);
            let (eps, weights) = (EPS, &weight);
            // In place.
            form.call(|&Place { residual: r, weight, out, .. }| Then::AddNorm {
                residual_in: r,
                residual_out: r,
                weight,
                out,
                eps,
            });
            form.same("add before norm", |p| p.residual, &added);
            let normed: Vec<f32> = labs[0].get(form.places[0].out, n);
            form.same("norm", |p| p.out, &normed);
            for (row, got) in added.chunks_exact(width).zip(normed.chunks_exact(width)) {
                norm_is_near(row, weights, got);
            }
        }
    }
    assert!(group.ranks.iter().all(|r| r.fault().is_none()));
}

fn norm_is_near(row: &[f32], weight: &[f32], got: &[f32]) {
    let mean = row.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / row.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    for ((x, w), g) in row.iter().zip(weight).zip(got) {
        assert!((f64::from(*x) * scale * f64::from(*w) - f64::from(*g)).abs() < 1e-5);
    }
}

#[test]
#[ignore = "needs a GPU"]
fn every_form_is_exact_between_two_to_eight_ranks() {
    for transport in [Transport::Peer, Transport::Host] {
        for ranks in [2, 3, 4, 8] {
            every_form(ranks, transport);
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_rank_that_never_arrives_is_named_within_the_deadline() {
    for transport in [Transport::Peer, Transport::Host] {
        let labs = labs(2);
        let group = group(&labs, transport, 4096, 200);
        let lab = &labs[0];
        let (partial, out) = (lab.put(&noise(1, 4096)), lab.put(&noise(2, 4096)));
        let start = Instant::now();
        lab.device.make_current().unwrap();
        for _ in 0..3 {
            let then = Then::AddNorm { residual_in: out, residual_out: out, weight: partial, out, eps: EPS };
            let link = group.ranks[0].link();
            // SAFETY: both addresses hold the row; the other rank stays away on purpose.
            unsafe { all_reduce(&lab.stream, &lab.kernels, link, Wire::Bf16, partial, &then, (1, 4096), 42) }.unwrap();
        }
        lab.stream.synchronize().unwrap();
        let waited = start.elapsed();
        let fault = group.ranks[0].fault().expect("a fault");
        assert_eq!((fault.rank, fault.silent, fault.kind, fault.aborted), (0, 1, 42, false));
        assert!(waited >= Duration::from_millis(200) && waited < Duration::from_millis(600), "{waited:?}");
        assert!(group.ranks[1].fault().is_none());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn an_abort_ends_every_wait() {
    let labs = labs(2);
    let group = group(&labs, Transport::Host, 4096, 60_000);
    let lab = &labs[0];
    let (partial, out) = (lab.put(&noise(1, 4096)), lab.put(&noise(2, 4096)));
    lab.device.make_current().unwrap();
    let then = Then::Store { out };
    // SAFETY: as above.
    unsafe { all_reduce(&lab.stream, &lab.kernels, group.ranks[0].link(), Wire::F32, partial, &then, (1, 4096), 1) }
        .unwrap();
    group.ranks[1].abort();
    let start = Instant::now();
    lab.stream.synchronize().unwrap();
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(group.ranks[0].fault().is_some_and(|f| f.aborted));
}
