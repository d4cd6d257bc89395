#!/usr/bin/env python3
"""Makes tiny random models as GGUF files, each with logits from transformers: the golden data of crates/model.

What lives here: shapes, random weights, the two files per model. What must not: how transformers names and runs them
(tiny_reference.py), a forward pass of our own (forward.py, which checks the result), or anything about real models.

The weights are rounded to what the file stores before the reference sees them, so a reader that decodes them and
computes in f32 gets the same logits up to the order of its sums.
"""

import argparse
import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

import forward
import k_blocks

DATA = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "data"
# Two greedy candidates closer than this could swap by rounding alone, and the decode steps would test luck.
GREEDY_GAP_LEAST = 0.05
# The same of a router's last chosen expert and the first that is not.
ROUTER_GAP_LEAST = 1e-3
# Between transformers in f32 and forward.py in f64.
CHECK_MOST = 1e-4


@dataclass(frozen=True)
class Model:
    """One golden model. By default cuts in four stay whole blocks of 32: heads, and feed_forward / 4."""

    name: str
    architecture: str
    seed: int
    vocabulary: int
    head_dim: int
    theta: float
    eps: float
    tied: bool
    matrix: Type  # of every matrix but those below
    embedding: Type
    down: Type  # ffn_down
    layers: int = 3
    hidden: int = 64
    heads: int = 8
    kv_heads: int = 4
    feed_forward: int = 128
    context: int = 512
    biases: tuple[str, ...] = ()  # parts of a block that have one
    scaling: dict = field(default_factory=dict)  # of rotations: {"type": ..., "factor": ...}
    experts: int = 0
    used: int = 0  # experts a token
    expert: Type = Type.F16  # of the experts' matrices
    window: int = 0
    period: int = 1  # every such layer sees everything, the others through the window
    softcap: float = 0.0  # of the logits

    @property
    def qk_norm(self) -> bool:
        return self.architecture in ("qwen3", "qwen3moe", "gemma3")

    @property
    def interleaved(self) -> bool:
        """Whether files pair neighbours in rotations."""
        return self.architecture == "llama"


def llama(suffix: str, matrix: Type, embedding: Type) -> Model:
    return Model(f"tiny-llama{suffix}", "llama", 4, 256, 32, 1e4, 1e-5, True, matrix, embedding, matrix)


QKV = ("attn_q", "attn_k", "attn_v")
EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")
F16, BF16, Q8_0 = Type.F16, Type.BF16, Type.Q8_0

MODELS = [
    llama("", BF16, BF16),
    llama("-q8_0", Q8_0, Q8_0),
    llama("-q4_0", Type.Q4_0, Q8_0),
    # A vocabulary that no number of ranks divides, so that the uneven cut of the last matrix shows.
    Model("tiny-qwen3", "qwen3", 10, 250, 64, 1e6, 1e-6, False, F16, F16, F16),
    # Rows of whole blocks of 256, also when cut in two.
    replace(
        llama("-q4_k", Type.Q4_K, Type.Q6_K),
        seed=1,
        head_dim=64,
        down=Type.Q6_K,
        layers=2,
        hidden=256,
        feed_forward=512,
    ),
    # Biases wherever a llama may have them, and the frequencies of Llama 3.1 in a tensor.
    replace(
        llama("-biases", BF16, BF16),
        seed=0,
        layers=2,
        biases=(*QKV, "attn_output", "ffn_gate", "ffn_up", "ffn_down"),
        scaling={"type": "llama3", "factor": 8.0, "low": 1.0, "high": 4.0, "original": 64},
    ),
    # YaRN: the prompt and what follows are longer than the trained context.
    replace(
        Model("tiny-qwen2", "qwen2", 0, 256, 32, 1e4, 1e-6, True, BF16, BF16, BF16),
        layers=2,
        biases=QKV,
        context=256,
        scaling={"type": "yarn", "factor": 4.0, "original": 64},
    ),
    # Experts in a llama, as Mixtral has them; linear scaling.
    replace(
        llama("", F16, F16),
        name="tiny-mixtral",
        seed=1,
        layers=2,
        feed_forward=64,
        experts=8,
        used=2,
        scaling={"type": "linear", "factor": 4.0},
    ),
    replace(
        Model("tiny-qwen3moe", "qwen3moe", 25, 250, 32, 1e6, 1e-6, False, F16, F16, F16),
        layers=2,
        experts=8,
        used=3,
        expert=Q8_0,
    ),
    # Windows shorter than the prompt in two of three layers; the third is stretched, the others are not.
    replace(
        Model("tiny-gemma3", "gemma3", 1, 256, 32, 1e6, 1e-6, True, BF16, BF16, BF16),
        layers=4,
        scaling={"type": "linear", "factor": 8.0},
        window=16,
        period=3,
        softcap=5.0,
    ),
    replace(
        Model("tiny-gpt-oss", "gpt-oss", 5, 256, 32, 150_000.0, 1e-5, False, F16, F16, F16),
        layers=3,
        biases=(*QKV, "attn_output", "ffn_gate_inp", *EXPERTS),
        context=256,
        scaling={"type": "yarn", "factor": 8.0, "original": 32},
        window=16,
        period=2,
        experts=8,
        used=3,
        expert=Type.MXFP4,
    ),
]


def shapes(m: Model) -> dict[str, tuple[int, ...]]:
    """Every tensor by its GGUF name, in file order; `[out, in]` as numpy has it."""
    q, kv, width = m.heads * m.head_dim, m.kv_heads * m.head_dim, m.feed_forward
    out = {"token_embd.weight": (m.vocabulary, m.hidden)}
    if m.scaling.get("type") == "llama3":
        out["rope_freqs.weight"] = (m.head_dim // 2,)
    for layer in range(m.layers):
        block = {"attn_norm": (m.hidden,), "attn_q": (q, m.hidden), "attn_k": (kv, m.hidden)}
        block |= {"attn_v": (kv, m.hidden), "attn_output": (m.hidden, q)}
        if m.qk_norm:
            block |= {"attn_q_norm": (m.head_dim,), "attn_k_norm": (m.head_dim,)}
        if m.architecture == "gpt-oss":
            block |= {"attn_sinks": (m.heads,), "post_attention_norm": (m.hidden,)}
        elif m.architecture == "gemma3":
            block |= {"post_attention_norm": (m.hidden,), "ffn_norm": (m.hidden,), "post_ffw_norm": (m.hidden,)}
        else:
            block |= {"ffn_norm": (m.hidden,)}
        if m.experts:
            block |= {"ffn_gate_inp": (m.experts, m.hidden), "ffn_gate_exps": (m.experts, width, m.hidden)}
            block |= {"ffn_up_exps": (m.experts, width, m.hidden), "ffn_down_exps": (m.experts, m.hidden, width)}
        else:
            block |= {"ffn_gate": (width, m.hidden), "ffn_up": (width, m.hidden), "ffn_down": (m.hidden, width)}
        for name, shape in block.items():
            out[f"blk.{layer}.{name}.weight"] = shape
            if name in m.biases:
                out[f"blk.{layer}.{name}.bias"] = shape[:-1]
    out["output_norm.weight"] = (m.hidden,)
    if not m.tied:
        out["output.weight"] = (m.vocabulary, m.hidden)
    return out


@dataclass(frozen=True)
class Tensor:
    """What the file stores, and the f32 values that it stands for."""

    ty: Type
    data: np.ndarray
    value: np.ndarray


def llama3_factors(m: Model) -> np.ndarray:
    """What every frequency is divided by: long waves by `factor`, short ones not, between them smoothly."""
    frequency = m.theta ** (-2.0 * np.arange(m.head_dim // 2) / m.head_dim)
    s = m.scaling
    turns = s["original"] * frequency / (2 * np.pi)
    smooth = np.clip((turns - s["low"]) / (s["high"] - s["low"]), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / s["factor"] + smooth)).astype(np.float32)


def random_tensors(m: Model, seed: int) -> dict[str, Tensor]:
    """Weights that spread logits by a few units and give attention some contrast, else a wrong pass looks right."""
    rng = np.random.Generator(np.random.PCG64(seed))
    types = {"token_embd": m.embedding, "ffn_down": m.down, "ffn_gate_inp": Type.F32} | {e: m.expert for e in EXPERTS}
    spreads = {"token_embd": 2.5, "output": 2.5, "attn_q": 1.5, "attn_k": 1.5}
    tensors = {}
    for name, shape in shapes(m).items():
        part, suffix = name.split(".")[-2:]
        plain = None
        if name == "rope_freqs.weight":
            plain = llama3_factors(m)
        elif part.endswith("norm"):
            plain = 1.0 + 0.25 * rng.standard_normal(shape)
        elif part == "attn_sinks":
            plain = 1.0 + rng.standard_normal(shape)
        elif suffix == "bias":
            plain = 0.5 * rng.standard_normal(shape)
        if plain is not None:
            value = plain.astype(np.float32)
            tensors[name] = Tensor(Type.F32, value, value)
            continue
        spread, ty = spreads.get(part, 1.0), types.get(part, m.matrix)
        if part == "token_embd" and m.architecture == "gemma3":
            # They are multiplied by the square root of the width, and serve as output matrix too.
            spread = 1.0
        if ty in (Type.Q4_K, Type.Q6_K):
            data = k_blocks.random_rows(rng, shape, ty, spread * shape[-1] ** -0.5)
        else:
            data = quantize((rng.standard_normal(shape) * spread * shape[-1] ** -0.5).astype(np.float32), ty)
        tensors[name] = Tensor(ty, data, np.ascontiguousarray(dequantize(data, ty), dtype=np.float32))
    return tensors


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k for rotations that pair neighbours, from rows for rotations that pair j with j + dim / 2."""
    dim = rows.shape[0] // heads
    order = np.arange(dim).reshape(2, dim // 2).T.reshape(-1)
    return rows.reshape(heads, dim, -1)[:, order].reshape(rows.shape)


def add_metadata(w: gguf.GGUFWriter, m: Model) -> None:
    w.add_name(m.name)
    w.add_license("cc0-1.0")
    w.add_block_count(m.layers)
    w.add_context_length(m.context)
    w.add_embedding_length(m.hidden)
    w.add_feed_forward_length(m.feed_forward)
    w.add_head_count(m.heads)
    w.add_head_count_kv(m.kv_heads)
    w.add_key_length(m.head_dim)
    w.add_value_length(m.head_dim)
    w.add_rope_dimension_count(m.head_dim)
    w.add_rope_freq_base(m.theta)
    w.add_layer_norm_rms_eps(m.eps)
    w.add_vocab_size(m.vocabulary)
    w.add_tokenizer_model("none")
    if m.scaling.get("type") in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(m.scaling["type"]))
        w.add_rope_scaling_factor(m.scaling["factor"])
        if "original" in m.scaling:
            w.add_rope_scaling_orig_ctx_len(m.scaling["original"])
    if m.experts:
        w.add_expert_count(m.experts)
        w.add_expert_used_count(m.used)
        w.add_expert_feed_forward_length(m.feed_forward)
    if m.window:
        w.add_sliding_window(m.window)
        # gpt-oss files do not say it: it is part of the architecture.
        if m.architecture != "gpt-oss":
            w.add_uint32(f"{m.architecture}.attention.sliding_window_pattern", m.period)
    if m.softcap:
        w.add_final_logit_softcapping(m.softcap)


def write_gguf(path: Path, m: Model, tensors: dict[str, Tensor]) -> None:
    w = gguf.GGUFWriter(str(path), m.architecture)
    add_metadata(w, m)
    for name, tensor in tensors.items():
        data, part = tensor.data, name.split(".")[-2]
        if m.interleaved and part in ("attn_q", "attn_k"):
            # Rows move whole, whatever their encoding.
            data = interleaved(data, m.heads if part == "attn_q" else m.kv_heads)
        w.add_tensor(name, data, raw_dtype=tensor.ty)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def check(path: Path, reference: dict[str, np.ndarray]) -> tuple[float, float]:
    """The largest difference between the reference and a second forward pass that knows only the file, and the
    smallest distance between an expert that was chosen and one that was not."""
    both = np.concatenate([reference["tokens"], reference["decode_tokens"]])
    model = forward.Model(path)
    logits = model.logits(both)
    error = np.abs(logits - np.concatenate([reference["logits"], reference["decode_logits"]])).max()
    return float(error), model.router_gap


def main() -> None:
    import tiny_reference

    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=DATA)
    ap.add_argument("--search", type=int, metavar="N", help="only print each model's greedy gap for the first N seeds")
    ap.add_argument("--only", help="the one model of this name")
    args = ap.parse_args()
    models = [m for m in MODELS if args.only in (None, m.name)]
    if args.search:
        for m in models:
            seeds = range(args.search)
            gaps = {seed: round(tiny_reference.run(m, random_tensors(m, seed), seed)[1], 4) for seed in seeds}
            print(m.name, gaps)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for m in models:
        tensors = random_tensors(m, m.seed)
        reference, gap = tiny_reference.run(m, tensors, m.seed)
        assert gap >= GREEDY_GAP_LEAST, f"{m.name}: greedy gap {gap}, try another seed"
        gguf_path, reference_path = (args.out / f"{m.name}.{end}" for end in ("gguf", "safetensors"))
        write_gguf(gguf_path, m, tensors)
        save_file(reference, reference_path)
        error, router_gap = check(gguf_path, reference)
        assert error <= CHECK_MOST, f"{m.name}: forward.py differs by {error}"
        assert router_gap >= ROUTER_GAP_LEAST, f"{m.name}: router gap {router_gap}, try another seed"
        spread = reference["logits"].std()
        print(f"{m.name}: logits std {spread:.2f}, gaps {gap:.3f} {router_gap:.4f}, check {error:.1e}")
        for path in (gguf_path, reference_path):
            print(f"  {path.name} {path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
