//! How a model's tensors are split over ranks, and what a rank then holds: read off the same programs that run.

use crate::output;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;
use tombolo_gguf::Gguf;
use tombolo_model::{Config, Program, Shard, Slice, Weight};

/// Bytes of a value in the KV cache, where it is not asked for otherwise.
const KV_VALUE_BYTES: usize = 2;

/// Tensors of one name in all blocks.
#[derive(Serialize)]
pub(super) struct Role {
    /// With `*` for the number of the block.
    name: String,
    tensors: usize,
    /// Of the first one.
    dims: Vec<u64>,
    /// With how many tensors have it.
    types: Vec<(&'static str, usize)>,
    bytes: u64,
    /// How two ranks or more share them; `None`: this model runs on one rank only, or does not use them.
    split: Option<BTreeSet<&'static str>>,
}

/// What a rank holds at one number of ranks.
#[derive(Serialize)]
pub(super) struct Size {
    ranks: usize,
    /// Of the rank that holds most.
    weight_bytes: usize,
    /// Of them, what every rank holds.
    copied_bytes: usize,
    /// Of them, what only the block that drafts tokens uses.
    draft_bytes: usize,
    /// Of the rank that holds most, in f16.
    kv_bytes_per_token: usize,
    /// Weights that a token reads, of the rank that reads most.
    weight_bytes_per_token: usize,
}

/// Every number of ranks that is legal.
pub(super) fn sizes(gguf: &Gguf, config: &Config, legal: &[usize]) -> Vec<Size> {
    let without = config.clone().without_draft();
    let of = |&ranks: &usize| {
        let all = |config: &Config| -> Option<Vec<Program>> {
            (0..ranks).map(|rank| Program::build(gguf, config, Shard { rank, size: ranks }).ok()).collect()
        };
        let (programs, plain) = (all(config)?, all(&without)?);
        let drafting = programs.iter().zip(&plain).map(|(p, plain)| p.weight_bytes() - plain.weight_bytes());
        let most = |f: &dyn Fn(&Program) -> usize| programs.iter().map(f).max().unwrap_or(0);
        // Of two ranks, as all are cut alike.
        let copied = |p: &Program| p.weights.iter().filter(|w| is_copied(w, &programs[1..])).map(Weight::bytes).sum();
        Some(Size {
            ranks,
            weight_bytes: most(&Program::weight_bytes),
            copied_bytes: if ranks == 1 { 0 } else { copied(&programs[0]) },
            draft_bytes: drafting.max().unwrap_or(0),
            kv_bytes_per_token: most(&kv_bytes_per_token),
            weight_bytes_per_token: most(&Program::weight_bytes_per_token),
        })
    };
    legal.iter().filter_map(of).collect()
}

fn kv_bytes_per_token(program: &Program) -> usize {
    program.groups.iter().map(|g| g.layers * g.values_per_token() * KV_VALUE_BYTES).sum()
}

/// Whether another rank holds the very same.
fn is_copied(weight: &Weight, others: &[Program]) -> bool {
    others.first().is_some_and(|other| other.weights.contains(weight))
}

/// The tensors by their place in a block, in the file's order.
pub(super) fn roles(gguf: &Gguf, config: &Config, legal: &[usize]) -> Vec<Role> {
    let several = legal.iter().find(|&&ranks| ranks > 1);
    let program = |rank| several.and_then(|&size| Program::build(gguf, config, Shard { rank, size }).ok());
    let (program, other): (_, Vec<Program>) = (program(0), program(1).into_iter().collect());
    let mut held: HashMap<&str, Vec<&Weight>> = HashMap::new();
    for weight in program.iter().flat_map(|p| &p.weights) {
        held.entry(&weight.tensor).or_default().push(weight);
    }
    let mut roles: Vec<Role> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let name = role(&tensor.name);
        let place = *places.entry(name.clone()).or_insert_with(|| {
            // A table may be looked up in whole and multiplied with by parts.
            let split = held.get(tensor.name.as_str()).map(|w| w.iter().map(|w| split(w, &other)).collect());
            roles.push(Role { name, tensors: 0, dims: tensor.dims.clone(), types: Vec::new(), bytes: 0, split });
            roles.len() - 1
        });
        let role = &mut roles[place];
        role.tensors += 1;
        role.bytes += tensor.bytes;
        match role.types.iter_mut().find(|(ty, _)| *ty == tensor.ty.name()) {
            Some((_, count)) => *count += 1,
            None => role.types.push((tensor.ty.name(), 1)),
        }
    }
    roles
}

/// `blk.12.attn_q.weight` is `blk.*.attn_q.weight`.
fn role(name: &str) -> String {
    let parts = name.split('.').map(|part| if part.bytes().all(|b| b.is_ascii_digit()) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

fn split(weight: &Weight, others: &[Program]) -> &'static str {
    match weight.slice {
        _ if is_copied(weight, others) => "copied",
        Slice::Rows { .. } => "by rows",
        Slice::Cols { .. } => "by columns",
        Slice::Whole if weight.tensor.contains("_exps") => "by experts",
        Slice::Whole => "by heads",
    }
}

pub(super) fn print_roles(roles: &[Role], out: &mut impl Write) -> std::io::Result<()> {
    let widest = roles.iter().map(|r| r.name.chars().count()).max().unwrap_or(0).clamp(7, 40);
    writeln!(
        out,
        "\n  {:<widest$} {:>6}  {:<20} {:>11}  {:<15} types",
        "tensors", "count", "shape", "size", "ranks share"
    )?;
    for role in roles {
        let name = output::shortened(&output::one_line(&role.name), widest);
        let dims: Vec<String> = role.dims.iter().map(u64::to_string).collect();
        let types: Vec<String> = match role.types.as_slice() {
            [(ty, _)] => vec![(*ty).to_string()],
            types => types.iter().map(|(ty, count)| format!("{ty} ({count})")).collect(),
        };
        let split: Vec<&str> = role.split.iter().flatten().copied().collect();
        writeln!(
            out,
            "  {name:<widest$} {:>6}  {:<20} {:>11}  {:<15} {}",
            role.tensors,
            dims.join(" x "),
            output::size(role.bytes),
            if split.is_empty() { "-".into() } else { split.join(", ") },
            types.join(", "),
        )?;
    }
    Ok(())
}

pub(super) fn print_sizes(sizes: &[Size], out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "\n  ranks  weights a rank  of it copied  read per token  KV cache per token (f16)")?;
    for size in sizes {
        let bytes = |count: usize| output::size(count as u64);
        writeln!(
            out,
            "  {:>5}  {:>14}  {:>12}  {:>14}  {:>24}",
            size.ranks,
            bytes(size.weight_bytes),
            bytes(size.copied_bytes),
            bytes(size.weight_bytes_per_token),
            bytes(size.kv_bytes_per_token),
        )?;
    }
    if sizes.iter().any(|size| size.copied_bytes > 0) {
        writeln!(
            out,
            "  copied: what every rank needs all of, because no part of its own share can be made without it"
        )?;
    }
    let drafts: Vec<String> =
        sizes.iter().filter(|s| s.draft_bytes > 0).map(|s| output::size(s.draft_bytes as u64)).collect();
    if !drafts.is_empty() {
        let by_size = drafts.join(", ");
        writeln!(out, "  of the weights, {by_size} draft tokens (MTP); --draft-max 0 leaves them out")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::role;

    #[test]
    fn blocks_are_numbered_and_other_digits_stay() {
        assert_eq!(role("blk.12.attn_q.weight"), "blk.*.attn_q.weight");
        assert_eq!(role("token_embd2.weight"), "token_embd2.weight");
    }
}
