#!/usr/bin/env python3
"""Holds the demo's PyTorch model against transformers' GlmMoeDsaForCausalLM, which reads the exported GGUF: same logits
(<= 1e-4), with the indexer choosing and without.

usage: verify.py RUN FILE.gguf [--tokens N] [--random]
       verify.py --random TOKENIZER    makes a model with random weights everywhere, exports it and checks that
"""
import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import gguf
import numpy
import torch
from safetensors.torch import load_file, save_file
from transformers import GlmMoeDsaConfig, GlmMoeDsaForCausalLM
from transformers.models.glm_moe_dsa import modeling_glm_moe_dsa

from model import Config, Glm


def ours(run):
    state, config = {}, None
    for path in sorted(run.glob("glm-*.safetensors")):
        state.update(load_file(path))
        with open(path, "rb") as f:
            config = json.loads(json.loads(f.read(int.from_bytes(f.read(8), "little")))["__metadata__"]["config"])
    model = Glm(Config(**config))
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not unexpected and all(m.endswith("load") for m in missing), (missing, unexpected)
    return model.eval()


def theirs(path, dense=False):
    """transformers' model with the weights of a GGUF file (without the MTP layer, which it does not have)."""
    reader = gguf.GGUFReader(path)
    key = lambda name: reader.fields[f"glm-dsa.{name}"].contents()
    t = {x.name: torch.from_numpy(numpy.array(gguf.quants.dequantize(x.data, x.tensor_type), dtype=numpy.float32).copy()) for x in reader.tensors}
    layers, heads = key("block_count") - key("nextn_predict_layers"), key("attention.head_count")
    rope, nope = key("rope.dimension_count"), key("attention.key_length_mla") - key("rope.dimension_count")
    hidden, leading = key("embedding_length"), key("leading_dense_block_count")
    config = GlmMoeDsaConfig(
        vocab_size=key("vocab_size"), hidden_size=hidden, intermediate_size=key("feed_forward_length"),
        moe_intermediate_size=key("expert_feed_forward_length"), num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, n_shared_experts=1, n_routed_experts=key("expert_count"),
        num_experts_per_tok=key("expert_used_count"), first_k_dense_replace=leading, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=key("expert_weights_scale"), q_lora_rank=key("attention.q_lora_rank"),
        kv_lora_rank=key("attention.kv_lora_rank"), qk_nope_head_dim=nope, qk_rope_head_dim=rope,
        v_head_dim=key("attention.value_length_mla"), index_topk=10**6 if dense else key("attention.indexer.top_k"),
        index_head_dim=key("attention.indexer.key_length"), index_n_heads=key("attention.indexer.head_count"),
        indexer_types=["full"] * layers, rms_norm_eps=key("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=key("context_length"), tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": key("rope.freq_base")}, attn_implementation="eager")
    model = GlmMoeDsaForCausalLM(config).float().eval()
    for module in model.modules():  # GGUF has one eps for all RMSNorms
        if isinstance(module, modeling_glm_moe_dsa.GlmMoeDsaRMSNorm):
            module.variance_epsilon = config.rms_norm_eps
    state = {"model.embed_tokens.weight": t["token_embd.weight"], "model.norm.weight": t["output_norm.weight"],
             "lm_head.weight": t["token_embd.weight"]}
    for i in range(layers):
        b, m = f"blk.{i}.", f"model.layers.{i}."
        for a, z in (("attn_norm", "input_layernorm"), ("ffn_norm", "post_attention_layernorm"), ("attn_q_a", "self_attn.q_a_proj"),
                     ("attn_q_a_norm", "self_attn.q_a_layernorm"), ("attn_q_b", "self_attn.q_b_proj"),
                     ("attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"), ("attn_kv_a_norm", "self_attn.kv_a_layernorm"),
                     ("attn_output", "self_attn.o_proj"), ("indexer.attn_q_b", "self_attn.indexer.wq_b"),
                     ("indexer.attn_k", "self_attn.indexer.wk"), ("indexer.k_norm", "self_attn.indexer.k_norm"),
                     ("indexer.proj", "self_attn.indexer.weights_proj")):
            state[f"{m}{z}.weight"] = t[f"{b}{a}.weight"]
        state[f"{m}self_attn.indexer.k_norm.bias"] = t[f"{b}indexer.k_norm.bias"]
        state[f"{m}self_attn.kv_b_proj.weight"] = torch.cat((t[f"{b}attn_k_b.weight"].transpose(1, 2), t[f"{b}attn_v_b.weight"]), 1).flatten(0, 1)
        if i < leading:
            for part in ("gate", "up", "down"):
                state[f"{m}mlp.{part}_proj.weight"] = t[f"{b}ffn_{part}.weight"]
        else:
            state[f"{m}mlp.gate.weight"] = t[f"{b}ffn_gate_inp.weight"]
            state[f"{m}mlp.gate.e_score_correction_bias"] = t[f"{b}exp_probs_b.bias"]
            state[f"{m}mlp.experts.gate_up_proj"] = torch.cat((t[f"{b}ffn_gate_exps.weight"], t[f"{b}ffn_up_exps.weight"]), 1)
            state[f"{m}mlp.experts.down_proj"] = t[f"{b}ffn_down_exps.weight"]
            for part in ("gate", "up", "down"):
                state[f"{m}mlp.shared_experts.{part}_proj.weight"] = t[f"{b}ffn_{part}_shexp.weight"]
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert not missing and not unexpected, (missing, unexpected)
    return model


def randomised(out):
    """A model in which every weight matters: no zeros, norms and biases spread."""
    generator = torch.Generator().manual_seed(7)
    model = Glm(Config())
    state = {}
    for name, p in model.state_dict().items():
        r = torch.randn(p.shape, generator=generator)
        flat = p.dim() < 2
        state[name] = (0.1 * r + (0.0 if "bias" in name else 1.0)) if flat else r * p.shape[-1] ** -0.5
        if name == "token_embd":
            state[name] = r
    state = {n: t for n, t in state.items() if not n.endswith("load")}
    save_file(state, out / "glm-0.safetensors", metadata={"config": json.dumps(dataclasses.asdict(model.c))})


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=pathlib.Path)
    arguments.add_argument("file", type=pathlib.Path, nargs="?")
    arguments.add_argument("--tokens", type=int, default=160)
    arguments.add_argument("--random", action="store_true")
    o = arguments.parse_args()
    if o.random:
        scratch = pathlib.Path(tempfile.mkdtemp())
        randomised(scratch)
        tokenizer, o.run, o.file = o.run, scratch, scratch / "random.gguf"
        subprocess.run([sys.executable, pathlib.Path(__file__).with_name("export.py"), scratch, tokenizer, o.file], check=True)
    model = ours(o.run)
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, model.c.vocabulary, (1, o.tokens), generator=generator)
    worst = 0.0
    with torch.no_grad():
        result = {}
        for mode in ("sparse-eval", "dense-eval"):
            a = model.logits(model.trunk(ids, mode)[0])[0]
            b = theirs(o.file, dense=mode == "dense-eval")(input_ids=ids, use_cache=False).logits[0]
            result[mode] = a
            print(f"{mode}: largest difference {(a - b).abs().max():.2e}, same best token {(a.argmax(-1) == b.argmax(-1)).float().mean():.4f}")
            worst = max(worst, (a - b).abs().max().item())
        print(f"the indexer changes logits by up to {(result['sparse-eval'] - result['dense-eval']).abs().max():.3f}")
    sys.exit(worst > 1e-4)


if __name__ == "__main__":
    main()
