//! Routed experts. The rows that chose an expert are gathered, so that its weights are read once however many rows a
//! step has; what each row gets back is summed in its own order of choice, whoever else was there.

use crate::grid::Grid;
use crate::kernels::Kernels;
use crate::linear::{self, Picked, Product, Quantized};
use crate::pool::{Panicked, Pool};
use crate::weights::Held;
use tombolo_model::Activation;

/// Fewer values than this are not worth handing to another thread.
const GRAIN_VALUES: usize = 8192;

/// A stack of matrices, and the biases of all of them.
pub(crate) struct Stack<'a> {
    pub(crate) matrices: &'a [Held],
    pub(crate) bias: Option<&'a [f32]>,
}

impl Stack<'_> {
    fn bias(&self, expert: usize) -> Option<&[f32]> {
        let width = self.bias?.len() / self.matrices.len();
        self.bias.map(|bias| &bias[expert * width..][..width])
    }
}

/// One operation.
pub(crate) struct Experts<'a> {
    /// `[rows, hidden]`.
    pub(crate) x: &'a [f32],
    pub(crate) hidden: usize,
    /// `[rows, top_k]`.
    pub(crate) chosen: &'a [u32],
    /// `[rows, top_k]`.
    pub(crate) weights: &'a [f32],
    pub(crate) top_k: usize,
    pub(crate) gate: Stack<'a>,
    pub(crate) up: Stack<'a>,
    pub(crate) down: Stack<'a>,
    /// Width of an expert on this rank.
    pub(crate) width: usize,
    /// The first expert that this rank holds; it holds as many as there are matrices.
    pub(crate) first: usize,
    pub(crate) activation: Activation,
    /// The sum is added to what the output holds.
    pub(crate) accumulate: bool,
}

/// The place of a visit that another rank sees to.
const NOT_HERE: usize = usize::MAX;

/// Room that is used anew in every operation. A visit is one row at one of its experts; visits are sorted by expert.
#[derive(Default)]
pub(crate) struct Scratch {
    /// By row and place in its order of choice: where its visit is.
    places: Vec<usize>,
    /// By visit: its row and expert, counted from the first that is held.
    visits: Vec<(usize, usize)>,
    gate: Vec<f32>,
    up: Vec<f32>,
    activated: Vec<f32>,
    out: Vec<f32>,
}

impl Experts<'_> {
    /// Runs it; `out` is `[rows, hidden]`.
    pub(crate) fn run(
        &self,
        pool: &mut Pool,
        kernels: &Kernels,
        quantized: &mut Quantized,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) -> Result<(), Panicked> {
        let Scratch { places, visits, gate, up, activated, out: results } = scratch;
        self.sort(places, visits);
        let visits = &*visits;
        let (hidden, width) = (self.hidden, self.width);
        for values in [&mut *gate, &mut *up, &mut *activated] {
            values.resize(visits.len() * width, 0.0);
        }
        results.resize(visits.len() * hidden, 0.0);
        // Rows are read where they are, and quantized once for all of their experts.
        let from_row = |place: usize| [visits[place].0 as u32, place as u32];
        self.products(visits, from_row, [(&self.gate, gate), (&self.up, up)], |products| {
            linear::run(pool, kernels, self.x, hidden, products, quantized)
        })?;
        self.activate(pool, kernels, visits, gate, up, activated)?;
        self.products(
            visits,
            |place| [place as u32; 2],
            [(&self.down, results)],
            |products| linear::run(pool, kernels, activated, width, products, quantized),
        )?;
        self.combine(pool, kernels, places, results, out)
    }

    /// Lists visits by expert, within it by row.
    fn sort(&self, places: &mut Vec<usize>, visits: &mut Vec<(usize, usize)>) {
        visits.clear();
        let held = self.gate.matrices.len();
        let here = self.chosen.iter().map(|&expert| (expert as usize).wrapping_sub(self.first));
        visits.extend(here.enumerate().filter(|&(_, expert)| expert < held));
        visits.sort_by_key(|&(_, expert)| expert);
        places.clear();
        places.resize(self.chosen.len(), NOT_HERE);
        for (place, visit) in visits.iter_mut().enumerate() {
            places[visit.0] = place;
            visit.0 /= self.top_k;
        }
    }

    /// Hands `run` one product per stack and visited expert; a visit takes the input's row `pair(visit)[0]`.
    fn products<const N: usize>(
        &self,
        visits: &[(usize, usize)],
        pair: impl Fn(usize) -> [u32; 2],
        stacks: [(&Stack, &mut Vec<f32>); N],
        run: impl FnOnce(&[Product]) -> Result<(), Panicked>,
    ) -> Result<(), Panicked> {
        let runs: Vec<_> = visits.chunk_by(|a, b| a.1 == b.1).collect();
        let grids = stacks.map(|(stack, out)| {
            let width = out.len() / visits.len().max(1);
            (stack, Grid::new(out, width))
        });
        let pairs: Vec<[u32; 2]> = (0..visits.len()).map(pair).collect();
        let mut products = Vec::with_capacity(N * runs.len());
        let mut first = 0;
        for of_expert in runs {
            let (rows, expert) = (first..first + of_expert.len(), of_expert[0].1);
            first = rows.end;
            products.extend(grids.iter().map(|(stack, out)| Product {
                rows: Picked::Pairs(&pairs[rows.clone()]),
                ..Product::whole(&stack.matrices[expert], out)
            }));
        }
        run(&products)
    }

    fn activate(
        &self,
        pool: &mut Pool,
        kernels: &Kernels,
        visits: &[(usize, usize)],
        gate: &mut [f32],
        up: &mut [f32],
        activated: &mut [f32],
    ) -> Result<(), Panicked> {
        let width = self.width;
        let (gate, up, out) = (Grid::new(gate, width), Grid::new(up, width), Grid::new(activated, width));
        pool.split(visits.len(), GRAIN_VALUES / width, &|part| {
            for visit in part {
                let expert = visits[visit].1;
                let row = visit..visit + 1;
                // SAFETY: every visit is in one task's range.
                let (gate, up, out) = unsafe { (gate.rows(row.clone()), up.rows(row.clone()), out.rows(row)) };
                for (values, stack) in [(&mut *gate, &self.gate), (&mut *up, &self.up)] {
                    if let Some(bias) = stack.bias(expert) {
                        (kernels.add)(values, bias);
                    }
                }
                activate(kernels, self.activation, gate, up, out);
            }
        })
    }

    /// Every row's results, weighed and summed in its order of choice.
    fn combine(
        &self,
        pool: &mut Pool,
        kernels: &Kernels,
        places: &[usize],
        results: &mut [f32],
        out: &mut [f32],
    ) -> Result<(), Panicked> {
        let hidden = self.hidden;
        let (results, out) = (Grid::new(results, hidden), Grid::new(out, hidden));
        let rows = places.len() / self.top_k;
        pool.split(rows, GRAIN_VALUES / hidden, &|part| {
            for row in part {
                // SAFETY: every row is in one task's range.
                let sum = unsafe { out.rows(row..row + 1) };
                if !self.accumulate {
                    sum.fill(0.0);
                }
                let own = row * self.top_k..(row + 1) * self.top_k;
                let chosen = self.chosen[own.clone()].iter().zip(&self.weights[own.clone()]);
                for (&place, (&expert, &weight)) in
                    places[own].iter().zip(chosen).filter(|(place, _)| **place != NOT_HERE)
                {
                    // SAFETY: every visit belongs to one row.
                    let result = unsafe { results.rows(place..place + 1) };
                    if let Some(bias) = self.down.bias(expert as usize - self.first) {
                        (kernels.add)(result, bias);
                    }
                    (kernels.add_scaled)(sum, result, weight);
                }
            }
        })
    }
}

/// `out = activation(gate, up)`.
pub(crate) fn activate(kernels: &Kernels, activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match activation {
        Activation::Silu => (kernels.silu_mul)(gate, up, out),
        Activation::GeluTanh => (kernels.gelu_mul)(gate, up, out),
        Activation::ClampedSwiglu { alpha, limit } => (kernels.clamped_swiglu)(gate, up, alpha, limit, out),
    }
}
