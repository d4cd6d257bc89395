//! A program's operations, grouped into the jobs that the interpreter runs, and which of them a step can do without.

use tombolo_model::{BufferId, Op, Program, WeightId};

/// One job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stage {
    /// It is only needed where a row is at this position or beyond.
    pub(crate) from: usize,
    pub(crate) work: Work,
}

/// What a job does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Work {
    /// One operation.
    One(Op),
    /// Products of the same activations.
    Linears {
        /// Input.
        x: BufferId,
        /// Each of them.
        products: Vec<Linear>,
    },
}

/// A product, as its operation has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Linear {
    pub(crate) weight: WeightId,
    pub(crate) bias: Option<WeightId>,
    pub(crate) out: BufferId,
}

/// Groups the operations of one of a program's passes: neighbouring products of one input become one stage.
pub(crate) fn stages(program: &Program, ops: &[Op]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for op in ops {
        let from = needed_from(program, ops, op);
        match (op, stages.last_mut()) {
            (
                &Op::Linear { x, weight, bias, out },
                Some(Stage { from: same_from, work: Work::Linears { x: same, products } }),
            ) if *same == x && *same_from == from => products.push(Linear { weight, bias, out }),
            (&Op::Linear { x, weight, bias, out }, _) => {
                stages.push(Stage { from, work: Work::Linears { x, products: vec![Linear { weight, bias, out }] } });
            }
            (op, _) => stages.push(Stage { from, work: Work::One(op.clone()) }),
        }
    }
    stages
}

/// The first position at which an operation's result is used: an indexer has nothing to choose before there are more
/// positions than it chooses.
fn needed_from(program: &Program, ops: &[Op], op: &Op) -> usize {
    let written = match *op {
        Op::Linear { out, .. } => out,
        Op::Rope { x, .. } => x,
        Op::Select { out, .. } => return program.buffer(out).width,
        _ => return 0,
    };
    let choice = ops.iter().find_map(|op| match *op {
        Op::Select { q, weights, out, .. } if q == written || weights == written => Some(out),
        _ => None,
    });
    choice.map_or(0, |out| program.buffer(out).width)
}
