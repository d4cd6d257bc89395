"""Tiny byte-level BPE vocabularies and what the `tokenizers` library makes of texts with them.

For each pre-tokenizer, trains a vocabulary of a few hundred tokens on the sentences below and writes
crates/text/tests/data/<pre>.gguf (metadata only) and <pre>.json: cases of {text, plain, special}, the ids without and
with control tokens matched. Deterministic.

    python tools/reference/tokenizer_cases.py        needs tokenizers and gguf (requirements.txt)
"""

import json
import random
from pathlib import Path

from gguf import GGUFWriter
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE

DATA = Path(__file__).parents[2] / "crates/text/tests/data"
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
USER_DEFINED = ["<think>", "<think>ing", "\n\n\n\n"]
# Tokens that no merges lead to: only a vocabulary whose whole words skip the merges ever gives them.
UNREACHABLE = ["Ġunreachable", "xyzzy"]
NORMAL_TYPE, CONTROL_TYPE, USER_TYPE = 1, 3, 4

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def words(digits):
    split = pre_tokenizers.Split(Regex(WORDS % digits), "isolated")
    return pre_tokenizers.Sequence([split, BYTES])


GPT2 = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
PRE = {
    "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), GPT2]),
    "llama-bpe": words("{1,3}"),
    "qwen2": words(""),
}

CORPUS = [
    "A thin bar of sand ties the island to the mainland, and the tide runs over it twice a day.",
    "The ferry doesn't run when it's stormy; we'll wait, they've said, until the wind has dropped.",
    "for (int i = 0; i < n; ++i) {\n    total += values[i] * weights[i];\n}\n",
    "def mean(values):\n    if not values:\n        return 0.0\n    return sum(values) / len(values)\n\n\n",
    "\tif err != nil {\n\t\treturn nil, err\n\t}\n",
    "In 1914 there were 27 lighthouses, in 2024 only 3; the tallest is 48.5 m high.",
    "海は静かで、島への道が見える。 砂州を歩いて渡った。",
    "岛屿与陆地之间有一条沙洲，退潮时可以走过去。",
    "섬과 육지를 잇는 모래톱이 있다.",
    "Смотритель маяка живёт на острове уже тридцать лет.",
    "Der Leuchtturmwärter öffnet die Tür; überall riecht es nach Tang. Où est l'île ? À l'ouest, là-bas.",
    "الجزيرة بعيدة عن الشاطئ",
    "🏝️🌊⛵ The gulls 🐦🐦 scream! 👩‍🚀 👍🏽",
    "https://example.org/a?b=c&d=%20e#f <p class=\"x\">it's &amp; that's</p>",
] * 4

TEXTS = [
    "",
    " ",
    "  ",
    "\n",
    "a",
    "The tide runs over the bar of sand twice a day.",
    "doesn't DOESN'T We'Ll they'VE 'sand 'ſ x'y ''s",
    "1 12 123 1234 12345678 3.14 1,000,000 ٣٤٥ ½ ⅷ x86_64 0xFF",
    "a1b22c333   4",
    "trailing   ",
    "   leading",
    "a  b   c    d\t\te \t f",
    "line\nline\r\nline\n\nline\n\n\nline\n \n  \n\tx",
    "    for i in range(10):\n        print(i)\n\n\n    return None\n",
    "\u00a0no\u00a0break\u2003em\u3000ideographic\u2028line\u2029para\u0085nel\u200bzero\u180emvs",
    "海は静か。島A1へ2渡った",
    "岛屿与陆地，abc混合文字",
    "섬과 육지",
    "e\u0301 \u00e9 A\u030a \u00c5 n\u0303o q\u0307\u0323 \u1e9b\u0323 \u0344 \u2126 \uac00 \u1100\u1161",
    "🏝️ 👩‍🚀👩‍🚀 👍🏽 🇩🇪🇫🇷 e\u20e3",
    "नमस्ते ไทย संयुक्त",
    "!!! ... ??? -- == >= <= && || :: -> => //\n/* x */\n",
    "$x_1 = @{a:\"b\", 'c': [1, 2]};",
    "\x00\x01\x04\x06\x13\x7f\ufeff\ufffd\U000e0041\U0010ffff",
    "unreachable xyzzy is unreachable, xyzzy",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|endoftext|> c<|im_end|",
    "<think>hm</think> <think>ing <think>",
    "x\n\n\n\ny\n\n\n\n\nz",
    "the " * 20 + "x" * 70 + " " * 33 + "y" + "\n" * 9 + "é" * 17,
]

PARTS = ["a", "The", " ", "  ", "\n", "\t", "\r\n", "1", "23", "'s", "'LL", "é", "e\u0301", "海", "섬", "🌊", "\u200d", ".", "!!"]
PARTS += [" the", "<|im_end|>", "<think>", "_", "\u3000", "Я", "ß", "½", "\u0300", "(", "//", "-"]


def texts():
    rng = random.Random(20)
    return TEXTS + ["".join(rng.choice(PARTS) for _ in range(rng.randint(2, 14))) for _ in range(120)]


def train(pre):
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = PRE[pre]
    # smollm's own vocabulary lacks some bytes too: they are dropped.
    alphabet = [] if pre == "smollm" else sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=560, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    return json.loads(tokenizer.to_str())["model"]


def build(pre, vocab, merges, added):
    model = BPE(vocab=vocab, merges=merges, ignore_merges=pre == "llama-bpe")
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = PRE[pre]
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokens = [AddedToken(text, special=text in CONTROL, normalized=False) for text in added]
    tokenizer.add_tokens(tokens)
    return tokenizer


def write_gguf(pre, tokens, merges):
    writer = GGUFWriter(DATA / f"{pre}.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kind = {**dict.fromkeys(CONTROL, CONTROL_TYPE), **dict.fromkeys(USER_DEFINED, USER_TYPE)}
    writer.add_token_types([kind.get(token, NORMAL_TYPE) for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(tokens.index(CONTROL[1]))
    writer.add_eos_token_id(tokens.index(CONTROL[2]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def main():
    for pre in PRE:
        model = train(pre)
        merges = [tuple(pair) for pair in model["merges"]]
        spelled = sorted(model["vocab"], key=model["vocab"].get) + UNREACHABLE
        vocab = {token: i for i, token in enumerate(spelled)}
        # Added tokens take the ids behind the vocabulary's in the order they are added.
        user = build(pre, vocab, merges, USER_DEFINED)
        both = build(pre, vocab, merges, USER_DEFINED + CONTROL)
        tokens = spelled + USER_DEFINED + CONTROL
        assert [both.token_to_id(token) for token in tokens] == list(range(len(tokens)))
        write_gguf(pre, tokens, merges)
        encode = lambda tokenizer, text: tokenizer.encode(text, add_special_tokens=False).ids
        cases = [{"text": t, "plain": encode(user, t), "special": encode(both, t)} for t in texts()]
        lines = ",\n".join(json.dumps(case) for case in cases)
        (DATA / f"{pre}.json").write_text(f"[\n{lines}\n]\n")
        print(f"{pre}: {len(tokens)} tokens, {len(merges)} merges, {len(cases)} cases")


if __name__ == "__main__":
    main()
