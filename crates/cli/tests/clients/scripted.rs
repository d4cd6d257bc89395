//! A model whose every token decides the next one, so that what it says is known: it calls a tool when it is offered
//! tools, and answers when a tool has spoken. Its layers add nothing, its embedding tells tokens apart, and its output
//! matrix is the script.

use std::fs::File;
use std::path::{Path, PathBuf};
use tombolo_gguf::{Array, TensorType, Value, Writer};

const EMBEDDING: usize = 64;
/// Bytes come first in the vocabulary, then these.
const BYTES: usize = 256;
const END: usize = 256;
/// The prompt's last token, and what is said after it, token by token.
const SCRIPT: [(&str, &[&str]); 3] = [
    (
        "<|call|>",
        &["<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\", \"days\": 2}}\n</tool_call>"],
    ),
    ("<|answer|>", &["It is 20 degrees", " in Paris."]),
    ("<|plain|>", &["Hello", " there."]),
];
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}<tool_call>\
    {{ m.tool_calls | tojson }}</tool_call>{% endif %}\n{% endfor %}{% if messages[-1].role == 'tool' %}<|answer|>\
    {% elif tools %}{{ tools | tojson }}<|call|>{% else %}<|plain|>{% endif %}";

/// Byte-level BPE's letter for a byte: printable Latin-1 stands for itself, the rest for U+0100 and on.
fn spelling(text: &[u8]) -> String {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let letter = |&byte: &u8| match printable(byte) {
        true => char::from(byte),
        false => char::from_u32(0x100 + (0..byte).filter(|&b| !printable(b)).count() as u32).unwrap(),
    };
    text.iter().map(letter).collect()
}

/// Writes it. The folder is cargo's, and goes when `target/` does.
pub(crate) fn model() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("scripted-{}.gguf", std::process::id()));
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| spelling(&[byte])).collect();
    let mut types = vec![1; BYTES];
    tokens.push("<|end|>".into());
    types.push(3);
    // Which token follows which.
    let mut follows = Vec::new();
    for (mark, said) in SCRIPT {
        let mut last = tokens.len();
        tokens.push(mark.into());
        types.push(3);
        for text in said {
            follows.push((last, tokens.len()));
            last = tokens.len();
            tokens.push(spelling(text.as_bytes()));
            types.push(1);
        }
        follows.push((last, END));
    }
    let vocabulary = tokens.len();
    let mut embedding = vec![0f32; vocabulary * EMBEDDING];
    (BYTES..vocabulary).for_each(|token| embedding[token * EMBEDDING + token - BYTES] = 1.0);
    let mut output = vec![0f32; vocabulary * EMBEDDING];
    follows.iter().for_each(|&(from, to)| output[to * EMBEDDING + from - BYTES] = 1.0);
    write(&path, tokens, types, &embedding, &output);
    path
}

fn write(path: &Path, tokens: Vec<String>, types: Vec<i32>, embedding: &[f32], output: &[f32]) {
    let vocabulary = tokens.len() as u64;
    let mut writer = Writer::new(File::create(path).unwrap());
    let text = |text: &str| Value::String(text.into());
    for (key, value) in [
        ("general.architecture", text("llama")),
        ("llama.block_count", Value::U32(1)),
        ("llama.context_length", Value::U32(4096)),
        ("llama.embedding_length", Value::U32(EMBEDDING as u32)),
        ("llama.feed_forward_length", Value::U32(64)),
        ("llama.attention.head_count", Value::U32(2)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.rope.dimension_count", Value::U32(32)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text("qwen2")),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(tokens))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(Vec::new()))),
        ("tokenizer.ggml.eos_token_id", Value::U32(END as u32)),
        ("tokenizer.chat_template", text(TEMPLATE)),
    ] {
        writer.metadata(key, value).unwrap();
    }
    let wide = EMBEDDING as u64;
    let ones = vec![1f32; EMBEDDING];
    let zeros = vec![0f32; EMBEDDING * 64];
    let matrices = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"];
    let mut tensors: Vec<(String, Vec<u64>, &[f32])> = vec![
        ("token_embd.weight".into(), vec![wide, vocabulary], embedding),
        ("output.weight".into(), vec![wide, vocabulary], output),
        ("output_norm.weight".into(), vec![wide], &ones),
        ("blk.0.attn_norm.weight".into(), vec![wide], &ones),
        ("blk.0.ffn_norm.weight".into(), vec![wide], &ones),
    ];
    tensors.extend(matrices.map(|name| (format!("blk.0.{name}.weight"), vec![wide, 64], &zeros[..])));
    for (name, dims, _) in &tensors {
        writer.tensor(name, dims, TensorType::F32).unwrap();
    }
    writer.finish_header().unwrap();
    for (_, _, values) in &tensors {
        writer.data(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    }
    writer.finish().unwrap();
}
