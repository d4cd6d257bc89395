// How weights lie in device memory, and the one decoder of that to f32. Written by layout.rs, which says the same in
// words; compiles as plain C++ too. The quick dot products in linear_decode.cu read the same bytes in wider steps.
//
// A row of `cols` weights is a sequence of groups of 2048 (the last may hold fewer). In a group, lane l of a warp owns
// the 64 weights from 64 l: two blocks of 32. With n lanes in use, each group is, padded to 16 bytes:
//   Q4_0  nibbles [2][n][16], then per lane f16 d of both blocks. Nibbles are stored as q ^ 8, a signed number
//   Q4_1  nibbles [2][n][16], then per lane f16 d0, m0, d1, m1
//   Q8_0  bytes [4][n][16], then per lane f16 d of both blocks
//   Q4_K  per 256 weights: f16 d, f16 dm, u32 A, B, C (see scales4), nibbles [4 lanes][32]
//   Q6_K  per 256 weights: low bits [4 lanes][32], high bits [4 lanes][16], i8 scales [16]; then f16 d of each 256
// Byte b of a lane's nibbles holds weight b in its low half and weight 32 + b in its high half. Q6_K: see bytes6.
// F32, F16 and BF16 rows are as in the file, padded to 16 bytes.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

enum Type : uint32_t { F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q8_0 = 8, Q4_K = 12, Q6_K = 14, BF16 = 30 };

#define BOTH __host__ __device__ __forceinline__

constexpr uint32_t GROUP = 2048;

BOTH constexpr uint32_t pad16(uint32_t bytes) { return (bytes + 15) & ~15u; }

// Bytes of a group of quantized weights in which n lanes are in use.
BOTH constexpr uint32_t group_bytes(uint32_t type, uint32_t n) {
    switch (type) {
        case Q4_0: return pad16(36 * n);
        case Q4_1: return pad16(40 * n);
        case Q8_0: return pad16(68 * n);
        case Q4_K: return 36 * n;
        default: return 52 * n + pad16(n / 2);  // Q6_K
    }
}

// Lanes in use in the group that starts at weight `start`.
BOTH constexpr uint32_t lanes_from(uint32_t cols, uint32_t start) {
    return cols - start >= GROUP ? 32 : (cols - start + 63) / 64;
}

BOTH float half_at(const uint8_t* p) { return __half2float(*reinterpret_cast<const __half*>(p)); }

BOTH uint32_t word_at(const uint8_t* p) { return *reinterpret_cast<const uint32_t*>(p); }

// Q4_K: 6-bit scale s and minimum m of sub-block 0..7. Byte j of A holds s[2j], of B s[2j+1], of C m[2j] in its low six
// bits; their top two bits are, from low to high, the six bits of m[2j+1].
BOTH void scale_min4(const uint8_t* header, uint32_t block, float& s, float& m) {
    const uint32_t shift = 8 * (block >> 1);
    const uint32_t a = word_at(header + 4) >> shift & 255, b = word_at(header + 8) >> shift & 255;
    const uint32_t c = word_at(header + 12) >> shift & 255;
    const bool odd = block & 1;
    s = float((odd ? b : a) & 63);
    m = float(odd ? (a >> 6 | (b >> 6) << 2 | (c >> 6) << 4) : (c & 63));
}

// 16 bytes from an address that is a multiple of 16.
struct Bytes16 {
    uint32_t word[4];

    BOTH uint32_t at(uint32_t i) const { return word[i / 4] >> (8 * (i % 4)) & 255; }
};

BOTH Bytes16 bytes_at(const uint8_t* p) {
    const uint4 v = *reinterpret_cast<const uint4*>(p);
    return {{v.x, v.y, v.z, v.w}};
}

// Q6_K: four times the signed values of the 16 weights from 16 quarter of a lane, as bytes. Low bits: the 32-bit word
// holds the low nibble of weight b at bits 2..5 of byte b % 4, and that of weight 32 + b likewise after a rotation left
// by four. High two bits, the top one flipped: bits 6..7, 4..5, 2..3, 0..1 of byte b % 16 for weights b, 16 + b, 32 + b,
// 48 + b.
BOTH Bytes16 bytes6(const uint8_t* low, const uint8_t* high, uint32_t quarter) {
    const Bytes16 l = bytes_at(low + 16 * (quarter % 2)), h = bytes_at(high);
    const uint32_t turn = quarter >= 2 ? 4 : 0;
    Bytes16 out;
    for (int i = 0; i < 4; i++) {
        const uint32_t word = turn ? l.word[i] << 4 | l.word[i] >> 28 : l.word[i];
        out.word[i] = (word & 0x3c3c3c3c) | (h.word[i] << (2 * quarter) & 0xc0c0c0c0);
    }
    return out;
}

// Weights 16 piece .. 16 piece + 15 of a row.
template <uint32_t TYPE>
BOTH void decode16(const uint8_t* row, uint32_t cols, uint32_t piece, float out[16]) {
    if (TYPE == F32) {
        for (uint32_t i = 0; i < 16; i++) {
            out[i] = 16 * piece + i < cols ? reinterpret_cast<const float*>(row)[16 * piece + i] : 0.f;
        }
        return;
    }
    if (TYPE == F16 || TYPE == BF16) {
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t at = 16 * piece + i;
            const uint16_t bits = at < cols ? reinterpret_cast<const uint16_t*>(row)[at] : 0;
            const uint32_t wide = uint32_t(bits) << 16;
            out[i] = TYPE == BF16 ? *reinterpret_cast<const float*>(&wide)
                                  : __half2float(*reinterpret_cast<const __half*>(&bits));
        }
        return;
    }
    const uint32_t group = piece / 128, lane = piece / 4 % 32, quarter = piece % 4;
    const uint32_t n = lanes_from(cols, group * GROUP);
    const uint8_t* g = row + group * group_bytes(TYPE, 32);
    const uint32_t shift = quarter >= 2 ? 4 : 0;
    if (TYPE == Q4_0 || TYPE == Q4_1) {
        const Bytes16 q = bytes_at(g + ((quarter & 1) * n + lane) * 16);
        const uint8_t* s = g + 32 * n + lane * (TYPE == Q4_0 ? 4 : 8) + (quarter >> 1) * (TYPE == Q4_0 ? 2 : 4);
        const float d = half_at(s), m = TYPE == Q4_1 ? half_at(s + 2) : 0.f;
        for (uint32_t i = 0; i < 16; i++) {
            const int nibble = q.at(i) >> shift & 15;
            out[i] = TYPE == Q4_0 ? d * float((nibble ^ 8) - 8) : d * float(nibble) + m;
        }
    } else if (TYPE == Q8_0) {
        const Bytes16 q = bytes_at(g + (quarter * n + lane) * 16);
        const float d = half_at(g + 64 * n + lane * 4 + (quarter >> 1) * 2);
        for (uint32_t i = 0; i < 16; i++) out[i] = d * float(int8_t(q.at(i)));
    } else if (TYPE == Q4_K) {
        const uint8_t* b = g + lane / 4 * 144;
        const Bytes16 q = bytes_at(b + 16 + lane % 4 * 32 + (quarter & 1) * 16);
        float s, m;
        scale_min4(b, lane % 4 * 2 + (quarter >> 1), s, m);
        s *= half_at(b);
        m *= half_at(b + 2);
        for (uint32_t i = 0; i < 16; i++) out[i] = s * float(q.at(i) >> shift & 15) - m;
    } else {
        const uint8_t* b = g + lane / 4 * 208;
        const uint32_t j = lane % 4;
        const float s = 0.25f * half_at(g + 52 * n + lane / 4 * 2) * float(int8_t(b[192 + 4 * j + quarter]));
        const Bytes16 q = bytes6(b + 32 * j, b + 128 + 16 * j, quarter);
        for (uint32_t i = 0; i < 16; i++) out[i] = s * float(int8_t(q.at(i)));
    }
}
