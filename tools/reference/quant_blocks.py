"""Golden blocks for crates/gguf/tests: what the reference implementations decode and encode.

    python quant_blocks.py [--ggml libggml-base.so] [--out crates/gguf/tests/data/blocks.bin]

Decoding, and encoding to F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 and MXFP4: the Python package gguf (0.19.0). Encoding
to the types which that cannot: the C library of the GGML project, without importance data, as the package
libggml-python (0.20.2.post1) carries it. Same seed, same file.

The file is a list of records, all numbers little-endian:
    u32 type id, u32 kind (0 decode, 1 encode), u32 values, u32 bytes, f32[values], u8[bytes]
An encode record without values has those of the encode record before it.
"""
import argparse
import ctypes
import struct

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

DECODED_VALUES = 2048
# In this order so that new types, at the end, leave the blocks of the others as they are.
TYPES = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q8_0, T.Q4_K, T.Q6_K]
TYPES += [T.Q5_0, T.Q5_1, T.Q2_K, T.Q3_K, T.Q5_K, T.IQ4_NL, T.IQ4_XS, T.MXFP4]
# Types that only the C library encodes, and those that this project does not.
C_ONLY = [T.Q4_K, T.Q5_K, T.Q6_K, T.IQ4_NL, T.IQ4_XS]
READ_ONLY = [T.Q2_K, T.Q3_K]
# Where each block keeps its half-precision scales.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q6_K: [208]}
HALVES |= {T.Q5_0: [0], T.Q5_1: [0, 2], T.Q2_K: [80, 82], T.Q3_K: [108], T.Q5_K: [0, 2], T.IQ4_NL: [0], T.IQ4_XS: [0]}


def random_blocks(rng, ty):
    """Random bytes, the half-precision numbers in them replaced by finite ones of all magnitudes."""
    length, size = GGML_QUANT_SIZES[ty]
    n = DECODED_VALUES // length
    if ty == T.F32:
        bits = rng.integers(0, 2**32, n, dtype=np.uint32)
        bits[np.isnan(bits.view(np.float32))] = 0x7F800000
        return bits.view(np.uint8)
    if ty in (T.F16, T.BF16):
        bits = rng.integers(0, 2**16, n, dtype=np.uint16)
        exponent = 0x7C00 if ty == T.F16 else 0x7F80
        bits[(bits & exponent) == exponent] &= ~np.uint16(exponent ^ 0x8000) | np.uint16(0x8000)
        bits[:4] = [0, 0x8000, 1, exponent]
        return bits.view(np.uint8)
    blocks = rng.integers(0, 256, (n, size), dtype=np.uint8)
    if ty == T.MXFP4:
        blocks[:4, 0] = [0, 1, 2, 254]
    for at in HALVES.get(ty, []):
        scales = (rng.standard_normal(n) * 10.0 ** rng.uniform(-8, 3, n)).astype(np.float16)
        scales[: 5] = [0.0, 65504.0, -65504.0, 6e-8, -1.0]
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(n, 2)
    return blocks.reshape(-1)


def values_to_encode(rng):
    """Rows of 256: Gaussian at all magnitudes, and the shapes that trip encoders."""
    rows = [rng.standard_normal(256) * 10.0**e for e in (-12, -7, -4, -2, -1, 0, 0, 0, 1, 2, 4)]
    normal = rng.standard_normal(256)
    holes = normal.copy()
    holes[32:64] = holes[128:144] = 0
    outlier = normal * 0.01
    outlier[[7, 77, 200]] = [40, -90, 5]
    mixed = normal * np.repeat(10.0 ** np.arange(-11, 5), 16)
    rows += [
        np.zeros(256),
        np.full(256, 0.75),
        np.full(256, -3.0),
        np.abs(normal),
        -np.abs(normal),
        np.linspace(-1, 1, 256),
        np.where(np.arange(256) == 100, 1.0, 0.0),
        np.where(np.arange(256) % 2 == 0, 0.5, -0.5),
        holes,
        outlier,
        mixed,
        np.rint(normal * 4) / 4,
        rng.uniform(-1, 1, 256),
        rng.uniform(5, 6, 256),
        rng.standard_cauchy(256).clip(-1e4, 1e4),
        rng.laplace(size=256) * 0.02,
        normal**3 * 1e-3,
    ]
    return np.stack(rows).astype(np.float32)


def encode(library, values, ty):
    if ty not in C_ONLY:
        return quantize(values, ty).view(np.uint8).reshape(-1)
    if library is None:
        raise SystemExit(f"encoding {ty.name} needs --ggml")
    length, size = GGML_QUANT_SIZES[ty]
    out = np.zeros(values.size // length * size, np.uint8)
    chunk = library.ggml_quantize_chunk
    chunk.restype = ctypes.c_size_t
    chunk.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    written = chunk(int(ty), values.ctypes.data, out.ctypes.data, 0, values.shape[0], values.shape[1], None)
    assert written == out.size
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ggml", help="the C library, for types that the package gguf does not encode")
    parser.add_argument("--out", default="crates/gguf/tests/data/blocks.bin")
    args = parser.parse_args()
    library = ctypes.CDLL(args.ggml) if args.ggml else None
    rng = np.random.default_rng(20)
    records = []
    with np.errstate(over="ignore", under="ignore", divide="ignore"):
        for ty in TYPES:
            blocks = random_blocks(rng, ty)
            values = dequantize(blocks.reshape(1, -1), ty).reshape(-1).astype(np.float32)
            assert not np.isnan(values).any(), ty
            records.append((ty, 0, values, blocks))
        values = values_to_encode(rng)
        for i, ty in enumerate(t for t in TYPES if t != T.F32 and t not in READ_ONLY):
            shown = values.reshape(-1) if i == 0 else values[:0].reshape(-1)
            records.append((ty, 1, shown, encode(library, values, ty)))
    with open(args.out, "wb") as f:
        for ty, kind, values, data in records:
            f.write(struct.pack("<4I", int(ty), kind, values.size, data.size))
            f.write(values.astype("<f4").tobytes() + data.tobytes())
    print(f"{args.out}: {len(records)} records, gguf {getattr(gguf, '__version__', '0.19.0')}, numpy {np.__version__}")


if __name__ == "__main__":
    main()
