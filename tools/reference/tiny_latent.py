#!/usr/bin/env python3
"""Makes tiny random models of the GLM and DeepSeek families as GGUF files, each with logits from transformers.

What lives here: shapes, random weights and both files of every model. What must not: a forward pass of our own, or the
architectures of tiny_models.py.

All matrices are rounded to BF16 before the reference sees them, so the file holds what the reference computed with.
"""

import argparse
import hashlib
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import gguf
import numpy as np
import torch
import transformers
from gguf import GGMLQuantizationType as Type
from safetensors.numpy import save_file
from transformers.cache_utils import DynamicCache

DATA = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "data"
PREFILL = 64
DECODE = 16
# What is closer than this could swap by rounding alone (of f32, about 1e-6): greedy candidates, experts, positions.
GAPS_LEAST = {"greedy": 5e-3, "router": 2e-4, "indexer": 2e-5}


@dataclass(frozen=True)
class Model:
    """One golden model. `config` is what transformers is given beside what all have."""

    name: str
    architecture: str
    kind: str  # of transformers
    seed: int
    config: dict
    eps: float = 1e-6
    vocabulary: int = 256
    layers: int = 3
    hidden: int = 64
    heads: int = 4
    feed_forward: int = 128
    expert: int = 32
    shared: int = 1
    legacy: bool = False  # keys and values in one matrix, sizes of heads under the old names
    scaling: dict = field(default_factory=dict)
    draft: bool = False  # has the block that drafts tokens
    draft_head: bool = False  # which has an embedding and an output matrix of its own


MLA = dict(q_lora_rank=64, kv_lora_rank=32, qk_nope_head_dim=32, qk_rope_head_dim=16, v_head_dim=32)
MOE = dict(n_routed_experts=8, num_experts_per_tok=2, first_k_dense_replace=1, routed_scaling_factor=2.5)
# As many heads as GLM-5 has: with few of them ReLU leaves scores of exactly 0, which are ties.
INDEX = dict(index_topk=16, index_head_dim=32, index_n_heads=32)
YARN = {"factor": 4.0, "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0}

MODELS = [
    Model(
        "tiny-glm-dsa",
        "glm-dsa",
        "GlmMoeDsa",
        9,
        MLA | MOE | INDEX | dict(n_group=1, topk_group=1, norm_topk_prob=True),
        eps=1e-5,
        layers=4,
        draft=True,
    ),
    # Two groups of experts, and a context stretched by YaRN that the tokens reach into.
    Model(
        "tiny-deepseek3",
        "deepseek2",
        "DeepseekV3",
        8,
        MLA | MOE | dict(n_group=2, topk_group=1, norm_topk_prob=True),
        scaling=YARN,
    ),
    # No squeezed queries, softmax, two shared experts; the file as it was before keys and values were split.
    Model(
        "tiny-deepseek2-lite",
        "deepseek2",
        "DeepseekV2",
        11,
        MLA | MOE | dict(q_lora_rank=None, norm_topk_prob=False, routed_scaling_factor=1.0, topk_method="greedy"),
        shared=2,
        legacy=True,
    ),
    Model(
        "tiny-glm4moe",
        "glm4moe",
        "Glm4Moe",
        8,
        MOE
        | dict(head_dim=32, num_key_value_heads=2, n_group=1, topk_group=1, norm_topk_prob=True)
        | dict(use_qk_norm=True, attention_bias=True),
        draft=True,
        draft_head=True,
    ),
]


def build(m: Model) -> torch.nn.Module:
    rope = {"rope_type": "yarn" if m.scaling else "default", "rope_theta": 10_000.0, **m.scaling}
    if m.kind == "Glm4Moe":
        rope["partial_rotary_factor"] = 0.5
    more = dict(m.config)
    if "index_topk" in more:
        more["indexer_types"] = ["full", "full", "shared", "full"][: m.layers]
    config = getattr(transformers, f"{m.kind}Config")(
        **{
            "vocab_size": m.vocabulary,
            "hidden_size": m.hidden,
            "intermediate_size": m.feed_forward,
            "moe_intermediate_size": m.expert,
            "n_shared_experts": m.shared,
            "num_hidden_layers": m.layers,
            "num_attention_heads": m.heads,
            "num_key_value_heads": m.heads,
            "rms_norm_eps": m.eps,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "rope_parameters": rope,
            "bos_token_id": None,
            "eos_token_id": None,
            "pad_token_id": None,
            "attn_implementation": "eager",
            **more,
        }
    )
    return getattr(transformers, f"{m.kind}ForCausalLM")(config).float().eval()


def fill(model: torch.nn.Module, m: Model, seed: int) -> torch.Tensor:
    """Weights that spread logits by a few units and give routers and indexers some contrast; the prompt."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        named = dict(model.named_parameters())
        named |= {n: b for n, b in model.named_buffers() if n.endswith("e_score_correction_bias")}
        for name, p in sorted(named.items()):
            r = torch.randn(p.shape, generator=g)
            if name.endswith("e_score_correction_bias"):
                p.copy_(r * 0.05)
                continue
            if name.endswith("bias"):
                r = r * 0.1
            elif "norm" in name:
                r = 1.0 + 0.1 * r
            elif "embed_tokens" not in name:
                r = r * p.shape[-1] ** -0.5
            p.copy_(r.to(torch.bfloat16).float())
    return torch.randint(2, m.vocabulary, (1, PREFILL), generator=g)


class Draft:
    """The block that drafts tokens: transformers' own model with one layer, over what is made of a hidden state and the
    token after it (DeepSeek-V3, section 2.2)."""

    def __init__(self, trunk: torch.nn.Module, m: Model):
        config = m.config | dict(first_k_dense_replace=0)
        self.block = build(replace(m, layers=1, config=config))
        fill(self.block, m, 1000 + m.seed)
        if not m.draft_head:
            self.block.model.embed_tokens, self.block.lm_head = trunk.model.embed_tokens, trunk.lm_head
        g = torch.Generator().manual_seed(2000 + m.seed)
        self.enorm, self.hnorm = ((1.0 + 0.1 * torch.randn(m.hidden, generator=g)) for _ in range(2))
        projection = torch.randn(m.hidden, 2 * m.hidden, generator=g) * (2 * m.hidden) ** -0.5
        self.eh_proj = projection.to(torch.bfloat16).float()
        self.eps = m.eps

    def normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * weight

    def joined(self, hidden: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        embedded = self.block.model.embed_tokens(tokens)
        both = torch.cat((self.normed(embedded, self.enorm), self.normed(hidden, self.hnorm)), -1)
        return both @ self.eh_proj.T

    @torch.no_grad()
    def reference(self, trunk: torch.nn.Module, prompt: torch.Tensor) -> dict[str, np.ndarray]:
        """Logits after every token of the prompt but the first, and of one step more from the block's own result."""
        hidden = trunk.model(input_ids=prompt, use_cache=False).last_hidden_state[:, :-1]
        inputs = self.joined(hidden, prompt[:, 1:])
        results = self.block.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        logits = self.block.lm_head(results)[0]
        token = logits[-1].argmax()[None, None]
        inputs = torch.cat((inputs, self.joined(results[:, -1:], token)), 1)
        results = self.block.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        return {
            "draft_logits": logits.numpy().copy(),
            "draft_next_logits": self.block.lm_head(results)[0, -1].numpy().copy(),
        }

    def tensors(self, m: Model) -> dict[str, torch.Tensor]:
        one = replace(m, layers=1)
        block = tensors(one, self.block.config, self.block.state_dict())
        out = {f"blk.{m.layers}.{name[6:]}": value for name, value in block.items() if name.startswith("blk.0.")}
        own = {"shared_head_norm": "output_norm"}
        if m.draft_head:
            own |= {"embed_tokens": "token_embd", "shared_head_head": "output"}
        parts = {name: block[f"{source}.weight"] for name, source in own.items()}
        parts |= {"enorm": self.enorm, "hnorm": self.hnorm, "eh_proj": self.eh_proj}
        return out | {f"blk.{m.layers}.nextn.{name}.weight": value for name, value in parts.items()}


class Watch:
    """Sees what routers and indexers choose, and by how much."""

    def __init__(self, model: torch.nn.Module):
        self.gaps = {name: [] for name in GAPS_LEAST}
        self.chosen = []
        self.top_k = getattr(model.config, "index_topk", None)
        for name, module in model.named_modules():
            if name.endswith("mlp.gate"):
                module.register_forward_hook(self.router)
            if name.endswith("indexer"):
                module.register_forward_hook(lambda module, _, out: self.chosen.append((module.layer_idx, out[0].clone())))
        self.used = model.config.num_experts_per_tok

    def router(self, module, inputs, _):
        logits = torch.nn.functional.linear(inputs[0].reshape(-1, inputs[0].shape[-1]).float(), module.weight.float())
        bias = getattr(module, "e_score_correction_bias", None)
        scores = logits if bias is None else logits.sigmoid() + bias
        best = scores.topk(self.used + 1, -1).values
        self.gaps["router"].append(float((best[:, -2] - best[:, -1]).min()))

    def topk(self, original):
        def watched(tensor, k, dim=-1, **more):
            if tensor.dim() == 3 and tensor.shape[-1] > k == self.top_k:
                best = original(tensor, k + 1, dim=dim).values
                gaps = (best[..., -2] - best[..., -1])[best[..., -1] > -1e30]
                self.gaps["indexer"].extend([float(gaps.min())] if gaps.numel() else [])
            return original(tensor, k, dim=dim, **more)

        return watched


@torch.no_grad()
def run(model: torch.nn.Module, prompt: torch.Tensor) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    watch = Watch(model)
    original = torch.Tensor.topk
    torch.Tensor.topk = watch.topk(original)
    cache = DynamicCache(config=model.config)
    out = model(input_ids=prompt, past_key_values=cache, use_cache=True)
    logits, chosen = out.logits[0], list(watch.chosen)
    greedy, steps, last = [], [], logits[-1]
    for _ in range(DECODE):
        best = original(last, 2).values
        watch.gaps["greedy"].append(float(best[0] - best[1]))
        greedy.append(int(last.argmax()))
        last = model(input_ids=torch.tensor([[greedy[-1]]]), past_key_values=cache, use_cache=True).logits[0, -1]
        steps.append(last)
    torch.Tensor.topk = original
    reference = {
        "tokens": prompt[0].numpy().astype(np.int32),
        "logits": logits.numpy().copy(),
        "decode_tokens": np.array(greedy, dtype=np.int32),
        "decode_logits": torch.stack(steps).numpy().copy(),
    }
    if watch.top_k:
        # The same weights without sparsity: an indexer that chooses everything.
        for module in model.modules():
            if hasattr(module, "index_topk"):
                module.index_topk = 1 << 20
        reference["dense_logits"] = model(input_ids=prompt, use_cache=False).logits[0].numpy().copy()
        for layer, positions in chosen:
            reference[f"selected.{layer}"] = positions.numpy().astype(np.int32)
    for module in model.modules():
        module._forward_hooks.clear()
        if hasattr(module, "index_topk"):
            module.index_topk = watch.top_k
    return reference, {name: min(gaps) for name, gaps in watch.gaps.items() if gaps}


def metadata(w: gguf.GGUFWriter, m: Model, c) -> None:
    w.add_name(m.name)
    w.add_license("cc0-1.0")
    w.add_block_count(m.layers + int(m.draft))
    if m.draft:
        w.add_nextn_predict_layers(1)
    w.add_context_length(512)
    w.add_embedding_length(m.hidden)
    w.add_feed_forward_length(m.feed_forward)
    w.add_head_count(m.heads)
    w.add_layer_norm_rms_eps(m.eps)
    w.add_rope_freq_base(10_000.0)
    w.add_vocab_size(m.vocabulary)
    w.add_expert_count(c.n_routed_experts)
    w.add_expert_used_count(c.num_experts_per_tok)
    w.add_expert_feed_forward_length(m.expert)
    w.add_expert_shared_count(m.shared)
    w.add_leading_dense_block_count(1)
    w.add_expert_weights_scale(c.routed_scaling_factor)
    w.add_expert_weights_norm(bool(c.norm_topk_prob))
    softmax = m.kind == "DeepseekV2"
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX if softmax else gguf.ExpertGatingFuncType.SIGMOID)
    if not softmax:
        w.add_expert_group_count(c.n_group)
        w.add_expert_group_used_count(c.topk_group)
    w.add_tokenizer_model("none")
    if m.kind == "Glm4Moe":
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
        w.add_rope_dimension_count(c.head_dim // 2)
        return
    w.add_rope_dimension_count(c.qk_rope_head_dim)
    w.add_kv_lora_rank(c.kv_lora_rank)
    if c.q_lora_rank:
        w.add_q_lora_rank(c.q_lora_rank)
    head = c.qk_nope_head_dim + c.qk_rope_head_dim
    if m.legacy:
        w.add_head_count_kv(m.heads)
        w.add_key_length(head)
        w.add_value_length(c.v_head_dim)
    else:
        w.add_head_count_kv(1)
        w.add_key_length(c.kv_lora_rank + c.qk_rope_head_dim)
        w.add_value_length(c.kv_lora_rank)
        w.add_key_length_mla(head)
        w.add_value_length_mla(c.v_head_dim)
    if m.scaling:
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(m.scaling["factor"])
        w.add_rope_scaling_orig_ctx_len(m.scaling["original_max_position_embeddings"])
        w.add_float32("deepseek2.rope.scaling.yarn_log_multiplier", 0.1 * m.scaling["mscale_all_dim"])
    if "index_topk" in m.config:
        prefix = f"{m.architecture}.attention."
        w.add_uint32(prefix + "indexer.head_count", c.index_n_heads)
        w.add_uint32(prefix + "indexer.key_length", c.index_head_dim)
        w.add_uint32(prefix + "indexer.top_k", c.index_topk)
        w.add_array(prefix + "indexer.types", [kind == "full" for kind in c.indexer_types] + [True] * m.draft)


PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "attn_output": "self_attn.o_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_layernorm",
    "attn_q_b": "self_attn.q_b_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_a_norm": "self_attn.kv_a_layernorm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "indexer.k_norm": "self_attn.indexer.k_norm",
    "indexer.proj": "self_attn.indexer.weights_proj",
    "indexer.attn_k": "self_attn.indexer.wk",
    "indexer.attn_q_b": "self_attn.indexer.wq_b",
    "ffn_gate_inp": "mlp.gate",
    **{f"ffn_{x}": f"mlp.{x}_proj" for x in ("gate", "up", "down")},
    **{f"ffn_{x}_shexp": f"mlp.shared_experts.{x}_proj" for x in ("gate", "up", "down")},
}


def tensors(m: Model, c, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Every tensor of the file by its name there."""
    out = {"token_embd.weight": state["model.embed_tokens.weight"], "output_norm.weight": state["model.norm.weight"]}
    out["output.weight"] = state["lm_head.weight"]
    skipped = {"post_attention_norm" if m.kind != "Glm4Moe" else "ffn_norm"}
    for layer in range(m.layers):
        source, block = f"model.layers.{layer}.", f"blk.{layer}."
        for part, name in PARTS.items():
            for suffix in ("weight", "bias"):
                value = state.get(f"{source}{name}.{suffix}")
                if value is not None and part not in skipped:
                    out[f"{block}{part}.{suffix}"] = value
        both = out.get(block + "attn_kv_b.weight")
        if both is not None and not m.legacy:
            del out[block + "attn_kv_b.weight"]
            both = both.view(m.heads, -1, both.shape[-1])
            out[block + "attn_k_b.weight"] = both[:, : c.qk_nope_head_dim].transpose(1, 2)
            out[block + "attn_v_b.weight"] = both[:, c.qk_nope_head_dim :]
        bias = state.get(source + "mlp.gate.e_score_correction_bias")
        if bias is not None:
            out[block + "exp_probs_b.bias"] = bias
        gate_up = state.get(source + "mlp.experts.gate_up_proj")
        if gate_up is not None:
            out[block + "ffn_gate_exps.weight"] = gate_up[:, : m.expert]
            out[block + "ffn_up_exps.weight"] = gate_up[:, m.expert :]
            out[block + "ffn_down_exps.weight"] = state[source + "mlp.experts.down_proj"]
    return out


def write(path: Path, m: Model, c, values: dict[str, torch.Tensor]) -> None:
    w = gguf.GGUFWriter(str(path), m.architecture)
    metadata(w, m, c)
    for name, value in values.items():
        value = value.float().contiguous().numpy()
        if value.ndim >= 2 and not name.endswith("ffn_gate_inp.weight"):
            w.add_tensor(name, gguf.quants.quantize(value, Type.BF16), raw_dtype=Type.BF16)
        else:
            w.add_tensor(name, value)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def quality(gaps: dict[str, float]) -> float:
    """At least 1 where no gap is too small."""
    return min(gaps[name] / GAPS_LEAST[name] for name in gaps)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=DATA)
    ap.add_argument("--search", type=int, metavar="N", help="only print the best of each model's first N seeds")
    ap.add_argument("--only", help="the one model of this name")
    args = ap.parse_args()
    # One thread: the order of sums, and with it the last bit of the logits, must not depend on the machine's cores.
    torch.set_num_threads(1)
    for m in MODELS:
        if args.only not in (None, m.name):
            continue
        model = build(m)
        if args.search:
            found = [(quality(run(model, fill(model, m, seed))[1]), seed) for seed in range(args.search)]
            print(m.name, max(found), flush=True)
            continue
        reference, gaps = run(model, fill(model, m, m.seed))
        assert quality(gaps) >= 1.0, f"{m.name}: gaps {gaps}, try another seed"
        values = tensors(m, model.config, model.state_dict())
        if m.draft:
            draft = Draft(model, m)
            reference |= draft.reference(model, torch.from_numpy(reference["tokens"]).long()[None])
            values |= draft.tensors(m)
        args.out.mkdir(parents=True, exist_ok=True)
        paths = [args.out / f"{m.name}.{end}" for end in ("gguf", "safetensors")]
        write(paths[0], m, model.config, values)
        save_file(reference, paths[1])
        print(f"{m.name}: logits std {reference['logits'].std():.2f}, gaps {gaps}")
        for path in paths:
            print(f"  {path.name} {path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
