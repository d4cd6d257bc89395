//! The interpreter's operations of latent attention and its indexer: from the program's names to what computes them.

use crate::backend::CpuBackend;
use crate::grid::Grid;
use crate::latent::LatentAttention;
use crate::pool::Panicked;
use crate::run::{GRAIN_VALUES, Rowset, Stop, take, vector};
use crate::select::Select;
use tombolo_model::{BLOCK_TOKENS, BufferId, GroupId, Op, Step, WeightId};

impl CpuBackend {
    /// Norms every row of a buffer, in place.
    pub(crate) fn layer_norm(
        &mut self,
        weight: WeightId,
        bias: WeightId,
        x: BufferId,
        eps: f32,
        rowset: &Rowset,
    ) -> Result<(), Stop> {
        let used = self.used(x, rowset);
        let vectors = vector(&self.held, Some(weight)).zip(vector(&self.held, Some(bias)));
        let (weight, bias) = vectors.ok_or_else(|| Panicked("a norm's weight is not loaded as a vector".into()))?;
        let width = weight.len();
        let grid = Grid::new(&mut self.buffers[x.index()][used.clone()], width);
        let norm = self.kernels.layer_norm;
        self.pool.split(used.len() / width, GRAIN_VALUES / width, &|rows| {
            for row in rows {
                // SAFETY: every row is in one task's range.
                norm(unsafe { grid.rows(row..row + 1) }, weight, bias, eps);
            }
        })?;
        Ok(())
    }

    /// Stores what several buffers hold of every row, one after the other.
    pub(crate) fn write_rows(&mut self, parts: &[BufferId], group: GroupId, layer: usize, step: &Step) {
        let cache = self.kv[group.index()].rows_mut();
        for (i, row) in step.rows.iter().enumerate() {
            let position = row.position as usize;
            let block = step.sequences[row.sequence as usize].tables[group.index()][position / BLOCK_TOKENS];
            let mut values: [&[f32]; 2] = [&[]; 2];
            for (value, part) in values.iter_mut().zip(parts) {
                let width = self.program.buffer(*part).width;
                *value = &self.buffers[part.index()][i * width..][..width];
            }
            cache.write(self.kernels, layer, block, position % BLOCK_TOKENS, &values[..parts.len()]);
        }
    }

    pub(crate) fn select(&mut self, op: &Op, step: &Step) -> Result<(), Stop> {
        let &Op::Select { q, weights, heads, group, layer, out } = op else { return Ok(()) };
        let top_k = self.program.buffer(out).width;
        let mut memory = take(&mut self.buffers, out);
        let select = Select {
            cache: self.kv[group.index()].rows(),
            group: group.index(),
            layer,
            heads,
            top_k,
            q: &self.buffers[q.index()],
            weights: &self.buffers[weights.index()],
            out: Grid::new(bytemuck::cast_slice_mut(&mut memory), top_k),
        };
        let result = select.run(&mut self.pool, self.kernels, step, &mut self.scratch.select);
        self.buffers[out.index()] = memory;
        Ok(result?)
    }

    pub(crate) fn latent_attention(&mut self, op: &Op, step: &Step) -> Result<(), Stop> {
        let &Op::LatentAttention { q, keys, keys_transposed, values, selected, out, group, layer, heads, scale } = op
        else {
            return Ok(());
        };
        let mut memory = take(&mut self.buffers, out);
        let (latent, width) = (self.program.weight(values).cols, self.program.buffer(out).width);
        let selected = selected.map(|selected| {
            (bytemuck::cast_slice(&self.buffers[selected.index()]), self.program.buffer(selected).width)
        });
        let attention = LatentAttention {
            cache: self.kv[group.index()].rows(),
            group: group.index(),
            layer,
            heads,
            head_dim: self.program.buffer(q).width / heads,
            latent,
            scale,
            keys: &self.held[keys.index()].experts,
            keys_transposed,
            values: &self.held[values.index()].experts,
            q: &self.buffers[q.index()],
            selected,
            out: Grid::new(&mut memory, width),
        };
        let result = attention.run(&mut self.pool, self.kernels, step);
        self.buffers[out.index()] = memory;
        Ok(result?)
    }
}
