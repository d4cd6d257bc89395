// The KV cache as kernels see it, its element types, and what is done to a head's values before they are used:
// per-head RMSNorm (Qwen3) and rotary position embedding. Device code only.
//
// One layer's cache: [blocks][2: keys, values][kv_heads][BLOCK_TOKENS][head_dim], so that one block of one layer is
// contiguous, and so are the keys (and the values) of one head in it.
#pragma once

namespace tombolo {

constexpr unsigned BLOCK_TOKENS = 32;
constexpr unsigned NO_ROW = 0xffffffffu;  // as a row's position: padding of a batch bucket, nothing is read or written

__device__ __forceinline__ float half_to_float(unsigned short h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

__device__ __forceinline__ unsigned short float_to_half(float f) {
    unsigned short h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

// 8 neighbouring values of a cache row: as loaded, and as numbers. Plain loads: under programmatic dependent launch the
// kernel before may still write the cache while this one already runs, so it is not read-only for the kernel's life.
struct CacheF16 {
    using Value = unsigned short;
    static constexpr int IN_FLIGHT = 8;  // loads of 8 values that a lane has under way
    struct Raw {
        uint4 bits;
    };
    static __device__ __forceinline__ Raw load(const Value* p) { return Raw{*(const uint4*)p}; }
    static __device__ __forceinline__ Raw zero() { return Raw{make_uint4(0, 0, 0, 0)}; }
    static __device__ __forceinline__ void unpack(const Raw& r, float (&v)[8]) {
        const unsigned words[4] = {r.bits.x, r.bits.y, r.bits.z, r.bits.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            v[2 * i] = half_to_float((unsigned short)(words[i] & 0xffffu));
            v[2 * i + 1] = half_to_float((unsigned short)(words[i] >> 16));
        }
    }
    static __device__ __forceinline__ Value from_float(float f) { return float_to_half(f); }
    static __device__ __forceinline__ float round(float f) { return half_to_float(float_to_half(f)); }
};

struct CacheF32 {
    using Value = float;
    static constexpr int IN_FLIGHT = 4;
    struct Raw {
        float4 low, high;
    };
    static __device__ __forceinline__ Raw load(const Value* p) {
        return Raw{*(const float4*)p, *((const float4*)p + 1)};
    }
    static __device__ __forceinline__ Raw zero() {
        return Raw{make_float4(0.f, 0.f, 0.f, 0.f), make_float4(0.f, 0.f, 0.f, 0.f)};
    }
    static __device__ __forceinline__ void unpack(const Raw& r, float (&v)[8]) {
        v[0] = r.low.x, v[1] = r.low.y, v[2] = r.low.z, v[3] = r.low.w;
        v[4] = r.high.x, v[5] = r.high.y, v[6] = r.high.z, v[7] = r.high.w;
    }
    static __device__ __forceinline__ Value from_float(float f) { return f; }
    static __device__ __forceinline__ float round(float f) { return f; }
};

// Keys (part 0) or values (part 1) of one head in one block.
template <class V>
__device__ __forceinline__ V* cache_head(V* layer, unsigned block, unsigned part, unsigned kv_heads, unsigned head,
                                         unsigned head_dim) {
    return layer + ((size_t(block) * 2 + part) * kv_heads + head) * (BLOCK_TOKENS * head_dim);
}

struct Rotation {
    const float* frequencies;  // radians per position, one per pair
    unsigned pairs;            // twice as many values of each head are turned
    unsigned half_split;       // 1: pairs (j, j + pairs); 0: pairs (2j, 2j + 1)
};

// cos and sin of position * frequency. The library's own reduction of large arguments needs local memory; here 2 pi is
// taken off in two parts of 24 bits, which is exact enough for every position that a context can have.
__device__ __forceinline__ void turn(float position, float frequency, float& cosine, float& sine) {
    float angle = position * frequency;
    float turns = rintf(angle * 0.15915494f);
    float rest = fmaf(turns, -6.28318548f, angle);
    rest = fmaf(turns, 1.74845553e-7f, rest);
    sincospif(rest * 0.31830989f, &sine, &cosine);
}

__device__ __forceinline__ float sum_over_warp(float v) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}

__device__ __forceinline__ float max_over_warp(float v) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, lane));
    return v;
}

// One warp: a head of `x` (global), normed if there is a weight and turned, into `to` (shared, head_dim values).
// cosines and sines: shared, one per pair.
__device__ __forceinline__ void prepare_head(const float* x, const float* norm, float eps, const Rotation& rotation,
                                             const float* cosines, const float* sines, float* to, unsigned head_dim) {
    const unsigned lane = threadIdx.x & 31;
    float squares = 0.f;
    for (unsigned i = lane; i < head_dim; i += 32) {
        float v = x[i];
        to[i] = v;
        squares += v * v;
    }
    if (norm) {
        float scale = rsqrtf(sum_over_warp(squares) / float(head_dim) + eps);
        for (unsigned i = lane; i < head_dim; i += 32) to[i] *= scale * norm[i];
    }
    __syncwarp();
    for (unsigned j = lane; j < rotation.pairs; j += 32) {
        unsigned a = rotation.half_split ? j : 2 * j, b = rotation.half_split ? j + rotation.pairs : 2 * j + 1;
        float p = to[a], q = to[b];
        to[a] = p * cosines[j] - q * sines[j];
        to[b] = q * cosines[j] + p * sines[j];
    }
    __syncwarp();
}

}  // namespace tombolo
