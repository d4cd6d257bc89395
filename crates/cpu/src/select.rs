//! The indexer's choice: which positions a row's attention sees.
//!
//! A score depends on its row and position alone, and equal scores are ordered by position: the choice does not depend
//! on the batch or on the threads.

use crate::grid::Grid;
use crate::kernels::{BLOCK, Kernels};
use crate::pool::{Panicked, Pool};
use crate::row_cache::RowCache;
use std::cell::RefCell;
use tombolo_model::{BLOCK_TOKENS, Step};

/// Blocks of one task: enough that taking it costs little.
const TASK_BLOCKS: usize = 8;
/// Most scores that are kept at once.
const SCORES_MAX: usize = 1 << 22;

/// Room that is used anew in every operation.
#[derive(Default)]
pub(crate) struct Scratch {
    scores: Vec<f32>,
    rows: Vec<usize>,
}

thread_local! {
    static KEYS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    static ORDER: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
}

/// One operation.
pub(crate) struct Select<'a> {
    pub(crate) cache: &'a RowCache,
    /// Which KV group.
    pub(crate) group: usize,
    pub(crate) layer: usize,
    pub(crate) heads: usize,
    pub(crate) top_k: usize,
    /// `[rows, heads, dim]`.
    pub(crate) q: &'a [f32],
    /// `[rows, heads]`.
    pub(crate) weights: &'a [f32],
    /// `[rows, top_k]`.
    pub(crate) out: Grid<'a, u32>,
}

impl Select<'_> {
    pub(crate) fn run(
        &self,
        pool: &mut Pool,
        kernels: &Kernels,
        step: &Step,
        scratch: &mut Scratch,
    ) -> Result<(), Panicked> {
        let Scratch { scores, rows } = scratch;
        rows.clear();
        rows.extend((0..step.rows.len()).filter(|&row| step.rows[row].position as usize >= self.top_k));
        let Some(most) = rows.iter().map(|&row| step.rows[row].position as usize + 1).max() else { return Ok(()) };
        let width = most.next_multiple_of(BLOCK_TOKENS);
        for rows in rows.chunks((SCORES_MAX / width).max(1)) {
            scores.resize(rows.len() * width, 0.0);
            let table = Grid::new(scores, width);
            let tasks = width.div_ceil(TASK_BLOCKS * BLOCK_TOKENS);
            pool.run(rows.len() * tasks, &|task| {
                let (i, part) = (task / tasks, task % tasks);
                KEYS.with_borrow_mut(|keys| self.score(kernels, step, rows[i], part, keys, &table, i));
            })?;
            pool.run(rows.len(), &|i| {
                let (row, seen) = (rows[i], step.rows[rows[i]].position as usize + 1);
                // SAFETY: every row of either table is in one task.
                let (scores, out) = unsafe { (table.cells(i, 0, seen), self.out.rows(row..row + 1)) };
                ORDER.with_borrow_mut(|order| choose(scores, order, out));
            })?;
        }
        Ok(())
    }

    /// The scores of some blocks of a row's sequence; those beyond its position are left as they are.
    #[allow(clippy::too_many_arguments)]
    fn score(
        &self,
        kernels: &Kernels,
        step: &Step,
        row: usize,
        part: usize,
        keys: &mut Vec<f32>,
        scores: &Grid<f32>,
        to: usize,
    ) {
        let dim = self.cache.width();
        let blocks = step.rows[row].position as usize / BLOCK_TOKENS + 1;
        let table = &step.sequences[step.rows[row].sequence as usize].tables[self.group];
        keys.resize(BLOCK * dim, 0.0);
        let q = &self.q[row * self.heads * dim..][..self.heads * dim];
        let weights = &self.weights[row * self.heads..][..self.heads];
        for (b, &block) in table.iter().enumerate().take(blocks).skip(part * TASK_BLOCKS).take(TASK_BLOCKS) {
            self.cache.read(kernels, self.layer, block, 0, keys);
            // SAFETY: tasks share no pair of row and block.
            let scores = unsafe { scores.cells(to, b * BLOCK_TOKENS, BLOCK_TOKENS) };
            (kernels.index_scores)(q, weights, keys, scores);
        }
    }
}

/// The positions of the largest scores, ascending, as many as `out` has places; of equals the lower ones.
fn choose(scores: &[f32], order: &mut Vec<u32>, out: &mut [u32]) {
    order.clear();
    order.extend(0..scores.len() as u32);
    // Zeros of either sign are equal; NaN is the least.
    let key = |i: u32| match scores[i as usize] {
        s if s.is_nan() => f32::NEG_INFINITY,
        s => s + 0.0,
    };
    let better = |a: &u32, b: &u32| key(*b).total_cmp(&key(*a)).then(a.cmp(b));
    if out.len() < order.len() {
        order.select_nth_unstable_by(out.len(), better);
    }
    out.copy_from_slice(&order[..out.len()]);
    out.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::choose;
    use crate::backend::CpuBackend;
    use crate::kernels::Kernels;
    use crate::stages::Work;
    use crate::{Options, Tier};
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;
    use tombolo_collective::ThreadGroup;
    use tombolo_gguf::Gguf;
    use tombolo_model::{Arith, BLOCK_TOKENS, Capacity, Config, Op, Row, Sequence, Step, Token};

    /// In every layer with an indexer, by running no farther than its choice.
    #[test]
    fn the_reference_chooses_the_same_positions() {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tests/data");
        let gguf = Arc::new(Gguf::open(&data.join("tiny-glm-dsa.gguf")).unwrap());
        let reference = std::fs::read(data.join("tiny-glm-dsa.safetensors")).unwrap();
        let reference = safetensors::SafeTensors::deserialize(&reference).unwrap();
        let words = |name: &str| -> Vec<u32> {
            let bytes = reference.tensor(name).unwrap().data();
            bytes.chunks_exact(4).map(|b| u32::from_le_bytes(b.try_into().unwrap())).collect()
        };
        let mut config = Config::from_gguf(&gguf).unwrap();
        config.latent.as_mut().unwrap().eps = 1e-6;
        let rows = words("tokens").into_iter().enumerate().map(|(i, token)| Row {
            token: Token::Host(token),
            position: i as u32,
            sequence: 0,
            sample: None,
            draft: false,
        });
        let table: Vec<u32> = (0..(64 / BLOCK_TOKENS) as u32).collect();
        let sequences = vec![Sequence { tables: vec![table; 2] }];
        let step = Step { rows: rows.collect(), sequences, ..Step::default() };
        let options = Options { threads: 2, arith: Arith::F32, kv: None, deadline: Duration::from_secs(60) };
        for (nth, layer) in [0, 1, 3].into_iter().enumerate() {
            let comm = ThreadGroup::new(1, options.deadline).pop().unwrap();
            let kernels = Kernels::of(Tier::best()).unwrap();
            let capacity = Capacity::new(64, 1, 64);
            let mut backend = CpuBackend::load(&gguf, &config, comm, capacity, &options, kernels).unwrap();
            let is_choice = |work: &Work| matches!(work, Work::One(Op::Select { .. }));
            let choices = backend.stages.iter().enumerate().filter(|(_, stage)| is_choice(&stage.work));
            let end = choices.map(|(i, _)| i).nth(nth).unwrap();
            backend.stages.truncate(end + 1);
            backend.run(&step).unwrap();
            let place = backend.program.buffers.iter().position(|b| b.name == "selected").unwrap();
            let got: &[u32] = bytemuck::cast_slice(&backend.buffers[place]);
            let want = words(&format!("selected.{layer}"));
            for row in 16..64 {
                let mut want = want[row * 16..][..16].to_vec();
                want.sort_unstable();
                assert_eq!(got[row * 16..][..16], want, "layer {layer}, position {row}");
            }
        }
    }

    #[test]
    fn of_equals_the_lower_positions_are_chosen() {
        let scores = [0.0, 1.0, -0.0, 1.0, f32::NAN, 1.0, 0.0, -2.0];
        let chosen = |k: usize| {
            let mut out = vec![u32::MAX; k];
            choose(&scores, &mut Vec::new(), &mut out);
            out
        };
        assert_eq!(chosen(2), [1, 3]);
        assert_eq!(chosen(3), [1, 3, 5]);
        assert_eq!(chosen(4), [0, 1, 3, 5]);
        assert_eq!(chosen(5), [0, 1, 2, 3, 5]);
        assert_eq!(chosen(7), [0, 1, 2, 3, 5, 6, 7]);
        assert_eq!(chosen(8), [0, 1, 2, 3, 4, 5, 6, 7]);
    }
}
