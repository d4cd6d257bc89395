// Quantized weights as linear_tiles.cu meets them: a chunk of 256 columns of a row in shared memory, and the 8-bit
// fragments and scales that the matrix units take of a unit of 64 columns in it.
//
// A chunk lies as it does in global memory (quant.cuh): Q4_K and Q6_K as one run; of the others first the four lanes' 16
// bytes of every plane, then their scales. Rows are an odd number of 16 bytes apart, so that ldmatrix meets no bank twice.
#pragma once
#include "bytes.cuh"
#include "stage.cuh"

constexpr uint32_t CHUNK = 256;

// 16 bytes each.
template <uint32_t TYPE>
constexpr uint32_t PIECES = TYPE == Q8_0 ? 17 : TYPE == Q6_K ? 13 : TYPE == Q4_1 ? 10 : 9;

template <uint32_t TYPE>
constexpr uint32_t PITCH = 16 * (PIECES<TYPE> | 1);

// Per row of a Q6_K tile, behind the rows: the pair of f16 scales that holds the chunk's.
template <uint32_t TYPE>
constexpr uint32_t BESIDE = TYPE == Q6_K ? 4 : 0;

__device__ __forceinline__ void copy16(uint32_t to, const uint8_t* from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

// Piece `piece` of chunk `chunk` of the row at `row`, which is `cols` long. What lies beyond the row becomes zero.
template <uint32_t TYPE>
__device__ __forceinline__ void copy_piece(uint32_t to, const uint8_t* row, uint32_t cols, uint32_t chunk, uint32_t piece) {
    if constexpr (TYPE == Q4_K) {
        copy16(to, row + chunk * 144 + piece * 16, true);
    } else if constexpr (TYPE == Q6_K) {
        copy16(to, row + chunk / 8 * group_bytes(Q6_K, 32) + chunk % 8 * 208 + piece * 16, true);
    } else {
        constexpr uint32_t PLANES = TYPE == Q8_0 ? 4 : 2;
        const uint8_t* g = row + chunk / 8 * group_bytes(TYPE, 32);
        const uint32_t n = lanes_from(cols, chunk / 8 * GROUP), first = chunk % 8 * 4;
        if (piece < 4 * PLANES) {
            const uint32_t lane = first + piece % 4;
            copy16(to, lane < n ? g + (piece / 4 * n + lane) * 16 : g, lane < n);
        } else {
            const uint32_t bytes = TYPE == Q4_1 ? 8 : 4, at = first * bytes + (piece - 4 * PLANES) * 16;
            copy16(to, at < n * bytes ? g + 16 * PLANES * n + at : g, at < n * bytes);
        }
    }
}

// The scales of a Q6_K row's chunk `chunk` and its neighbour.
__device__ __forceinline__ void copy_beside(uint32_t to, const uint8_t* row, uint32_t cols, uint32_t chunk) {
    const uint32_t n = lanes_from(cols, chunk / 8 * GROUP);
    const uint8_t* from = row + chunk / 8 * group_bytes(Q6_K, 32) + 52 * n + chunk % 8 / 2 * 4;
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void load_matrices(uint32_t (&to)[2], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "r"(address) : "memory");
}

// MAGIC + the exact sums of 16 rows by 8 columns over 32 values.
template <bool SIGNED>
__device__ __forceinline__ void multiply32(float (&out)[4], const uint32_t* w, uint32_t x0, uint32_t x1) {
    int c[4];
    if (SIGNED) {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1), "r"(MAGIC_BITS));
    } else {
        asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
            : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
            : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(x0), "r"(x1), "r"(MAGIC_BITS));
    }
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = __int_as_float(c[i]);
}

// The same over 16 signed values.
__device__ __forceinline__ void multiply16(float (&out)[4], const uint32_t* w, uint32_t x) {
    int c[4];
    asm("mma.sync.aligned.m16n8k16.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%7, %7, %7, %7};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3]) : "r"(w[0]), "r"(w[1]), "r"(x), "r"(MAGIC_BITS));
#pragma unroll
    for (int i = 0; i < 4; i++) out[i] = __int_as_float(c[i]);
}

// What a lane holds of 16 rows (its own: lane / 4 and 8 more) by 64 columns.
template <uint32_t TYPE>
struct Fragment {
    // Q6_K: per 16 values two words; others: per 32 values four. In the order of mma.sync's A.
    uint32_t w[8];
    // [row][part]: per 32 values, Q6_K per 16.
    float s[2][TYPE == Q6_K ? 4 : 2];
    // Q4_1: what is added per block.
    float m[2][2];
};

// `rows`: shared address of the first of the 16 rows.
template <uint32_t TYPE>
__device__ __forceinline__ void load_bytes(Fragment<TYPE>& f, uint32_t rows, uint32_t unit, uint32_t lane) {
    const uint32_t row = rows + lane % 16 * PITCH<TYPE>, second = lane / 16;
    if constexpr (TYPE == Q8_0) {
        load_matrices(reinterpret_cast<uint32_t(&)[4]>(f.w[0]), row + 16 * unit + 64 * second);
        load_matrices(reinterpret_cast<uint32_t(&)[4]>(f.w[4]), row + 16 * unit + 128 + 64 * second);
    } else if constexpr (TYPE == Q6_K) {
        uint32_t low[4], high[2];
        load_matrices(low, row + 32 * unit + 16 * second);
        load_matrices(high, row + 128 + 16 * unit);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const uint32_t l0 = low[h], l1 = low[2 + h], r0 = __funnelshift_l(l0, l0, 4), r1 = __funnelshift_l(l1, l1, 4);
            f.w[h] = (l0 & 0x3c3c3c3c) | (high[h] & 0xc0c0c0c0);
            f.w[2 + h] = (l1 & 0x3c3c3c3c) | (high[h] << 2 & 0xc0c0c0c0);
            f.w[4 + h] = (r0 & 0x3c3c3c3c) | (high[h] << 4 & 0xc0c0c0c0);
            f.w[6 + h] = (r1 & 0x3c3c3c3c) | (high[h] << 6 & 0xc0c0c0c0);
        }
    } else {
        uint32_t q[4];
        if constexpr (TYPE == Q4_K) load_matrices(q, row + 16 + 32 * unit + 16 * second);
        else load_matrices(q, row + 16 * unit + 64 * second);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            // The second block counts sixteenfold; Q4_0, moved to the top of the byte to be signed, both.
            f.w[i] = TYPE == Q4_0 ? q[i] << 4 & 0xf0f0f0f0 : q[i] & 0x0f0f0f0f;
            f.w[4 + i] = q[i] & 0xf0f0f0f0;
        }
    }
}

__device__ __forceinline__ uint32_t shared_word(uint32_t address) {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint2 shared_pair(uint32_t address) {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
    return v;
}

__device__ __forceinline__ uint4 shared_quad(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}

// Scales of Q4_0, Q4_1 and Q8_0: they lie unit by unit.
template <uint32_t TYPE>
__device__ __forceinline__ void load_scales(Fragment<TYPE>& f, uint32_t rows, uint32_t unit, uint32_t lane) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t row = rows + (lane / 4 + 8 * h) * PITCH<TYPE>;
        if constexpr (TYPE == Q4_1) {
            const uint2 v = shared_pair(row + 128 + 8 * unit);
            const float2 first = halves(v.x), second = halves(v.y);
            f.s[h][0] = first.x, f.s[h][1] = second.x * 0.0625f;
            f.m[h][0] = first.y, f.m[h][1] = second.y;
        } else {
            const float2 d = halves(shared_word(row + (TYPE == Q8_0 ? 256 : 128) + 4 * unit));
            const float part = TYPE == Q4_0 ? 0.0625f : 1.f;
            f.s[h][0] = d.x * part, f.s[h][1] = d.y * part;
        }
    }
}

// Of a row's unit: per block of 32, Q6_K per 16.
template <uint32_t TYPE>
struct Scales {
    float s[TYPE == Q6_K ? 4 : 2];
};

// Of a Q4_K row. `minima`: the unit's two of 6 bits, as a pair of bf16; they count `dmin`.
__device__ __forceinline__ Scales<Q4_K> header4(uint32_t row, uint32_t unit, uint32_t& minima, float& dmin) {
    const uint4 h = shared_quad(row);
    const Packed4 packed = packed4(h, unit);
    const float2 d = halves(h.x);
    // Small whole numbers: their f32 bits have zeros below bf16's.
    minima = __byte_perm(__float_as_uint(float(packed.low >> 16)), __float_as_uint(float(packed.second >> 24)), 0x7632);
    dmin = d.y;
    return {{d.x * float(packed.low & 255), d.x * 0.0625f * float(packed.low >> 8 & 255)}};
}

__device__ __forceinline__ Scales<Q6_K> scales6(uint32_t row, uint32_t beside, uint32_t chunk, uint32_t unit) {
    const float2 pair = halves(shared_word(beside));
    const float d = 0.25f * (chunk & 1 ? pair.y : pair.x);
    const int v = int(shared_word(row + 192 + 4 * unit));
    return {{d * float(v << 24 >> 24), d * float(v << 16 >> 24), d * float(v << 8 >> 24), d * float(v >> 24)}};
}
