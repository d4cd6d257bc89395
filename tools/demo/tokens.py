#!/usr/bin/env python3
"""Makes the demo model's vocabulary and turns the text of fetch_text.py into tokens.

usage: tokens.py TEXT OUT [--vocabulary N]

Writes OUT/tokenizer.json (byte-level BPE; text is cut as in Llama 3, `llama-bpe` in GGUF) and OUT/tokens.npz: `train` and
`heldout`, u16 ids, every document behind an <|endoftext|>; `heldout_bytes`, the length of the held-out text in bytes
without those; `sources` and `heldout_source`, which text every held-out token comes from.
Needs tokenizers and numpy.
"""
import argparse
import json
import pathlib

import numpy
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
         r"\s+(?!\S)|\s+")


def documents(path):
    for line in open(path):
        yield json.loads(line)


def vocabulary(texts, size):
    tokenizer = tokenizers.Tokenizer(models.BPE(ignore_merges=True))
    split = pre_tokenizers.Split(tokenizers.Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], show_progress=False, min_frequency=2,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("text", type=pathlib.Path)
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--vocabulary", type=int, default=3840)
    options = arguments.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    train = list(documents(options.text / "train.jsonl"))
    heldout = list(documents(options.text / "heldout.jsonl"))
    tokenizer = vocabulary((d["text"] for d in train), options.vocabulary)
    tokenizer.save(str(options.out / "tokenizer.json"))
    sources = sorted({d["source"] for d in train})
    kept = {}
    for part, list_of in (("train", train), ("heldout", heldout)):
        encoded = tokenizer.encode_batch([d["text"] for d in list_of])
        for document, e in zip(list_of, encoded):
            assert tokenizer.decode(e.ids) == document["text"]
        kept[part] = numpy.concatenate([[0] + e.ids for e in encoded]).astype(numpy.uint16)
        kept[part + "_source"] = numpy.concatenate(
            [[sources.index(d["source"])] * (1 + len(e.ids)) for d, e in zip(list_of, encoded)]).astype(numpy.uint8)
    kept["heldout_bytes"] = numpy.array(sum(len(d["text"].encode()) for d in heldout))
    kept["source_bytes"] = numpy.array([sum(len(d["text"].encode()) for d in heldout if d["source"] == s) for s in sources])
    del kept["train_source"]
    numpy.savez_compressed(options.out / "tokens.npz", sources=numpy.array(sources), **kept)
    print({k: v.shape or int(v) for k, v in kept.items()},
          f"{kept['heldout_bytes'] / len(kept['heldout']):.3f} bytes a token")


if __name__ == "__main__":
    main()
