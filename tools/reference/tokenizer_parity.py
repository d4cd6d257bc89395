"""Compares the tokenizer with the `tokenizers` library on a real vocabulary, by hand.

    python tools/reference/tokenizer_parity.py PRE TOKENIZER.json [VOCABULARY.gguf]

PRE is the pre-tokenizer's name in GGUF. Without a GGUF file one is made of TOKENIZER.json; a file is given where the
vocabulary is scored, since TOKENIZER.json has no scores. Runs `conformance encode` (crates/text/examples), built in
release, on the texts below and prints how many differ, and the first few that do. Needs tokenizers and gguf.
"""

import json
import os
import random
import subprocess
import sys
import sysconfig
import tempfile
import unicodedata
from pathlib import Path

from gguf import GGUFWriter
from tokenizers import Tokenizer

ROOT = Path(__file__).parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


def code(count):
    """Python's own library, in pieces."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:count]
    for file in files:
        text = file.read_text(errors="replace")
        yield from (text[at : at + 3000] for at in range(0, len(text), 3000))


def translations(count):
    """Messages of installed programs in the languages of the world."""
    import gettext

    for file in sorted(Path("/usr/share/locale").glob("*/LC_MESSAGES/*.mo"))[:count]:
        try:
            messages = gettext.GNUTranslations(file.open("rb"))._catalog.values()
        except (OSError, UnicodeDecodeError):
            continue
        yield "\n".join(str(m) for m in messages)[:6000]


def mixtures(count):
    """Characters of every block between words, digits, blanks and marks."""
    rng = random.Random(7)
    usable = [chr(c) for c in range(1, 0x30000) if unicodedata.category(chr(c)) not in ("Cs", "Cn", "Co")]
    usable = [c for c in usable if c != "\u2581"]
    common = list("aAbZz019 \n\t\r'._-/({[<>]})é海か섬я") + [
        "  ", "   ", "\n\n", " \n", "'s", "'LL", "the", " The", "\u0301", "\u200d", "🌊", "👩‍🚀", "\u3000", "123", "½", "ſ",
    ]
    for _ in range(count):
        yield "".join(rng.choice(common if rng.random() < 0.6 else usable) for _ in range(rng.randint(1, 60)))


def texts():
    return [*code(60), *translations(300), *mixtures(20_000)]


def write_gguf(path, pre, spec):
    vocab = spec["model"]["vocab"]
    added = {t["id"]: (t["content"], CONTROL if t["special"] else USER_DEFINED) for t in spec["added_tokens"]}
    size = max([*vocab.values(), *added]) + 1
    tokens, types = [""] * size, [NORMAL] * size
    for token, i in vocab.items():
        tokens[i] = token
    for i, (token, kind) in added.items():
        tokens[i], types[i] = token, kind
    merges = [m if isinstance(m, str) else " ".join(m) for m in spec["model"]["merges"]]
    writer = GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    pre, source = sys.argv[1:3]
    spec = json.loads(Path(source).read_text())
    # Control tokens are text here: `encode` matches none.
    control = [t for t in spec["added_tokens"] if t["special"]]
    spec["added_tokens"] = [t for t in spec["added_tokens"] if not t["special"]]
    reference = Tokenizer.from_str(json.dumps({**spec, "post_processor": None, "truncation": None, "padding": None}))
    cases = texts()
    with tempfile.TemporaryDirectory() as work:
        vocabulary = sys.argv[3] if len(sys.argv) > 3 else f"{work}/vocabulary.gguf"
        if len(sys.argv) <= 3:
            write_gguf(vocabulary, pre, {**spec, "added_tokens": spec["added_tokens"] + control})
        lines = Path(work, "texts")
        lines.write_text("".join(json.dumps(t) + "\n" for t in cases))
        command = [TARGET / "release/examples/conformance", "encode", vocabulary, lines]
        ours = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    wrong = tokens = 0
    for text, line in zip(cases, ours, strict=True):
        expected, got = reference.encode(text, add_special_tokens=False).ids, json.loads(line)
        tokens += len(expected)
        if got != expected:
            wrong += 1
            if wrong <= 5:
                at = next((i for i, (a, b) in enumerate(zip(expected, got)) if a != b), 0)
                print(f"{text[:200]!r}\n  token {at}: expected {expected[at:at + 8]}\n  got {got[at:at + 8]}")
    print(f"{pre}: {len(cases)} texts, {sum(map(len, cases))} characters, {tokens} tokens, {wrong} texts differ")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
