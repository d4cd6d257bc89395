#!/usr/bin/env python3
"""Reference logits of Gemma-3-270M from its Q4_K_M GGUF, by transformers in f32, beyond the window of 512 positions.

What lives here: which file, and how the result is thinned out. The model itself is not committed: `tools/fetch-gemma3`
fetches it (Gemma terms of use).
"""

import argparse
import hashlib
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import numpy as np
import torch
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from smollm2_logits import TEXT

OUT = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "data" / "gemma3-logits.safetensors"
SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# The text as often as the window and some more takes; and candidates kept of every position.
TIMES = 4
TOP = 8


@torch.no_grad()
def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", type=Path)
    ap.add_argument("--out", type=Path, default=OUT)
    args = ap.parse_args()
    assert hashlib.sha256(args.model.read_bytes()).hexdigest() == SHA256, "not the file of tools/fetch-gemma3"
    torch.set_num_threads(1)
    where = dict(pretrained_model_name_or_path=str(args.model.parent), gguf_file=args.model.name)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()
    tokens = [2] + tokenizer(TEXT * TIMES, add_special_tokens=False)["input_ids"]
    assert len(tokens) > model.config.sliding_window + 64, len(tokens)
    logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]
    best = logits.topk(TOP)
    result = {
        "text.tokens": np.array(tokens, dtype=np.int32),
        "text.top_ids": best.indices.numpy().astype(np.int32),
        "text.top_logits": best.values.numpy().copy(),
        "text.logsumexp": logits.double().logsumexp(-1).float().numpy(),
    }
    save_file(result, args.out)
    print(len(tokens), "tokens; the last one's best:", best.indices[-1, :5].tolist(), best.values[-1, :5].tolist())
    prompt = model(input_ids=torch.tensor([[2, 818, 5279, 529, 7001, 563]])).logits[0, -1].topk(5)
    print("prompt", prompt.indices.tolist(), [round(v, 5) for v in prompt.values.tolist()])
    print(args.out.name, args.out.stat().st_size, hashlib.sha256(args.out.read_bytes()).hexdigest()[:16])


if __name__ == "__main__":
    main()
