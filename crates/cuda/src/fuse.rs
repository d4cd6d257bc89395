//! From a program's operations to what is launched: neighbours for which there is one kernel become one node.
//!
//! Pure data in, pure data out. What a node costs or how it is launched is decided in `run`.

use std::collections::HashMap;
use tombolo_model::{Activation, BufferId, GroupId, Op, Program, RopeId, WeightId};

/// How far to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Projections of the same input in one launch, the activation in that of its gate where gate and up are of one type.
    Plain,
    /// For decode steps, every row of which wants logits: no gathering of rows either.
    Joined,
    /// For those of few rows: gate and up of two types, too, and on a lone rank the residual add in the product before it
    /// and the norm in the products after it.
    Chained,
}

/// Something to launch.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Node {
    Embed { table: WeightId, out: BufferId },
    RmsNorm { x: BufferId, weight: WeightId, out: BufferId, eps: f32 },
    Linear(Linear),
    Attention(Attention),
    SiluMul { gate: BufferId, up: BufferId, out: BufferId },
    AddNorm(AddNorm),
    AllReduceAddNorm(AddNorm),
    GatherRows { x: BufferId, out: BufferId },
    Sample { logits: BufferId },
}

/// Products with the same input.
#[derive(Clone, Debug, PartialEq)]
pub struct Linear {
    /// Input.
    pub x: BufferId,
    /// Weight and epsilon of a norm that the input still needs.
    pub norm: Option<(WeightId, f32)>,
    /// One to three weights, each with where its product goes (not used with [`Epilogue::SiluMul`]).
    pub parts: Vec<(WeightId, BufferId)>,
    /// What is done with the products.
    pub epilogue: Epilogue,
}

/// What is done with a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Epilogue {
    /// Each goes to its buffer.
    Store,
    /// The only one is added to its buffer.
    Add,
    /// The first is the gate of the second; the result goes here.
    SiluMul(BufferId),
}

/// From the projections to the attended values: norms of q and k, rotation, store, attention.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct Attention {
    pub q: BufferId,
    pub k: BufferId,
    pub v: BufferId,
    pub out: BufferId,
    /// Weights of the per-head norms of q and k, and their epsilon.
    pub norms: Option<(WeightId, WeightId, f32)>,
    pub rope: RopeId,
    pub group: GroupId,
    pub layer: usize,
    pub heads: usize,
    pub scale: f32,
}

/// See [`Op::AllReduceAddNorm`]; on a lone rank there is nothing to reduce.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub struct AddNorm {
    pub partial: BufferId,
    pub residual: BufferId,
    pub weight: WeightId,
    pub out: BufferId,
    pub eps: f32,
}

/// A program in which some operation stands where no kernel of this backend can take it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("operation {index} ({name}) stands where the CUDA backend has no kernel for it")]
pub struct Unfusable {
    /// In the program's list.
    pub index: usize,
    /// Of the operation.
    pub name: &'static str,
}

/// What a program has that no kernel computes yet, in words for people. Such a program must not be fused.
pub fn unsupported(program: &Program) -> Option<&'static str> {
    let of = |op: &Op| match op {
        Op::Embed { scale, .. } if *scale != 1.0 => Some("scaled embeddings"),
        Op::Linear { bias: Some(_), .. } => Some("products with a bias"),
        Op::Attention { window: Some(_), .. } => Some("attention with a sliding window"),
        Op::Attention { softcap: Some(_), .. } => Some("attention with a soft cap"),
        Op::Attention { sinks: Some(_), .. } => Some("attention with sinks"),
        Op::GatedActivation { activation, .. } if *activation != Activation::Silu => Some("gates other than SiLU"),
        Op::AllReduceAddNorm { post_norm: Some(_), .. } => Some("norms before the residual is added"),
        // Only the block that drafts tokens has these.
        Op::PreviousRows { .. } | Op::Concat { .. } => Some("a block that drafts tokens"),
        Op::LayerNorm { .. }
        | Op::LatentWrite { .. }
        | Op::IndexWrite { .. }
        | Op::Select { .. }
        | Op::LatentAttention { .. } => Some("latent attention"),
        Op::Rope { start, .. } if *start > 0 => Some("rotations of the end of a head"),
        Op::Route { .. } | Op::Experts { .. } => Some("routed experts"),
        Op::Softcap { .. } => Some("logits with a soft cap"),
        _ => None,
    };
    let stretched = program.ropes.iter().any(|rope| rope.magnitude != 1.0);
    program.all_ops().find_map(of).or(stretched.then_some("rotations that YaRN stretches"))
}

/// Turns a program into nodes.
///
/// # Errors
/// A program that the builder would not make: rotations without the attention that they belong to, say; operations for
/// which there is no kernel (see [`unsupported`]).
pub fn fuse(program: &Program, level: Level) -> Result<Vec<Node>, Unfusable> {
    let mut nodes = basic(program)?;
    if level != Level::Plain {
        nodes = drop_gathers(nodes);
    }
    nodes = join_linears(program, nodes, level == Level::Chained);
    if level == Level::Chained && program.shard.size == 1 {
        nodes = chain(program, &nodes).unwrap_or(nodes);
    }
    Ok(nodes)
}

/// One node an operation, but for attention: what stands between the projections and it belongs to it.
fn basic(program: &Program) -> Result<Vec<Node>, Unfusable> {
    let ops = &program.ops;
    let mut nodes = Vec::with_capacity(ops.len());
    let mut i = 0;
    while i < ops.len() {
        let (node, taken) = match ops[i] {
            Op::Embed { table, out, .. } => (Node::Embed { table, out }, 1),
            Op::RmsNorm { x, weight, out, eps } => match attention(&ops[i..]) {
                Some((attention, taken)) => (Node::Attention(attention), taken),
                None => (Node::RmsNorm { x, weight, out, eps }, 1),
            },
            Op::Linear { x, weight, out, .. } => {
                let linear = Linear { x, norm: None, parts: vec![(weight, out)], epilogue: Epilogue::Store };
                (Node::Linear(linear), 1)
            }
            Op::GatedActivation { gate, up, out, .. } => (Node::SiluMul { gate, up, out }, 1),
            Op::AllReduceAddNorm { partial, residual, weight, out, eps, .. } => {
                let add = AddNorm { partial, residual, weight, out, eps };
                (if program.shard.size == 1 { Node::AddNorm(add) } else { Node::AllReduceAddNorm(add) }, 1)
            }
            Op::GatherRows { x, out } => (Node::GatherRows { x, out }, 1),
            Op::Sample { logits } => (Node::Sample { logits }, 1),
            Op::Rope { .. } | Op::KvWrite { .. } | Op::Attention { .. } => match attention(&ops[i..]) {
                Some((attention, taken)) => (Node::Attention(attention), taken),
                None => return Err(Unfusable { index: i, name: ops[i].name() }),
            },
            Op::PreviousRows { .. }
            | Op::Concat { .. }
            | Op::Route { .. }
            | Op::Experts { .. }
            | Op::Softcap { .. }
            | Op::LayerNorm { .. }
            | Op::LatentWrite { .. }
            | Op::IndexWrite { .. }
            | Op::Select { .. }
            | Op::LatentAttention { .. } => {
                return Err(Unfusable { index: i, name: ops[i].name() });
            }
        };
        nodes.push(node);
        i += taken;
    }
    Ok(nodes)
}

/// `[rms_norm q, rms_norm k,] rope q, rope k, kv_write, attention`, all over the same buffers.
fn attention(ops: &[Op]) -> Option<(Attention, usize)> {
    let (norms, rest) = match ops {
        [
            Op::RmsNorm { x: a, weight: wa, out: oa, eps },
            Op::RmsNorm { x: b, weight: wb, out: ob, eps: eps_b },
            rest @ ..,
        ] if a == oa && b == ob && eps == eps_b => (Some((*a, *b, (*wa, *wb, *eps))), rest),
        _ => (None, ops),
    };
    let [
        Op::Rope { x: q, rope, .. },
        Op::Rope { x: rk, rope: rope_k, .. },
        Op::KvWrite { k, v, group, layer },
        last,
        ..,
    ] = rest
    else {
        return None;
    };
    let Op::Attention { q: aq, out, group: ag, layer: al, heads, scale, .. } = last else { return None };
    let same = q == aq && rk == k && rope == rope_k && group == ag && layer == al;
    let normed = norms.is_none_or(|(a, b, _)| a == *q && b == *k);
    (same && normed).then_some((
        Attention {
            q: *q,
            k: *k,
            v: *v,
            out: *out,
            norms: norms.map(|n| n.2),
            rope: *rope,
            group: *group,
            layer: *layer,
            heads: *heads,
            scale: *scale,
        },
        if norms.is_some() { 6 } else { 4 },
    ))
}

/// Where every row wants logits, the gathered rows are the rows.
fn drop_gathers(nodes: Vec<Node>) -> Vec<Node> {
    let mut same: HashMap<BufferId, BufferId> = HashMap::new();
    let mut kept = Vec::with_capacity(nodes.len());
    for node in nodes {
        match node {
            Node::GatherRows { x, out } => {
                same.insert(out, x);
            }
            Node::Linear(l) => kept.push(Node::Linear(Linear { x: same.get(&l.x).copied().unwrap_or(l.x), ..l })),
            node => kept.push(node),
        }
    }
    kept
}

/// Most weights in one launch.
pub const MAX_PARTS: usize = 3;

/// Neighbouring products of one input become one node; gate, up and their activation too: only where they are of one type
/// unless `mixed`.
fn join_linears(program: &Program, nodes: Vec<Node>, mixed: bool) -> Vec<Node> {
    let ty = |part: (WeightId, BufferId)| program.weight(part.0).ty;
    let mut joined: Vec<Node> = Vec::with_capacity(nodes.len());
    for node in nodes {
        match (joined.last_mut(), node) {
            (Some(Node::Linear(before)), Node::Linear(next))
                if before.x == next.x
                    && before.parts.len() < MAX_PARTS
                    && before.epilogue == Epilogue::Store
                    && before.parts.iter().all(|&(_, out)| out != next.x && out != next.parts[0].1) =>
            {
                before.parts.extend(next.parts);
            }
            (Some(Node::Linear(before)), Node::SiluMul { gate, up, out })
                if before.parts.len() == 2
                    && (before.parts[0].1, before.parts[1].1) == (gate, up)
                    && (mixed || ty(before.parts[0]) == ty(before.parts[1])) =>
            {
                before.epilogue = Epilogue::SiluMul(out);
            }
            (_, node) => joined.push(node),
        }
    }
    joined
}

/// What a node that cannot take a norm along reads.
fn reads(node: &Node) -> Vec<BufferId> {
    match node {
        Node::Attention(a) => vec![a.q, a.k, a.v],
        Node::SiluMul { gate, up, .. } => vec![*gate, *up],
        Node::Sample { logits } => vec![*logits],
        _ => Vec::new(),
    }
}

/// A norm that was put off: what to norm, and with what.
#[derive(Clone, Copy)]
struct Later {
    x: BufferId,
    weight: WeightId,
    eps: f32,
}

/// Puts every whole-row norm off into the products that read it, and every residual add into the product before it.
/// `None` where a reader cannot take its norm along.
fn chain(program: &Program, nodes: &[Node]) -> Option<Vec<Node>> {
    let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
    let mut later: HashMap<BufferId, Later> = HashMap::new();
    for node in nodes {
        if reads(node).iter().any(|b| later.contains_key(b)) {
            return None;
        }
        let mut node = node.clone();
        match &mut node {
            Node::RmsNorm { x, weight, out: normed, eps } => {
                let whole_row = program.weight(*weight).cols == program.buffer(*x).width;
                if x != normed && whole_row && !later.contains_key(x) {
                    later.insert(*normed, Later { x: *x, weight: *weight, eps: *eps });
                    continue;
                }
                return None;
            }
            Node::AddNorm(add) => {
                match out.last_mut() {
                    Some(Node::Linear(before)) if before.parts.len() == 1 && before.parts[0].1 == add.partial => {
                        before.parts[0].1 = add.residual;
                        before.epilogue = Epilogue::Add;
                    }
                    _ => return None,
                }
                // Norms put off over the old residual must not be read any more.
                later.retain(|_, l| l.x != add.residual);
                later.insert(add.out, Later { x: add.residual, weight: add.weight, eps: add.eps });
                continue;
            }
            Node::Linear(linear) => {
                if let Some(l) = later.get(&linear.x) {
                    linear.x = l.x;
                    linear.norm = Some((l.weight, l.eps));
                }
            }
            Node::GatherRows { x, out: picked } => {
                if let Some(&l) = later.get(x) {
                    *x = l.x;
                    later.insert(*picked, Later { x: *picked, ..l });
                }
            }
            _ => {}
        }
        out.push(node);
    }
    Some(out)
}
