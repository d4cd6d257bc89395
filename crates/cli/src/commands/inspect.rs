//! `tombolo inspect`: what is in a GGUF file, and into how many parts it can be split.

mod split;

use crate::error::{Error, failure};
use crate::limits::LINE_CHARS_MAX;
use crate::load;
use crate::output;
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use tombolo_gguf::{Array, Gguf, Value};
use tombolo_model::{Config, Program};
use tombolo_text::{TextError, Tokenizer};

/// Longest text of a metadata value that is shown whole.
const SHOWN_CHARS: usize = 72;
/// Elements of an array that are shown.
const SHOWN_ELEMENTS: usize = 4;

/// Options of `inspect`.
#[derive(clap::Args)]
pub(crate) struct InspectArgs {
    /// GGUF file, any file of a split one, a directory with one model, or dummy:NAME
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// List every tensor too
    #[arg(long)]
    tensors: bool,
    /// As one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Inspection {
    file: String,
    version: u32,
    file_bytes: u64,
    parameters: u64,
    metadata: Vec<(String, String)>,
    types: Vec<TypeRow>,
    roles: Vec<split::Role>,
    ranks: Vec<split::Size>,
    /// `None`: not a model that can run here, and `model_fault` says why.
    tensor_parallel_sizes: Option<Vec<usize>>,
    model_fault: Option<String>,
    tokenizer: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tensors: Vec<TensorRow>,
}

#[derive(Serialize)]
struct TypeRow {
    #[serde(rename = "type")]
    ty: &'static str,
    tensors: usize,
    parameters: u64,
    bytes: u64,
    computable: bool,
}

#[derive(Serialize)]
struct TensorRow {
    name: String,
    #[serde(rename = "type")]
    ty: &'static str,
    dims: Vec<u64>,
    bytes: u64,
}

/// Runs the command.
pub(crate) fn run(args: &InspectArgs) -> Result<ExitCode, Error> {
    let gguf = load::open(&args.file)?;
    let inspection = inspect(&gguf, args);
    let mut out = std::io::stdout().lock();
    if args.json {
        let text = serde_json::to_string_pretty(&inspection).map_err(failure)?;
        writeln!(out, "{text}")?;
    } else {
        print(&inspection, &mut out)?;
    }
    // What cannot run is still a file that could be shown.
    Ok(ExitCode::SUCCESS)
}

fn inspect(gguf: &Gguf, args: &InspectArgs) -> Inspection {
    let config = Config::from_gguf(gguf);
    let sizes = config.as_ref().ok().map(|config| Program::legal_sizes(gguf, config));
    let fault = match (&config, &sizes) {
        (Err(error), _) => Some(error.to_string()),
        (Ok(config), Some(sizes)) if sizes.is_empty() => {
            Program::build(gguf, config, tombolo_model::Shard::WHOLE).err().map(|e| e.to_string())
        }
        _ => None,
    };
    let tensors = gguf.tensors().iter().filter(|_| args.tensors);
    let legal = sizes.clone().unwrap_or_default();
    let (roles, ranks) = match &config {
        Ok(config) => (split::roles(gguf, config, &legal), split::sizes(gguf, config, &legal)),
        Err(_) => Default::default(),
    };
    Inspection {
        file: args.file.display().to_string(),
        version: gguf.version(),
        file_bytes: gguf.file_bytes(),
        parameters: gguf.tensors().iter().map(|t| parameters(&t.dims)).sum(),
        metadata: gguf.metadata().iter().map(|(key, value)| (key.to_string(), short(value))).collect(),
        types: types(gguf),
        roles,
        ranks,
        tensor_parallel_sizes: sizes.filter(|sizes| !sizes.is_empty()),
        model_fault: fault.map(|fault| output::shortened(&fault, LINE_CHARS_MAX)),
        tokenizer: output::shortened(&tokenizer(gguf), LINE_CHARS_MAX),
        tensors: tensors
            .map(|t| TensorRow { name: t.name.clone(), ty: t.ty.name(), dims: t.dims.clone(), bytes: t.bytes })
            .collect(),
    }
}

fn parameters(dims: &[u64]) -> u64 {
    dims.iter().product()
}

/// Tensors by type, most bytes first.
fn types(gguf: &Gguf) -> Vec<TypeRow> {
    let mut rows: BTreeMap<&str, TypeRow> = BTreeMap::new();
    for tensor in gguf.tensors() {
        let ty = tensor.ty.name();
        let computable = tensor.ty.is_supported();
        let row = rows.entry(ty).or_insert(TypeRow { ty, tensors: 0, parameters: 0, bytes: 0, computable });
        row.tensors += 1;
        row.parameters += parameters(&tensor.dims);
        row.bytes += tensor.bytes;
    }
    let mut rows: Vec<TypeRow> = rows.into_values().collect();
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    rows
}

fn tokenizer(gguf: &Gguf) -> String {
    let meta = gguf.metadata();
    let kind = meta.str("tokenizer.ggml.model").unwrap_or("none");
    let pre = meta.str("tokenizer.ggml.pre").map(|pre| format!("/{pre}")).unwrap_or_default();
    match Tokenizer::from_metadata(meta) {
        Ok(tokenizer) => {
            let warnings: String = tokenizer.warnings().iter().map(|warning| format!("; warning: {warning}")).collect();
            format!("{kind}{pre}, {} tokens{warnings}", tokenizer.vocabulary())
        }
        Err(TextError::NoVocabulary) => "none: token ids only".into(),
        Err(error) => format!("{kind}{pre}: {error}"),
    }
}

/// A value in one line.
fn short(value: &Value) -> String {
    match value {
        Value::U8(v) => v.to_string(),
        Value::I8(v) => v.to_string(),
        Value::U16(v) => v.to_string(),
        Value::I16(v) => v.to_string(),
        Value::U32(v) => v.to_string(),
        Value::I32(v) => v.to_string(),
        Value::U64(v) => v.to_string(),
        Value::I64(v) => v.to_string(),
        Value::F32(v) => v.to_string(),
        Value::F64(v) => v.to_string(),
        Value::Bool(v) => v.to_string(),
        Value::String(v) => shortened(v),
        Value::Array(array) => short_array(array),
    }
}

fn short_array(array: &Array) -> String {
    fn show<T>(values: &[T], text: impl Fn(&T) -> String) -> String {
        let shown: Vec<String> = values.iter().take(SHOWN_ELEMENTS).map(text).collect();
        let more = if values.len() > SHOWN_ELEMENTS { ", …" } else { "" };
        format!("[{}{more}] ({})", shown.join(", "), values.len())
    }
    match array {
        Array::U8(v) => show(v, u8::to_string),
        Array::I8(v) => show(v, i8::to_string),
        Array::U16(v) => show(v, u16::to_string),
        Array::I16(v) => show(v, i16::to_string),
        Array::U32(v) => show(v, u32::to_string),
        Array::I32(v) => show(v, i32::to_string),
        Array::U64(v) => show(v, u64::to_string),
        Array::I64(v) => show(v, i64::to_string),
        Array::F32(v) => show(v, f32::to_string),
        Array::F64(v) => show(v, f64::to_string),
        Array::Bool(v) => show(v, bool::to_string),
        Array::String(v) => show(v, |s| format!("\"{}\"", shortened(s))),
    }
}

fn shortened(text: &str) -> String {
    let safe = output::one_line(text);
    match safe.char_indices().nth(SHOWN_CHARS) {
        Some((at, _)) => format!("{}…", &safe[..at]),
        None => safe,
    }
}

fn print(i: &Inspection, out: &mut impl Write) -> std::io::Result<()> {
    writeln!(out, "{}: GGUF version {}, {}", output::one_line(&i.file), i.version, output::bytes(i.file_bytes))?;
    let widest = i.metadata.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0).min(48);
    for (key, value) in &i.metadata {
        writeln!(out, "  {:<widest$}  {value}", shortened(key))?;
    }
    writeln!(out, "\n  type      tensors    parameters          size")?;
    for row in &i.types {
        let note = if row.computable { "" } else { "  cannot be computed with yet" };
        let (count, size) = (output::parameters(row.parameters), output::bytes(row.bytes));
        writeln!(out, "  {:<8} {:>8} {count:>13} {size:>13}{note}", row.ty, row.tensors)?;
    }
    if !i.roles.is_empty() && i.tensors.is_empty() {
        split::print_roles(&i.roles, out)?;
    }
    for tensor in &i.tensors {
        writeln!(out, "  {:<8} {:>13}  {} {:?}", tensor.ty, tensor.bytes, output::one_line(&tensor.name), tensor.dims)?;
    }
    writeln!(out, "\nparameters  {}", output::parameters(i.parameters))?;
    writeln!(out, "tokenizer   {}", output::one_line(&i.tokenizer))?;
    if let Some(fault) = &i.model_fault {
        writeln!(out, "cannot run: {}", output::one_line(fault))?;
    }
    if !i.ranks.is_empty() {
        split::print_sizes(&i.ranks, out)?;
    }
    Ok(())
}
