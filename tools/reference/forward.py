"""A second forward pass: the architectures in numpy, f64, from a GGUF file alone.

What lives here: the arithmetic, written from the papers and the GGUF conventions. What must not: anything of
transformers, or speed. It holds the golden data to account and helps to find a layer that goes wrong.
"""

import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import dequantize


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


class Model:
    """Weights as f64, `[out, in]`."""

    def __init__(self, path: Path):
        reader = gguf.GGUFReader(str(path))
        self.weights = {
            t.name.removesuffix(".weight"): dequantize(t.data, t.tensor_type).astype(np.float64) for t in reader.tensors
        }
        self.architecture = reader.fields["general.architecture"].contents()

        def key(name, default=None):
            field = reader.fields.get(f"{self.architecture}.{name}")
            return default if field is None else field.contents()

        self.layers = key("block_count")
        self.hidden = key("embedding_length")
        self.heads = key("attention.head_count")
        self.kv_heads = key("attention.head_count_kv", self.heads)
        self.head_dim = key("attention.key_length", self.hidden // self.heads)
        self.eps = float(key("attention.layer_norm_rms_epsilon"))
        self.window = key("attention.sliding_window")
        self.period = key("attention.sliding_window_pattern", {"gemma3": 6, "gpt-oss": 2}.get(self.architecture, 1))
        self.softcap = key("final_logit_softcapping")
        self.used = key("expert_used_count")
        self.far = self.frequencies(key)
        self.near = self.far
        if self.architecture == "gemma3":
            self.near = (1e4 ** (-2.0 * np.arange(self.head_dim // 2) / self.head_dim), 1.0)
        self.router_gap = float("inf")

    def frequencies(self, key) -> tuple[np.ndarray, float]:
        """Radians per position of every pair, and the factor on what is turned (YaRN: Peng et al. 2023)."""
        pair, dim = np.arange(self.head_dim // 2), self.head_dim
        theta = float(key("rope.freq_base", 10000.0))
        base = theta ** (-2.0 * pair / dim) / self.weights.get("rope_freqs", 1.0)
        kind, factor = key("rope.scaling.type", "none"), float(key("rope.scaling.factor", 1.0))
        if kind == "linear":
            return base / factor, 1.0
        if kind == "none":
            return base, 1.0
        trained = key("rope.scaling.original_context_length")
        turns_at = lambda turns: dim * np.log(trained / (turns * 2 * np.pi)) / (2 * np.log(theta))
        low, high = turns_at(32), turns_at(1)
        if self.architecture != "gpt-oss":
            low, high = np.floor(low), np.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        keep = 1 - np.clip((pair - low) / max(high - low, 0.001), 0, 1)
        return base / factor * (1 - keep) + base * keep, 1 + 0.1 * np.log(factor)

    def norm(self, x: np.ndarray, name: str) -> np.ndarray:
        """RMSNorm over the last axis (Zhang and Sennrich 2019)."""
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.weights[name].T + self.weights.get(name + ".bias", 0.0)

    def rope(self, x: np.ndarray, frequencies: np.ndarray, magnitude: float) -> np.ndarray:
        """Rotates `[tokens, heads, dim]` (Su et al. 2021): llama files pair neighbours, the others pair halves."""
        tokens, _, dim = x.shape
        pair = np.arange(dim // 2)
        angle = (np.arange(tokens)[:, None] * frequencies)[:, None]
        a, b = (2 * pair, 2 * pair + 1) if self.architecture == "llama" else (pair, pair + dim // 2)
        out = np.empty_like(x)
        out[..., a] = x[..., a] * np.cos(angle) - x[..., b] * np.sin(angle)
        out[..., b] = x[..., b] * np.cos(angle) + x[..., a] * np.sin(angle)
        return out * magnitude

    def attention(self, x: np.ndarray, layer: int) -> np.ndarray:
        tokens, block = len(x), f"blk.{layer}."
        split = lambda part: self.linear(x, block + part).reshape(tokens, -1, self.head_dim)
        q, k, v = split("attn_q"), split("attn_k"), split("attn_v")
        if block + "attn_q_norm" in self.weights:
            q, k = self.norm(q, block + "attn_q_norm"), self.norm(k, block + "attn_k_norm")
        is_near = self.window is not None and layer % self.period < self.period - 1
        turn = self.near if is_near else self.far
        q, k = self.rope(q, *turn), self.rope(k, *turn)
        share = self.heads // self.kv_heads
        k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        score = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        seen = np.tri(tokens, dtype=bool)
        if is_near:
            seen &= ~np.tri(tokens, k=-self.window, dtype=bool)
        score = np.where(seen, score, -np.inf)
        sinks = self.weights.get(block + "attn_sinks")
        if sinks is not None:
            # A score more, without a value.
            score = np.concatenate([score, np.broadcast_to(sinks[:, None, None], (*score.shape[:2], 1))], -1)
        weight = softmax(score)[..., :tokens]
        mixed = np.einsum("hqk,khd->qhd", weight, v).reshape(tokens, -1)
        return self.linear(mixed, block + "attn_output")

    def gated(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        """SwiGLU (Shazeer 2020), GELU by its tanh formula (gemma3), the clamped gate of gpt-oss."""
        if self.architecture == "gemma3":
            return 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3))) * up
        if self.architecture == "gpt-oss":
            gate, up = np.minimum(gate, 7.0), np.clip(up, -7.0, 7.0)
            return gate * sigmoid(1.702 * gate) * (up + 1.0)
        return gate * sigmoid(gate) * up

    def experts(self, x: np.ndarray, block: str) -> np.ndarray:
        logits = self.linear(x, block + "ffn_gate_inp")
        order = np.argsort(-logits, -1, kind="stable")
        ranked = np.take_along_axis(logits, order, -1)
        self.router_gap = min(self.router_gap, float((ranked[:, self.used - 1] - ranked[:, self.used]).min()))
        # Softmax over all, chosen and divided by their sum: the same as softmax over the chosen.
        weights = softmax(ranked[:, : self.used])
        out = np.zeros_like(x)
        for row, (chosen, share) in enumerate(zip(order[:, : self.used], weights)):
            for e, w in zip(chosen, share):
                part = lambda y, name, e=e: (
                    y @ self.weights[f"{block}ffn_{name}_exps"][e].T
                    + self.weights.get(f"{block}ffn_{name}_exps.bias", np.zeros((e + 1, 1)))[e]
                )
                out[row] += w * part(self.gated(part(x[row], "gate"), part(x[row], "up")), "down")
        return out

    def feed_forward(self, x: np.ndarray, block: str) -> np.ndarray:
        if block + "ffn_gate_inp" in self.weights:
            return self.experts(x, block)
        gate, up = (self.linear(x, block + part) for part in ("ffn_gate", "ffn_up"))
        return self.linear(self.gated(gate, up), block + "ffn_down")

    def logits(self, tokens: np.ndarray) -> np.ndarray:
        """`[positions, vocabulary]`."""
        gemma = self.architecture == "gemma3"
        x = self.weights["token_embd"][tokens] * (np.sqrt(self.hidden) if gemma else 1.0)
        before = "post_attention_norm" if self.architecture == "gpt-oss" else "ffn_norm"
        after = (lambda y, name: self.norm(y, name)) if gemma else (lambda y, name: y)
        for layer in range(self.layers):
            block = f"blk.{layer}."
            x = x + after(self.attention(self.norm(x, block + "attn_norm"), layer), block + "post_attention_norm")
            x = x + after(self.feed_forward(self.norm(x, block + before), block), block + "post_ffw_norm")
        x = self.norm(x, "output_norm")
        logits = x @ self.weights.get("output", self.weights["token_embd"]).T
        return np.tanh(logits / self.softcap) * self.softcap if self.softcap else logits


if __name__ == "__main__":
    path, ids = Path(sys.argv[1]), np.array([int(t) for t in sys.argv[2].split(",")])
    last = Model(path).logits(ids)[-1]
    for token in np.argsort(-last)[:5]:
        print(token, round(float(last[token]), 5))
