#!/usr/bin/env python3
"""Makes tiny random models as GGUF files, each with logits from transformers: the golden data of crates/model.

What lives here: shapes, random weights, the two files per model. What must not: a forward pass of our own (that is
forward.py, which checks the result), or anything about real models (smollm2_logits.py).

The weights are rounded to what the file stores before the reference sees them, so a reader that decodes them and
computes in f32 gets the same logits up to the order of its sums.
"""

import argparse
import hashlib
import os
from dataclasses import dataclass, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.cache_utils import DynamicCache

import forward
import k_blocks

DATA = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "data"
PREFILL = 64
DECODE = 16
# Two greedy candidates closer than this could swap by rounding alone, and the decode steps would test luck.
GREEDY_GAP_LEAST = 0.05
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


def llama(suffix: str, matrix: Type, embedding: Type) -> Model:
    return Model(f"tiny-llama{suffix}", "llama", 4, 256, 32, 1e4, 1e-5, True, matrix, embedding, matrix)


MODELS = [
    llama("", Type.BF16, Type.BF16),
    llama("-q8_0", Type.Q8_0, Type.Q8_0),
    llama("-q4_0", Type.Q4_0, Type.Q8_0),
    # A vocabulary that no number of ranks divides, so that the uneven cut of the last matrix shows.
    Model("tiny-qwen3", "qwen3", 10, 250, 64, 1e6, 1e-6, False, Type.F16, Type.F16, Type.F16),
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
]


def shapes(m: Model) -> dict[str, tuple[int, ...]]:
    """Every tensor by its GGUF name without `.weight`, in file order; `[out, in]` as numpy has it."""
    q, kv = m.heads * m.head_dim, m.kv_heads * m.head_dim
    out = {"token_embd": (m.vocabulary, m.hidden)}
    for layer in range(m.layers):
        block = {"attn_norm": (m.hidden,), "attn_q": (q, m.hidden), "attn_k": (kv, m.hidden)}
        block |= {"attn_v": (kv, m.hidden), "attn_output": (m.hidden, q)}
        if m.architecture == "qwen3":
            block |= {"attn_q_norm": (m.head_dim,), "attn_k_norm": (m.head_dim,)}
        block |= {"ffn_norm": (m.hidden,), "ffn_gate": (m.feed_forward, m.hidden)}
        block |= {"ffn_up": (m.feed_forward, m.hidden), "ffn_down": (m.hidden, m.feed_forward)}
        out |= {f"blk.{layer}.{name}": shape for name, shape in block.items()}
    out["output_norm"] = (m.hidden,)
    if not m.tied:
        out["output"] = (m.vocabulary, m.hidden)
    return out


@dataclass(frozen=True)
class Tensor:
    """What the file stores, and the f32 values that it stands for."""

    ty: Type
    data: np.ndarray
    value: np.ndarray


def random_tensors(m: Model, seed: int) -> dict[str, Tensor]:
    """Weights that spread logits by a few units and give attention some contrast, else a wrong pass looks right."""
    rng = np.random.Generator(np.random.PCG64(seed))
    tensors = {}
    for name, shape in shapes(m).items():
        part = name.rsplit(".", 1)[-1]
        if part.endswith("norm"):
            value = (1.0 + 0.25 * rng.standard_normal(shape)).astype(np.float32)
            tensors[name] = Tensor(Type.F32, value, value)
            continue
        spread = 2.5 if part in ("token_embd", "output") else 1.5 if part in ("attn_q", "attn_k") else 1.0
        ty = {"token_embd": m.embedding, "ffn_down": m.down}.get(part, m.matrix)
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


def write_gguf(path: Path, m: Model, tensors: dict[str, Tensor]) -> None:
    w = gguf.GGUFWriter(str(path), m.architecture)
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
    for name, tensor in tensors.items():
        data, part = tensor.data, name.rsplit(".", 1)[-1]
        if m.architecture == "llama" and part in ("attn_q", "attn_k"):
            # Rows move whole, whatever their encoding.
            data = interleaved(data, m.heads if part == "attn_q" else m.kv_heads)
        w.add_tensor(f"{name}.weight", data, raw_dtype=tensor.ty)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def transformers_name(name: str) -> str:
    tops = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    if name in tops:
        return f"{tops[name]}.weight"
    parts = {
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
    }
    parts |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    parts |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{parts[part]}.weight"


def reference_model(m: Model, tensors: dict[str, Tensor]) -> torch.nn.Module:
    """The transformers model in f32 with the weights as the file will hold them."""
    kind, config = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}[m.architecture]
    model = kind(
        config(
            vocab_size=m.vocabulary,
            hidden_size=m.hidden,
            intermediate_size=m.feed_forward,
            num_hidden_layers=m.layers,
            num_attention_heads=m.heads,
            num_key_value_heads=m.kv_heads,
            head_dim=m.head_dim,
            max_position_embeddings=m.context,
            rms_norm_eps=m.eps,
            rope_parameters={"rope_type": "default", "rope_theta": m.theta},
            tie_word_embeddings=m.tied,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
        )
    )
    state = {transformers_name(name): torch.from_numpy(tensor.value) for name, tensor in tensors.items()}
    if m.tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    return model.float().eval()


@torch.no_grad()
def run(m: Model, tensors: dict[str, Tensor], seed: int) -> tuple[dict[str, np.ndarray], float]:
    """The reference tensors, and the smallest distance between the best two candidates of a greedy choice."""
    model = reference_model(m, tensors)
    tokens = np.random.Generator(np.random.PCG64(seed + 1_000_000)).integers(0, m.vocabulary, PREFILL, dtype=np.int64)
    cache = DynamicCache(config=model.config)
    out = model(input_ids=torch.from_numpy(tokens[None]), past_key_values=cache, use_cache=True)
    logits = out.logits[0]
    greedy, steps, gaps = [], [], []
    last = logits[-1]
    for _ in range(DECODE):
        best = last.topk(2)
        gaps.append(float(best.values[0] - best.values[1]))
        greedy.append(int(best.indices[0]))
        last = model(input_ids=torch.tensor([[greedy[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1]
        steps.append(last)
    reference = {
        "tokens": tokens.astype(np.int32),
        "logits": logits.numpy().copy(),
        "decode_tokens": np.array(greedy, dtype=np.int32),
        "decode_logits": torch.stack(steps).numpy().copy(),
    }
    return reference, min(gaps)


def check(path: Path, reference: dict[str, np.ndarray]) -> float:
    """The largest difference between the reference and a second forward pass that knows only the file."""
    both = np.concatenate([reference["tokens"], reference["decode_tokens"]])
    logits = forward.Model(path).logits(both)
    return float(np.abs(logits - np.concatenate([reference["logits"], reference["decode_logits"]])).max())


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=DATA)
    ap.add_argument("--search", type=int, metavar="N", help="only print each model's greedy gap for the first N seeds")
    ap.add_argument("--only", help="the one model of this name")
    args = ap.parse_args()
    # One thread: the order of sums, and with it the last bit of the logits, must not depend on the machine's cores.
    torch.set_num_threads(1)
    models = [m for m in MODELS if args.only in (None, m.name)]
    if args.search:
        for m in models:
            gaps = {seed: round(run(m, random_tensors(m, seed), seed)[1], 4) for seed in range(args.search)}
            print(m.name, gaps)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for m in models:
        tensors = random_tensors(m, m.seed)
        reference, gap = run(m, tensors, m.seed)
        assert gap >= GREEDY_GAP_LEAST, f"{m.name}: greedy gap {gap}, try another seed"
        gguf_path, reference_path = (args.out / f"{m.name}.{end}" for end in ("gguf", "safetensors"))
        write_gguf(gguf_path, m, tensors)
        save_file(reference, reference_path)
        error = check(gguf_path, reference)
        assert error <= CHECK_MOST, f"{m.name}: forward.py differs by {error}"
        print(f"{m.name}: logits std {reference['logits'].std():.2f}, greedy gap {gap:.3f}, check {error:.1e}")
        for path in (gguf_path, reference_path):
            print(f"  {path.name} {path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
