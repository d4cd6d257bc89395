#!/usr/bin/env python3
"""Writes the trained demo model as GGUF (architecture `glm-dsa`, f32) with its vocabulary, from train.py's files.

usage: export.py RUN TOKENIZER OUT.gguf      (RUN: folder with glm-*.safetensors; TOKENIZER: tokenizer.json of tokens.py)

Needs gguf, numpy and safetensors. plan.txt beside this script says which type every tensor is quantized to afterwards.
"""
import argparse
import json
import pathlib

import gguf
import numpy
from safetensors import safe_open

TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def load(run):
    tensors, config = {}, None
    for path in sorted(run.glob("glm-*.safetensors")):
        with safe_open(path, "numpy") as f:
            config = json.loads(f.metadata()["config"])
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors, config


def metadata(w, c):
    w.add_name("tombolo demo")
    w.add_size_label("6M")
    w.add_description("Learnt from the King James Bible, Shakespeare, Milton, Austen, Melville, Carroll and the addresses of "
                      "US presidents until 1934. It continues text; it knows nothing and follows no instructions.")
    w.add_license("cc0-1.0")
    w.add_block_count(c["layers"] + 1)
    w.add_uint32("glm-dsa.nextn_predict_layers", 1)
    w.add_context_length(c["context"])
    w.add_embedding_length(c["hidden"])
    w.add_feed_forward_length(c["dense_width"])
    w.add_vocab_size(c["vocabulary"])
    w.add_head_count(c["heads"])
    w.add_head_count_kv(1)
    w.add_key_length(c["kv_rank"] + c["rope"])
    w.add_value_length(c["kv_rank"])
    w.add_key_length_mla(c["nope"] + c["rope"])
    w.add_value_length_mla(c["value"])
    w.add_q_lora_rank(c["q_rank"])
    w.add_kv_lora_rank(c["kv_rank"])
    w.add_layer_norm_rms_eps(c["eps"])
    w.add_layer_norm_eps(c["index_eps"])
    w.add_rope_dimension_count(c["rope"])
    w.add_rope_freq_base(c["rope_base"])
    w.add_uint32("glm-dsa.attention.indexer.head_count", c["index_heads"])
    w.add_uint32("glm-dsa.attention.indexer.key_length", c["index_dim"])
    w.add_uint32("glm-dsa.attention.indexer.top_k", c["index_top"])
    w.add_expert_count(c["experts"])
    w.add_expert_used_count(c["experts_used"])
    w.add_expert_shared_count(1)
    w.add_expert_feed_forward_length(c["expert_width"])
    w.add_leading_dense_block_count(c["dense_layers"])
    w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    w.add_expert_weights_norm(True)
    w.add_expert_weights_scale(c["expert_scale"])
    w.add_expert_group_count(1)
    w.add_expert_group_used_count(1)


def vocabulary(w, path):
    model = json.load(open(path))
    ids = model["model"]["vocab"]
    tokens = sorted(ids, key=ids.get)
    special = {t["content"] for t in model["added_tokens"]}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["model"]["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("llama-bpe")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in special else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    end = ids["<|endoftext|>"]
    w.add_bos_token_id(end)  # a document begins behind the end of the one before
    w.add_eos_token_id(end)
    w.add_pad_token_id(end)
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)
    w.add_chat_template(TEMPLATE)
    return len(tokens)


def blocks(t, c):
    """GGUF's names and shapes. kv_b's key half is transposed per head: it maps a head's query into the latent space."""
    yield "token_embd.weight", t["token_embd"]
    yield "output_norm.weight", t["output_norm"]
    for i in range(c["layers"] + 1):
        source, name = f"blk.{i}.", f"blk.{i}."
        for theirs, ours in (("attn_norm", "attn_norm"), ("attn_q_a", "attn.q_a"), ("attn_q_a_norm", "attn.q_a_norm"),
                             ("attn_q_b", "attn.q_b"), ("attn_kv_a_mqa", "attn.kv_a_mqa"), ("attn_kv_a_norm", "attn.kv_a_norm"),
                             ("attn_output", "attn.output"), ("ffn_norm", "ffn_norm"), ("indexer.attn_q_b", "attn.indexer.q_b"),
                             ("indexer.attn_k", "attn.indexer.k"), ("indexer.proj", "attn.indexer.proj")):
            yield f"{name}{theirs}.weight", t[source + ours]
        k_b = t[source + "attn.k_b"].reshape(c["heads"], c["nope"], c["kv_rank"])
        yield f"{name}attn_k_b.weight", k_b.transpose(0, 2, 1)
        yield f"{name}attn_v_b.weight", t[source + "attn.v_b"].reshape(c["heads"], c["value"], c["kv_rank"])
        yield f"{name}indexer.k_norm.weight", t[source + "attn.indexer.k_norm_weight"]
        yield f"{name}indexer.k_norm.bias", t[source + "attn.indexer.k_norm_bias"]
        if i < c["dense_layers"]:
            for part in ("gate", "up", "down"):
                yield f"{name}ffn_{part}.weight", t[f"{source}ffn.{part}"]
        else:
            yield f"{name}ffn_gate_inp.weight", t[source + "ffn.gate_inp"]
            yield f"{name}exp_probs_b.bias", t[source + "ffn.bias"]
            for part in ("gate", "up", "down"):
                yield f"{name}ffn_{part}_exps.weight", t[f"{source}ffn.{part}"]
                yield f"{name}ffn_{part}_shexp.weight", t[f"{source}ffn.shared.{part}"]
    last = f"blk.{c['layers']}.nextn."
    for part in ("eh_proj", "enorm", "hnorm", "shared_head_norm"):
        yield f"{last}{part}.weight", t[part]


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("run", type=pathlib.Path)
    arguments.add_argument("tokenizer", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    options = arguments.parse_args()
    tensors, c = load(options.run)
    w = gguf.GGUFWriter(options.out, "glm-dsa")
    metadata(w, c)
    if vocabulary(w, options.tokenizer) != c["vocabulary"]:
        raise SystemExit("the vocabulary has another size than the model")
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    total = 0
    for name, tensor in blocks(tensors, c):
        w.add_tensor(name, numpy.ascontiguousarray(tensor, dtype=numpy.float32))
        total += tensor.size
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{options.out}: {total} parameters")


if __name__ == "__main__":
    main()
