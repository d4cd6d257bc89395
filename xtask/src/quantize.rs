//! `cargo xtask quantize`: a GGUF file's weights in other types, as a plan says for each tensor. Streams: of the weights
//! only a part is in memory at a time. Same input and plan, same bytes.
//!
//! A plan is a text of lines `PATTERN TYPE`; `#` begins a comment. The first pattern that a tensor's name contains
//! decides. The encoders are [`tombolo_gguf::quant`]'s: without importance data.

use crate::whole;
use anyhow::{Context, Result, ensure};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use tombolo_gguf::{Gguf, TensorInfo, TensorType, Value, Writer, quant};

/// Values that are decoded and encoded at a time: whole blocks of every type.
const CHUNK: usize = 1 << 16;
/// Keys of a split set, which means nothing in one file.
const SPLIT_KEYS: &str = "split.";
const FILE_TYPE_KEY: &str = "general.file_type";
const VERSION_KEY: &str = "general.quantization_version";
/// The generation of block layouts that today's files have.
const VERSION: u32 = 2;

/// Arguments of `cargo xtask quantize`.
#[derive(clap::Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// GGUF file to read
    #[arg(value_name = "IN.gguf")]
    input: PathBuf,
    /// Lines 'PATTERN TYPE', as 'ffn_down Q8_0': the first pattern that a tensor's name contains decides
    #[arg(long, value_name = "PLAN.txt")]
    plan: PathBuf,
    /// File to write
    #[arg(long, value_name = "OUT.gguf")]
    out: PathBuf,
}

/// Runs the chore.
pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    let text = std::fs::read_to_string(&args.plan).with_context(|| format!("cannot read {}", args.plan.display()))?;
    let rules = parse(&text).with_context(|| args.plan.display().to_string())?;
    let gguf = Gguf::open(&args.input)?;
    let types = gguf.tensors().iter().map(|t| decide(&rules, t)).collect::<Result<Vec<_>>>();
    let types = types.with_context(|| args.plan.display().to_string())?;
    whole::write(&args.out, |part| {
        write(&gguf, &types, BufWriter::with_capacity(1 << 20, File::create(part)?))?;
        Ok(())
    })?;
    let (before, after) = (gguf.file_bytes(), std::fs::metadata(&args.out)?.len());
    println!("{}: {} tensors, {before} -> {after} bytes; {}", args.out.display(), types.len(), counted(&gguf, &types));
    Ok(())
}

/// A line of a plan.
#[derive(Debug, PartialEq, Eq)]
struct Rule {
    pattern: String,
    ty: TensorType,
}

fn parse(plan: &str) -> Result<Vec<Rule>> {
    let mut rules = Vec::new();
    for (number, line) in plan.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[pattern, name] = words.as_slice() else {
            ensure!(words.is_empty(), "line {}: a pattern and a type are needed, as 'ffn_down Q8_0'", number + 1);
            continue;
        };
        let ty = TensorType::ALL.iter().copied().find(|t| t.name() == name);
        let ty = ty.with_context(|| format!("line {}: there is no type {name}", number + 1))?;
        // Nothing to encode: only whether it could be.
        quant::encode(ty, &[], &mut Vec::new()).with_context(|| format!("line {}", number + 1))?;
        rules.push(Rule { pattern: pattern.into(), ty });
    }
    Ok(rules)
}

fn decide(rules: &[Rule], tensor: &TensorInfo) -> Result<TensorType> {
    let rule = rules.iter().find(|rule| tensor.name.contains(&rule.pattern));
    let ty = rule.map(|rule| rule.ty).with_context(|| format!("no pattern fits the tensor {}", tensor.name))?;
    let (row, block) = (tensor.dims[0], ty.block_len() as u64);
    ensure!(
        row.is_multiple_of(block),
        "{}: rows of {row} values are no blocks of {block}, so {ty} is impossible",
        tensor.name
    );
    Ok(ty)
}

/// Writes the whole file; what it was written to.
fn write<W: Write>(gguf: &Gguf, types: &[TensorType], to: W) -> Result<W> {
    let mut writer = Writer::new(to);
    let marks = [(FILE_TYPE_KEY, file_type(gguf, types)), (VERSION_KEY, Some(VERSION))];
    for (key, value) in gguf.metadata().iter().filter(|(key, _)| !key.starts_with(SPLIT_KEYS)) {
        match marks.iter().find(|(mark, _)| *mark == key) {
            None => writer.metadata(key, value.clone())?,
            Some((_, Some(number))) => writer.metadata(key, *number)?,
            Some((_, None)) => &mut writer,
        };
    }
    for (key, value) in marks.iter().filter(|(key, _)| gguf.metadata().get(key).is_none()) {
        if let Some(value) = value {
            writer.metadata(key, Value::U32(*value))?;
        }
    }
    for (tensor, ty) in gguf.tensors().iter().zip(types) {
        writer.tensor(&tensor.name, &tensor.dims, *ty)?;
    }
    writer.finish_header()?;
    for (tensor, ty) in gguf.tensors().iter().zip(types) {
        convert(&mut writer, tensor, gguf.bytes(tensor), *ty).with_context(|| tensor.name.clone())?;
        gguf.release(tensor);
    }
    Ok(writer.finish()?)
}

/// Writes one tensor's data. Bytes of the right type are copied: to encode them again would only lose.
fn convert<W: Write>(writer: &mut Writer<W>, tensor: &TensorInfo, bytes: &[u8], ty: TensorType) -> Result<()> {
    if tensor.ty == ty {
        writer.data(bytes)?;
        return Ok(());
    }
    let mut values = vec![0f32; CHUNK.min(tensor.values() as usize)];
    let mut encoded = Vec::new();
    for chunk in bytes.chunks(CHUNK / tensor.ty.block_len() * tensor.ty.block_bytes()) {
        let values = &mut values[..chunk.len() / tensor.ty.block_bytes() * tensor.ty.block_len()];
        quant::decode(tensor.ty, chunk, values)?;
        encoded.clear();
        quant::encode(ty, values, &mut encoded)?;
        writer.data(&encoded)?;
    }
    Ok(())
}

/// Values by type, the most first.
fn shares(gguf: &Gguf, types: &[TensorType]) -> Vec<(TensorType, u64)> {
    let mut values = BTreeMap::new();
    for (tensor, ty) in gguf.tensors().iter().zip(types) {
        *values.entry(*ty).or_default() += tensor.values();
    }
    let mut shares: Vec<_> = values.into_iter().collect();
    shares.sort_by_key(|&(ty, values)| (std::cmp::Reverse(values), ty));
    shares
}

/// What `general.file_type` says of a file: the type of most of its values. The numbers are llama.cpp's `llama_ftype`;
/// its mixtures have several per type, of which the plainest is taken. `None` where it has none.
fn file_type(gguf: &Gguf, types: &[TensorType]) -> Option<u32> {
    let (ty, _) = *shares(gguf, types).first()?;
    Some(match ty {
        TensorType::F32 => 0,
        TensorType::F16 => 1,
        TensorType::Q4_0 => 2,
        TensorType::Q4_1 => 3,
        TensorType::Q8_0 => 7,
        TensorType::Q5_0 => 8,
        TensorType::Q5_1 => 9,
        TensorType::Q4_K => 14,
        TensorType::Q5_K => 16,
        TensorType::Q6_K => 18,
        TensorType::IQ4_NL => 25,
        TensorType::IQ4_XS => 30,
        TensorType::BF16 => 32,
        TensorType::MXFP4 => 38,
        _ => return None,
    })
}

fn counted(gguf: &Gguf, types: &[TensorType]) -> String {
    let shares = shares(gguf, types).into_iter().map(|(ty, values)| format!("{values} values {ty}"));
    shares.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file of 300 rows, more than a chunk, of F32 values between -1 and 1.
    fn model() -> Gguf {
        let mut writer = Writer::new(Vec::new());
        writer.metadata("general.architecture", "llama").unwrap();
        writer.metadata(FILE_TYPE_KEY, 0u32).unwrap();
        writer.metadata("split.no", 0u16).unwrap();
        writer.tensor("blk.0.ffn_down.weight", &[256, 300], TensorType::F32).unwrap();
        writer.tensor("blk.0.attn_norm.weight", &[32], TensorType::F32).unwrap();
        writer.finish_header().unwrap();
        let values = (0..256 * 300 + 32u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 8) as f32 / (1 << 23) as f32 - 1.0);
        let bytes: Vec<u8> = values.flat_map(f32::to_le_bytes).collect();
        writer.data(&bytes[..4 * 256 * 300]).unwrap();
        writer.data(&bytes[4 * 256 * 300..]).unwrap();
        Gguf::from_bytes(writer.finish().unwrap()).unwrap()
    }

    fn quantized(gguf: &Gguf, plan: &str) -> Result<Vec<u8>> {
        let rules = parse(plan)?;
        let types = gguf.tensors().iter().map(|t| decide(&rules, t)).collect::<Result<Vec<_>>>()?;
        write(gguf, &types, Vec::new())
    }

    fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
        let tensor = gguf.tensor(name).unwrap();
        let mut values = vec![0.0; tensor.values() as usize];
        quant::decode(tensor.ty, gguf.bytes(tensor), &mut values).unwrap();
        values
    }

    #[test]
    fn the_plan_decides_and_values_stay_near() {
        let before = model();
        for (name, number, most) in [("Q4_K", 14, 0.1), ("Q6_K", 18, 0.03), ("Q8_0", 7, 0.005), ("F16", 1, 0.0005)] {
            let plan = format!("# first come, first served\nnorm F32 # kept\n\nweight {name}\n");
            let bytes = quantized(&before, &plan).unwrap();
            assert_eq!(bytes, quantized(&before, &plan).unwrap());
            let after = Gguf::from_bytes(bytes).unwrap();
            assert_eq!(after.tensor("blk.0.ffn_down.weight").unwrap().ty.name(), name);
            assert_eq!(values(&before, "blk.0.attn_norm.weight"), values(&after, "blk.0.attn_norm.weight"));
            let pairs =
                values(&before, "blk.0.ffn_down.weight").into_iter().zip(values(&after, "blk.0.ffn_down.weight"));
            let worst = pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst > 0.0 && worst < most, "{name}: {worst}");
            assert_eq!(after.metadata().u64(FILE_TYPE_KEY), Some(number));
            assert_eq!(after.metadata().u64(VERSION_KEY), Some(2));
            assert!(after.metadata().get("split.no").is_none());
        }
    }

    #[test]
    fn bytes_of_the_right_type_are_copied() {
        let once = quantized(&model(), "norm F32\nweight Q4_K").unwrap();
        let twice = quantized(&Gguf::from_bytes(once.clone()).unwrap(), "norm F32\nweight Q4_K").unwrap();
        assert!(once == twice);
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_written() {
        for (plan, part) in [
            ("norm F32", "no pattern fits the tensor blk.0.ffn_down.weight"),
            ("weight Q4_K", "blk.0.attn_norm.weight: rows of 32 values are no blocks of 256"),
            ("weight Q9_X", "line 1: there is no type Q9_X"),
            ("\nweight Q2_K", "line 2: blocks of type Q2_K can be read but not written"),
            ("weight", "line 1: a pattern and a type"),
        ] {
            let error = format!("{:#}", quantized(&model(), plan).unwrap_err());
            assert!(error.contains(part) && !error.contains('\n'), "{error}");
        }
    }
}
