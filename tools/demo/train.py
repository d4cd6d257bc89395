#!/usr/bin/env python3
"""Trains the demo model and a dense model of the same size, one after the other, on one GPU in a few minutes.

usage: train.py DATA OUT [--minutes M] [--epochs E] [--only glm|dense] ...     (DATA: tokens.npz of tokens.py)

Three phases: dense attention over 512 positions; over 1024, the indexer learning beside it; over 1024, attention reading
only what the indexer chose. The dense model sees the same tokens in the same lengths. Matrices are trained by Muon
(momentum made orthogonal; Jordan et al., 2024), all else by AdamW. Router biases follow the load of their experts without
a loss of their own (DeepSeek-V3's report). Every number that is drawn comes from one seed.

Writes to OUT: glm-0.safetensors, glm-1.safetensors (f32; anew every 30 s), curve.csv (bits per byte over time, train and
held-out), samples.txt, metrics.json. Needs torch, numpy and safetensors; reads nothing else.
"""
import argparse
import csv
import dataclasses
import json
import math
import pathlib
import time

import numpy
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from model import Config, Glm, dense_like

PROMPTS = ("Once upon a time", "In the beginning", "It is a truth universally acknowledged, that", "The whale",
           "ROMEO.\n")


def options():
    a = argparse.ArgumentParser()
    a.add_argument("data", type=pathlib.Path)
    a.add_argument("out", type=pathlib.Path)
    a.add_argument("--minutes", type=float, default=3.0, help="for the GLM; the dense model takes as many steps")
    a.add_argument("--epochs", type=float, default=20.0, help="at most")
    a.add_argument("--batch-tokens", type=int, default=24576)
    a.add_argument("--short", type=int, default=512, help="positions of the first phase")
    a.add_argument("--phases", type=float, nargs=2, default=(0.6, 0.75), help="where warming and sparse attention begin")
    a.add_argument("--muon-lr", type=float, default=0.02)
    a.add_argument("--adam-lr", type=float, default=0.003)
    a.add_argument("--decay", type=float, default=0.1)
    a.add_argument("--mtp-weight", type=float, default=0.2)
    a.add_argument("--bias-step", type=float, default=0.003, help="falls with time")
    a.add_argument("--seed", type=int, default=2026)
    a.add_argument("--only", choices=("glm", "dense"))
    a.add_argument("--config", default="{}", help="JSON; fields of Config")
    a.add_argument("--heldout-tokens", type=int, default=1 << 30, help="of the held-out text, for trials")
    a.add_argument("--evals", type=int, default=16)
    return a.parse_args()


class Data:
    def __init__(self, path, device, heldout_tokens):
        z = numpy.load(path)
        self.train = torch.from_numpy(z["train"].astype(numpy.int32)).to(device)
        self.heldout = torch.from_numpy(z["heldout"].astype(numpy.int64))[:heldout_tokens].to(device)
        self.source = torch.from_numpy(z["heldout_source"].astype(numpy.int64))[:heldout_tokens].to(device)
        self.names, self.source_bytes = [str(s) for s in z["sources"]], z["source_bytes"].tolist()
        self.whole = heldout_tokens >= len(z["heldout"])
        self.bytes = int(z["heldout_bytes"]) if self.whole else len(self.heldout) * int(z["heldout_bytes"]) / len(z["heldout"])
        self.tokens_per_byte = len(z["heldout"]) / int(z["heldout_bytes"])

    def batch(self, rows, positions, generator):
        """[rows, positions + 1] ids from anywhere in the training text."""
        start = torch.randint(len(self.train) - positions - 1, (rows, 1), generator=generator, device=self.train.device)
        return self.train[start + torch.arange(positions + 1, device=start.device)].long()


class Muon:
    """Momentum made nearly orthogonal by a Newton-Schulz iteration; matrices of one shape go through it together."""

    def __init__(self, matrices, decay):
        self.groups, self.decay = {}, decay
        for p in matrices:
            rows, columns = p.shape[-2:]
            self.groups.setdefault((rows, columns), []).append(p)
        self.momentum = {s: torch.zeros(sum(math.prod(p.shape[:-2]) for p in ps), *s, device=ps[0].device)
                         for s, ps in self.groups.items()}

    @torch.no_grad()
    def step(self, lr, beta=0.95):
        for shape, ps in self.groups.items():
            grads = torch.cat([p.grad.reshape(-1, *shape) for p in ps]).float()
            momentum = self.momentum[shape].lerp_(grads, 1 - beta)
            x = grads.lerp(momentum, beta)
            if shape[0] > shape[1]:
                x = x.transpose(1, 2)
            x = x.bfloat16() if x.is_cuda else x
            x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
            for _ in range(5):
                y = x @ x.transpose(1, 2)
                x = 3.4445 * x + (-4.7750 * y + 2.0315 * y @ y) @ x
            if shape[0] > shape[1]:
                x = x.transpose(1, 2)
            x = x.float() * max(1.0, shape[0] / shape[1]) ** 0.5
            at = 0
            for p in ps:
                n = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - lr * self.decay).sub_(x[at:at + n].reshape(p.shape), alpha=lr)
                at += n


def split(model):
    """Which parameters Muon trains, which AdamW: embedding, norms, router and indexer."""
    muon, adam = [], []
    for name, p in model.named_parameters():
        small = p.dim() < 2 or name == "token_embd" or "gate_inp" in name or "indexer" in name
        (adam if small else muon).append((name, p))
    return [p for _, p in muon], adam


@torch.no_grad()
def evaluate(model, data, mode, bf16=True, mtp=False):
    """Bits per byte of the held-out text, every token with 512 to 1023 tokens before it (the first 512 with fewer)."""
    c, device = model.c, data.heldout.device
    model.eval()
    length, half = c.context, c.context // 2
    starts = list(range(0, max(1, len(data.heldout) - half - 1), half))
    nats = torch.zeros(len(data.names), device=device, dtype=torch.float64)
    same = overlap = count = 0.0
    rows = 16 if device.type == "cuda" else 2
    for i in range(0, len(starts), rows):
        part = starts[i:i + rows]
        lengths = {min(length, len(data.heldout) - 1 - s) for s in part}
        for n in lengths:
            group = [s for s in part if min(length, len(data.heldout) - 1 - s) == n]
            ids = torch.stack([data.heldout[s:s + n + 1] for s in group])
            source = torch.stack([data.source[s + 1:s + n + 1] for s in group])
            fresh = torch.stack([torch.arange(n, device=device) >= (0 if s == 0 else half) for s in group])
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
                h, _ = model.trunk(ids[:, :-1], mode)
                logits = model.logits(h).float()
                if mtp:
                    g, _ = model.mtp(h[:, :-1], ids[:, 1:-1], mode)
                    drafted, checked, use = model.logits(g).float(), logits[:, 1:], fresh[:, 1:]
                    same += (drafted.argmax(-1) == checked.argmax(-1))[use].sum().item()
                    overlap += torch.minimum(drafted.softmax(-1), checked.softmax(-1)).sum(-1)[use].sum().item()
                    count += use.sum().item()
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
            nats.index_add_(0, source.flatten(), loss.double() * fresh.flatten())
    model.train()
    result = {"bits_per_byte": nats.sum().item() / math.log(2) / data.bytes}
    if data.whole:
        result["by_source"] = {n: round(x / math.log(2) / b, 4) for n, x, b in zip(data.names, nats.tolist(), data.source_bytes)}
    if mtp:
        result["mtp_same_top"] = same / count  # a greedy draft is accepted
        result["mtp_overlap"] = overlap / count  # a sampled draft is accepted, at temperature 1
    return result


def losses(model, ids, mode, mtp_weight):
    """What a step minimises, and its parts: next token, the one after (MTP), the indexers."""
    h, index = model.trunk(ids[:, :-1], mode)
    main = F.cross_entropy(model.logits(h).flatten(0, 1).float(), ids[:, 1:].flatten())
    parts = {"main": main}
    total = main
    if isinstance(model, Glm):
        g, loss = model.mtp(h[:, :-1], ids[:, 1:-1], mode)
        parts["mtp"] = F.cross_entropy(model.logits(g).flatten(0, 1).float(), ids[:, 2:].flatten())
        total = total + mtp_weight * parts["mtp"]
        index = [x for x in [*index, loss] if x is not None]
        if index:
            parts["indexer"] = sum(index) / len(index)
            total = total + sum(index)
    return total, parts


def save(model, out):
    """Two files, each small enough to be moved with ease."""
    state = {n: t.detach().float().contiguous().cpu() for n, t in model.state_dict().items() if not n.endswith("load")}
    names, half = sorted(state), sum(t.numel() for t in state.values()) / 2
    files, seen = ({}, {}), 0
    for name in names:
        files[seen >= half][name] = state[name]
        seen += state[name].numel()
    for i, tensors in enumerate(files):
        save_file(tensors, out / f"glm-{i}.safetensors", metadata={"config": json.dumps(dataclasses.asdict(model.c))})


def busiest(model):
    """How many times its fair share the busiest expert of any layer got, since the last call of `balance`."""
    return max((x.ffn.load.max() / x.ffn.load.mean().clamp(min=1)).item() for x in model.blk if hasattr(x.ffn, "load"))


def balance(model, step):
    """Raises the bias of experts that had little to do, lowers that of busy ones."""
    for block in model.blk:
        if hasattr(block.ffn, "load"):
            load = block.ffn.load
            block.ffn.bias += step * torch.sign(load.mean() - load)
            load.zero_()


def train(model, name, data, o, curve, steps=None):
    device, started = data.train.device, time.time()
    muon_part, adam_part = split(model)
    muon = Muon(muon_part, o.decay)
    adam = torch.optim.AdamW([{"params": [p for n, p in adam_part if p.dim() >= 2], "weight_decay": o.decay / 3},
                              {"params": [p for n, p in adam_part if p.dim() < 2], "weight_decay": 0.0}],
                             lr=o.adam_lr, betas=(0.9, 0.98), fused=device.type == "cuda")
    generator = torch.Generator(device=device).manual_seed(o.seed)
    most = int(o.epochs * len(data.train) / o.batch_tokens)
    warm, glm = 100, isinstance(model, Glm)
    saved, step, budget, best = time.time(), 0, o.minutes * 60, None
    logging = max(1, most // (o.evals * 4))
    while True:
        # how far along: by steps where their number is given, else by time or epochs, whichever ends first
        spent = time.time() - started
        done = max(step / steps if steps else 0, spent / budget if not steps else 0, step / most)
        if done >= 1:
            break
        long = done >= o.phases[0]
        mode = "dense" if not glm or not long else "warm" if done < o.phases[1] else "sparse"
        positions = model.c.context if long else min(o.short, model.c.context)
        rows = max(1, o.batch_tokens // positions)
        scale = min(1.0, (step + 1) / warm) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * done)))
        ids = data.batch(rows, positions, generator)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda"):
            loss, parts = losses(model, ids, mode, o.mtp_weight)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([p for _, p in adam_part], 1.0)
        for group in adam.param_groups:
            group["lr"] = o.adam_lr * scale
        adam.step()
        muon.step(o.muon_lr * scale)
        for p in model.parameters():
            p.grad = None
        step += 1
        if step % logging == 0 or step == 1:
            row = {"model": name, "step": step, "seconds": round(time.time() - started, 1), "mode": mode, "epochs": round(step * o.batch_tokens / len(data.train), 2)}
            bits = data.tokens_per_byte / math.log(2)
            row["train_bpb"] = round(parts["main"].item() * bits, 4)
            row["mtp_bpb"] = round(parts["mtp"].item() * bits, 4) if "mtp" in parts else ""
            row["indexer_loss"] = round(parts["indexer"].item(), 4) if "indexer" in parts else ""
            if glm:
                row["busiest"] = round(busiest(model), 2)
            if not math.isfinite(row["train_bpb"]):
                raise SystemExit(f"{name}: the loss is not finite at step {step}")
            if step % (logging * 4) == 0:
                found = evaluate(model, data, "sparse-eval" if mode == "sparse" else "dense-eval")["bits_per_byte"]
                row["heldout_bpb"] = round(found, 4)
                if (mode == "sparse" or not glm) and (best is None or found < best[0]):
                    best = (found, step, {n: t.clone() for n, t in model.state_dict().items()})
            curve.add(row)
        if glm:
            balance(model, o.bias_step * (1 if done < 0.5 else 0.3 if done < 0.9 else 0.03))
        if glm and time.time() - saved > 30:
            save(model, o.out)
            saved = time.time()
    if best and best[0] < evaluate(model, data, "sparse-eval" if glm else "dense-eval")["bits_per_byte"]:
        model.load_state_dict(best[2])
        print(f"{name}: step {best[1]} was the best on held-out text and is kept", flush=True)
    print(f"{name}: {step} steps, {time.time() - started:.0f} s, {step * o.batch_tokens / len(data.train):.1f} epochs", flush=True)
    return step


class Curve:
    columns = ("model", "step", "seconds", "epochs", "mode", "train_bpb", "mtp_bpb", "indexer_loss", "busiest", "heldout_bpb")

    def __init__(self, path):
        self.file = open(path, "w", newline="")
        self.csv = csv.DictWriter(self.file, self.columns, restval="")
        self.csv.writeheader()

    def add(self, row):
        self.csv.writerow(row)
        self.file.flush()
        print({k: v for k, v in row.items() if v != ""}, flush=True)


@torch.no_grad()
def sample(model, prompts, mode, tokens, temperature, generator):
    """Continues each prompt; plain and slow, without a cache."""
    model.eval()
    rows = []
    for prompt in prompts:
        ids = prompt.clone()
        for _ in range(tokens):
            h, _ = model.trunk(ids[None, -model.c.context:], mode)
            logits = model.logits(h[0, -1]).float()
            if temperature == 0:
                token = logits.argmax()[None]
            else:
                p = (logits / temperature).softmax(-1)
                p = torch.where(p >= p.max() * 0.05, p, 0)  # min-p
                token = torch.multinomial(p, 1, generator=generator)
            ids = torch.cat((ids, token))
        rows.append(ids.tolist())
    model.train()
    return rows


def main():
    o = options()
    o.out.mkdir(parents=True, exist_ok=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(o.seed)
    torch.set_float32_matmul_precision("highest")
    data = Data(o.data, device, o.heldout_tokens)
    c = Config(**json.loads(o.config))
    glm = Glm(c).to(device)
    dense = dense_like(glm).to(device)
    count = {"glm": sum(p.numel() for p in glm.parameters()), "dense": sum(p.numel() for p in dense.parameters())}
    mtp = sum(p.numel() for n, p in glm.named_parameters() if n.startswith(f"blk.{c.layers}.") or n in ("eh_proj", "enorm", "hnorm", "shared_head_norm"))
    idle = (c.experts - c.experts_used) * 3 * c.hidden * c.expert_width * (c.layers - c.dense_layers)
    metrics = {"config": dataclasses.asdict(c), "options": {k: str(v) for k, v in vars(o).items() if k not in ("data", "out")}, "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
               "torch": torch.__version__, "train_tokens": len(data.train), "heldout_tokens": len(data.heldout), "heldout_bytes": data.bytes,
               "parameters": {**count, "glm_without_mtp": count["glm"] - mtp, "glm_active": count["glm"] - mtp - idle}}
    print(json.dumps(metrics["parameters"]), flush=True)
    curve = Curve(o.out / "curve.csv")

    def note():
        (o.out / "metrics.json").write_text(json.dumps(metrics, indent=1) + "\n")
    steps = None
    if o.only != "dense":
        steps = metrics["glm_steps"] = train(glm, "glm", data, o, curve)
        save(glm, o.out)
        metrics["glm_dsa"] = evaluate(glm, data, "sparse-eval", bf16=False, mtp=True)
        metrics["glm_dense_attention"] = evaluate(glm, data, "dense-eval", bf16=False, mtp=True)
        note()
        tokenizer = None
        try:
            import tokenizers
            tokenizer = tokenizers.Tokenizer.from_file(str(o.data.parent / "tokenizer.json"))
        except Exception as e:  # samples are a courtesy
            print(f"no samples: {e}")
        if tokenizer:
            generator = torch.Generator(device=device).manual_seed(o.seed)
            prompts = [torch.tensor([0] + tokenizer.encode(p).ids, device=device) for p in PROMPTS]
            tokens = 160 if device.type == "cuda" else 8
            text = ""
            for temperature in (0.8, 0.0):
                for row in sample(glm, prompts, "sparse-eval", tokens, temperature, generator):
                    text += f"--- temperature {temperature}\n{tokenizer.decode(row)}\n\n"
            (o.out / "samples.txt").write_text(text.rstrip() + "\n")
            print(text[:3000], flush=True)
    if o.only != "glm":
        metrics["dense_steps"] = train(dense, "dense", data, o, curve, steps)
        metrics["dense"] = evaluate(dense, data, "dense-eval", bf16=False)
    note()
    print(json.dumps({k: v for k, v in metrics.items() if k.startswith(("glm", "dense"))}, indent=1), flush=True)


if __name__ == "__main__":
    main()
