"""The transformers side of the tiny models: how it names their tensors, its configurations, its logits.

What must not live here: anything that writes a GGUF file.
"""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
import transformers
from transformers.cache_utils import DynamicCache

PREFILL = 64
DECODE = 16

CLASSES = {
    "llama": "Llama",
    "mixtral": "Mixtral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "qwen3moe": "Qwen3Moe",
    "gemma3": "Gemma3",
    "gpt-oss": "GptOss",
}


def kind(m) -> str:
    """Experts make a llama file a Mixtral model."""
    return "mixtral" if m.architecture == "llama" and m.experts else m.architecture


def rope_parameters(m) -> dict:
    s = m.scaling
    plain = {"rope_type": "default", "rope_theta": m.theta}
    scaled = dict(plain)
    if s:
        scaled |= {"rope_type": s["type"], "factor": s["factor"]}
    if "original" in s:
        scaled["original_max_position_embeddings"] = s["original"]
    if s.get("type") == "llama3":
        scaled |= {"low_freq_factor": s["low"], "high_freq_factor": s["high"]}
    if m.architecture == "gpt-oss":
        scaled["truncate"] = False
    if m.architecture == "gemma3":
        return {"full_attention": scaled, "sliding_attention": plain | {"rope_theta": 1e4}}
    return scaled


def layer_types(m) -> list[str]:
    near = lambda layer: layer % m.period < m.period - 1
    return ["sliding_attention" if near(layer) else "full_attention" for layer in range(m.layers)]


def extra(m) -> dict:
    """What only some configurations have."""
    out = {}
    if kind(m) == "llama":
        out |= {"attention_bias": "attn_q" in m.biases, "mlp_bias": "ffn_up" in m.biases}
    if m.experts:
        count = "num_experts" if kind(m) == "qwen3moe" else "num_local_experts"
        out |= {count: m.experts, "num_experts_per_tok": m.used}
    if kind(m) == "qwen3moe":
        out |= {"moe_intermediate_size": m.feed_forward, "norm_topk_prob": True}
    if m.window:
        out |= {"sliding_window": m.window, "layer_types": layer_types(m)}
    if kind(m) == "gemma3":
        out |= {"query_pre_attn_scalar": m.head_dim, "final_logit_softcapping": m.softcap}
    return out


def build(m, tensors) -> torch.nn.Module:
    """The transformers model in f32 with the weights as the file will hold them."""
    name = CLASSES[kind(m)]
    config = getattr(transformers, f"{name}TextConfig" if name == "Gemma3" else f"{name}Config")
    model = getattr(transformers, f"{name}ForCausalLM")(
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
            rope_parameters=rope_parameters(m),
            tie_word_embeddings=m.tied,
            pad_token_id=None,
            bos_token_id=None,
            eos_token_id=None,
            attn_implementation="eager",
            **extra(m),
        )
    )
    model.load_state_dict(state(m, {name: torch.from_numpy(t.value) for name, t in tensors.items()}), strict=True)
    return model.float().eval()


def state(m, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    out = {}
    for name, value in values.items():
        if name == "rope_freqs.weight":
            continue
        if kind(m) == "gemma3" and name.endswith("norm.weight"):
            # Its norms multiply by one more than their weight; files hold the sum.
            value = value - 1.0
        part = name.split(".")[-2]
        if not part.endswith("_exps"):
            out[renamed(m, name)] = value
    for layer in range(m.layers if m.experts else 0):
        experts = f"model.layers.{layer}.mlp.experts."
        get = lambda part, suffix="weight", layer=layer: values[f"blk.{layer}.ffn_{part}_exps.{suffix}"]
        if kind(m) == "gpt-oss":
            # Gates and ups take turns, matrices are `[in, out]`.
            turns = lambda a, b, at: torch.stack((a, b), at + 1).flatten(at, at + 1)
            out[experts + "gate_up_proj"] = turns(get("gate"), get("up"), 1).transpose(1, 2).contiguous()
            out[experts + "gate_up_proj_bias"] = turns(get("gate", "bias"), get("up", "bias"), 1)
            out[experts + "down_proj"] = get("down").transpose(1, 2).contiguous()
            out[experts + "down_proj_bias"] = get("down", "bias")
        else:
            out[experts + "gate_up_proj"] = torch.cat((get("gate"), get("up")), 1)
            out[experts + "down_proj"] = get("down")
    if m.tied:
        out["lm_head.weight"] = out["model.embed_tokens.weight"]
    return out


def renamed(m, name: str) -> str:
    """A tensor's name in transformers; `post_attention_norm` is not the same everywhere."""
    tops = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
    if not name.startswith("blk."):
        part, suffix = name.split(".")
        return f"{tops[part]}.{suffix}"
    gemma = kind(m) == "gemma3"
    parts = {
        "attn_norm": "input_layernorm",
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
        "attn_output": "self_attn.o_proj",
        "attn_q_norm": "self_attn.q_norm",
        "attn_k_norm": "self_attn.k_norm",
        "attn_sinks": "self_attn.sinks",
        "ffn_gate_inp": "mlp.router" if kind(m) == "gpt-oss" else "mlp.gate",
    }
    parts |= {f"attn_{x}": f"self_attn.{x}_proj" for x in "qkv"}
    parts |= {f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")}
    _, layer, part, suffix = name.split(".")
    whole = f"model.layers.{layer}.{parts[part]}"
    return whole if part == "attn_sinks" else f"{whole}.{suffix}"


@torch.no_grad()
def run(m, tensors, seed: int) -> tuple[dict[str, np.ndarray], float]:
    """The reference tensors, and the smallest distance between the best two candidates of a greedy choice."""
    # One thread: the order of sums, and with it the last bit of the logits, must not depend on the machine's cores.
    torch.set_num_threads(1)
    model = build(m, tensors)
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
