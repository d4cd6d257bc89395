// What a step brings: the head of its input block, and how the paged KV cache lies. The host's view is in
// kernels/step/mod.rs and must match byte for byte.
#pragma once
#include <cuda_fp16.h>
#include <stdint.h>

constexpr uint32_t BLOCK_TOKENS = 32;           // positions of one KV block
constexpr uint32_t FROM_PREVIOUS = 0x80000000;  // in a token: the low bits are a logits row of the step before

// Start of the input block.
struct StepHead {
    uint32_t rows;       // rows that count; a bucket may launch more, which must change nothing
    uint32_t sequences;
    uint32_t logits;     // logits rows that count
    uint32_t number;     // of the step, from 0
};

// One layer of a KV group. Keys and values of position p of sequence s, KV head h, start at value
// ((tables[s * table_len + p / BLOCK_TOKENS] * kv_heads + h) * BLOCK_TOKENS + p % BLOCK_TOKENS) * head_dim.
struct KvLayer {
    void* keys;               // f32, or f16 where `half` is set
    void* values;
    const uint32_t* tables;   // [sequences, table_len] block numbers
    uint32_t table_len;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t half;
};

__device__ __forceinline__ size_t kv_at(const KvLayer& kv, uint32_t sequence, uint32_t position, uint32_t head) {
    const uint32_t block = kv.tables[size_t(sequence) * kv.table_len + position / BLOCK_TOKENS];
    return ((size_t(block) * kv.kv_heads + head) * BLOCK_TOKENS + position % BLOCK_TOKENS) * kv.head_dim;
}

__device__ __forceinline__ void kv_store(void* cache, uint32_t half, size_t at, float v) {
    if (half) reinterpret_cast<__half*>(cache)[at] = __float2half_rn(v);
    else reinterpret_cast<float*>(cache)[at] = v;
}
