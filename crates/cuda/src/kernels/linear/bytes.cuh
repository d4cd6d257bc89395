// What the kernels that multiply bytes (linear_decode.cu, linear_tiles.cu) share: sums of products as floats, and scales.
#pragma once
#include "quant.cuh"

// Adding an int32 product sum to this bit pattern gives the float 12582912 + sum, exactly, below 2^22.
constexpr int MAGIC_BITS = 0x4B400000;
constexpr float MAGIC = 12582912.f;

__device__ __forceinline__ float2 halves(uint32_t bits) {
    return __half22float2(*reinterpret_cast<const __half2*>(&bits));
}

// Of the 64 weights of lane `lane` of a Q4_K block, as the header says them: scales of both halves (6 bits in the two low
// bytes) and minima (6 bits in the third, and in the top byte of `second`).
struct Packed4 {
    uint32_t low, second;
};

__device__ __forceinline__ Packed4 packed4(const uint4& header, uint32_t lane) {
    const uint32_t v =
        __byte_perm(__byte_perm(header.y, header.z, lane | (4 + lane) << 4), header.w, 0x10 | (4 + lane) << 8);
    return {v & 0x3f3f3f, (v & 0xc0c0c0) * ((1u << 18) + (1u << 12) + (1u << 6))};
}
