"""A second forward pass: llama and qwen3 in numpy, f64, from a GGUF file alone.

What lives here: the arithmetic, written from the papers and the GGUF conventions. What must not: anything of
transformers, or speed. It holds the golden data to account and helps to find a layer that goes wrong.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize


class Model:
    """Weights as f64, `[out, in]`."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(str(path))
        self.weights = {
            t.name.removesuffix(".weight"): dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors
        }
        architecture = reader.fields["general.architecture"].contents()

        def key(name, default=None):
            field = reader.fields.get(f"{architecture}.{name}")
            return default if field is None else field.contents()

        self.qwen3 = architecture == "qwen3"
        self.layers = key("block_count")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.head_dim = key("attention.key_length", key("embedding_length") // self.heads)
        self.theta = float(key("rope.freq_base", 10000.0))
        self.eps = float(key("attention.layer_norm_rms_epsilon"))

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """RMSNorm over the last axis (Zhang and Sennrich 2019)."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def rope(self, x: np.ndarray) -> np.ndarray:
        """Rotates `[tokens, heads, dim]` (Su et al. 2021): llama files pair neighbours, qwen3 files pair halves."""
        tokens, _, dim = x.shape
        pair = np.arange(dim // 2)
        angle = (np.arange(tokens)[:, None] * self.theta ** (-2.0 * pair / dim))[:, None]
        a, b = (pair, pair + dim // 2) if self.qwen3 else (2 * pair, 2 * pair + 1)
        out = np.empty_like(x)
        out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        out[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
        return out

    def attention(self, x: np.ndarray, block: str) -> np.ndarray:
        tokens = len(x)
        split = lambda part: (x @ self.weights[block + part].T).reshape(tokens, -1, self.head_dim)
        q, k, v = split("attn_q"), split("attn_k"), split("attn_v")
        if self.qwen3:
            q, k = self.norm(q, block + "attn_q_norm"), self.norm(k, block + "attn_k_norm")
        q, k = self.rope(q), self.rope(k)
        share = self.heads // self.kv_heads
        k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        score = np.where(np.tri(tokens, dtype=bool), score, -np.inf)
        weight = np.exp(score - score.max(-1, keepdims=True))
        weight /= weight.sum(-1, keepdims=True)
        mixed = np.einsum("hqk,khd->qhd", weight, v).reshape(tokens, -1)
        return mixed @ self.weights[block + "attn_output"].T

    def feed_forward(self, x: np.ndarray, block: str) -> np.ndarray:
        """SwiGLU (Shazeer 2020)."""
        gate, up = (x @ self.weights[block + part].T for part in ("ffn_gate", "ffn_up"))
        return (gate / (1.0 + np.exp(-gate)) * up) @ self.weights[block + "ffn_down"].T

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """`[positions, vocabulary]`."""
        x = self.weights["token_embd"][tokens]
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + self.attention(self.norm(x, block + "attn_norm"), block)
            x = x + self.feed_forward(self.norm(x, block + "ffn_norm"), block)
        x = self.norm(x, "output_norm")
        return x @ self.weights.get("output", self.weights["token_embd"]).T


if __name__ == "__main__":
    path, ids = Path(sys.argv[1]), np.array([int(t) for t in sys.argv[2].split(",")])
    last = Model(path).logits(ids)[-1]
    for token in np.argsort(-last)[:5]:
        print(token, round(float(last[token]), 5))
