"""Random Q4_K and Q6_K rows, written block by block: the encoders of these types exist only in C, and none is needed.

What lives here: packing of random quants and scales (layouts as in the GGUF format). What must not: quantizing given
values. Rows come out with a mean near zero and the standard deviation that is asked for.
"""

import numpy as np
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize

BLOCK = 256


def random_rows(rng: np.random.Generator, shape: tuple[int, int], ty: Type, deviation: float) -> np.ndarray:
    """Bytes `[rows, bytes of a row]`."""
    rows, cols = shape
    blocks = {Type.Q4_K: q4_k, Type.Q6_K: q6_k}[ty]
    # The scale of the whole is linear in the f16 factors: pack once with 1, measure, pack again with what is missing.
    state = rng.bit_generator.state
    trial = blocks(rng, rows * cols // BLOCK, 1.0)
    rng.bit_generator.state = state
    factor = deviation / float(dequantize(trial, ty).std())
    return blocks(rng, rows * cols // BLOCK, factor).reshape(rows, -1)


def f16_bytes(rng: np.random.Generator, blocks: int, factor: float) -> np.ndarray:
    """One positive factor a block, no two alike, `[blocks, 2]`."""
    return (factor * rng.uniform(0.75, 1.25, blocks)).astype(np.float16).reshape(-1, 1).view(np.uint8)


def q4_k(rng: np.random.Generator, blocks: int, factor: float) -> np.ndarray:
    """f16 d, f16 dmin, 12 bytes of eight 6-bit scales and minima, 128 bytes of nibbles: d * scale * q - dmin * min."""
    d = f16_bytes(rng, blocks, factor)
    # A minimum of 7.5 scales centres the nibbles; a jitter keeps a decoder that mixes the two up from passing.
    dmin = (d.view(np.float16).astype(np.float32) * 7.5).astype(np.float16).view(np.uint8)
    scale = rng.integers(16, 60, (blocks, 8))
    least = np.clip(scale + rng.integers(-4, 5, (blocks, 8)), 0, 63)
    low, high = slice(0, 4), slice(4, 8)
    packed = np.concatenate(
        [
            scale[:, low] | (scale[:, high] >> 4) << 6,
            least[:, low] | (least[:, high] >> 4) << 6,
            (scale[:, high] & 15) | (least[:, high] & 15) << 4,
        ],
        1,
    )
    quants = rng.integers(0, 256, (blocks, BLOCK // 2))
    return np.concatenate([d, dmin, packed.astype(np.uint8), quants.astype(np.uint8)], 1)


def q6_k(rng: np.random.Generator, blocks: int, factor: float) -> np.ndarray:
    """128 bytes of low nibbles, 64 of high pairs, sixteen signed 8-bit scales, f16 d: d * scale * (q - 32)."""
    quants = rng.integers(0, 256, (blocks, BLOCK // 2 + BLOCK // 4))
    scale = rng.integers(24, 100, (blocks, BLOCK // 16)) * rng.choice([-1, 1], (blocks, BLOCK // 16))
    return np.concatenate(
        [quants.astype(np.uint8), scale.astype(np.int8).view(np.uint8), f16_bytes(rng, blocks, factor)], 1
    )
