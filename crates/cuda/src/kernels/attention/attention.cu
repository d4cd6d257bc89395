// Attention over a paged KV cache (cache.cuh), grouped-query, causal, online softmax in f32.
//
//   attention_decode_*   every row its own sequence. One launch does it all: per-head RMSNorm of queries and keys
//                        (optional), rotation, the write of this position's key and value, and attention over
//                        positions 0..=p. Long contexts are split over blocks of the grid; the last block to finish
//                        adds up the parts in order, so the result does not depend on who was first.
//   rope_kv_write_*      the same preparation for any rows: queries in place, keys and values into the cache.
//   attention_rows_*     any mix of rows of several sequences, after rope_kv_write: tiles of a few neighbouring rows
//                        of one sequence.
//
// q, k, v, out: f32, rows `*_stride` values apart. A block has 8 warps; a warp takes every eighth unit of its range: 8
// tokens in decode, a KV block (32 tokens) in attention_rows. It holds SLOTS query vectors (heads that share the KV head; times rows in attention_rows) in
// registers, LANES lanes to a key, 8 values a lane.
//
// Bytes: every key and value once per SLOTS query vectors: 2 * tokens * kv_heads * head_dim * 2. At decode that is the
// floor (4 MB at 1,024 tokens of 8 x 128: 0.9 us at 4.5 TB/s); below some thousand tokens latency bounds it: queries from
// L2, rotation, one round of arithmetic per 64 tokens, the hand-over between splits. So a decode warp takes 8 tokens at a
// time, not a whole KV block, has the first of them in registers before it waits for the kernel before, and a lone row uses
// a block per head.
// Measured, H200, 8B shape, 64 tokens on average: 3.5 us a layer of a step on one GPU (as if the kernel only waited: 0), 4.1
// as one of two ranks; 4.3 and 5.2 with the first loads after the wait.
// Verified on: H200.
#include "../all_reduce/ll.cuh"
#include "cache.cuh"

using namespace tombolo;

namespace {

constexpr unsigned WARPS = 8;
constexpr unsigned DECODE_UNIT = 8;    // tokens that a decode warp takes at once
constexpr unsigned UNITS = BLOCK_TOKENS / DECODE_UNIT;
constexpr unsigned LEAST_BLOCKS = 4;  // KV blocks of a split: with fewer the hand-over costs more than it saves
constexpr unsigned THREADS = WARPS * 32;
constexpr float NEG_INF = -__builtin_huge_valf();

struct Args {
    float* q;  // written by rope_kv_write only
    const float* k;
    const float* v;
    float* out;
    void* cache;                 // this layer's
    const unsigned* positions;   // [rows]; NO_ROW: padding
    const unsigned* sequences;   // [rows]: which block table
    const unsigned* tables;      // [sequences][table_len]: block numbers
    const uint2* tiles;          // attention_rows: first row and number of rows of every tile
    const float* q_norm;         // [head_dim] or null
    const float* k_norm;         // [head_dim] or null
    float* parts;                // attention_decode: [rows][heads][splits][head_dim + 2]
    unsigned* tickets;           // attention_decode: [rows][kv_heads * head groups], zero, and zero again afterwards
    Rotation rotation;
    unsigned q_stride, k_stride, v_stride, out_stride;
    unsigned rows, heads, kv_heads, head_dim, table_len, splits;
    float scale, eps;
    // 1: positions, sequences and tables may be read before the kernel before has ended (the kernel that wrote them did
    // not let its own successor start early, and fenced its writes). Then rotation and prefetch overlap that kernel.
    unsigned early;
    unsigned reserved;
};

// Past any first-level cache: another kernel may have left an older step's words there.
__device__ __forceinline__ unsigned load_word(const unsigned* p) {
    unsigned v;
    asm volatile("ld.volatile.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

template <class C, int SLOTS, int LANES>
struct Shared {
    static constexpr int DIM = LANES * 8;
    float q[SLOTS][DIM];
    float k[DIM], v[DIM];  // of the current position, rounded as the cache rounds
    float cosines[DIM / 2], sines[DIM / 2];
    float scores[WARPS][SLOTS][BLOCK_TOKENS];  // of a unit
    float sums[WARPS][SLOTS][DIM];
    float most[WARPS][SLOTS], total[WARPS][SLOTS];
    unsigned last;
};

// What one warp knows of its tokens so far.
template <int SLOTS>
struct State {
    float most[SLOTS], total[SLOTS], sum[SLOTS][8];
};

// Keys (or values) of BATCH steps of a unit, 32 / LANES tokens each, from the token `from` on, as they lie in the cache.
// What lies beyond the last token was never written: zeros instead, so that it cannot meet the zero weights as NaN.
template <class C, int LANES, int BATCH>
__device__ __forceinline__ void load_tokens(typename C::Raw (&raw)[BATCH], const typename C::Value* rows, unsigned from,
                                            unsigned head_dim, unsigned longest) {
    const unsigned lane = threadIdx.x & 31, part = lane % LANES;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        unsigned token = from + i * (32 / LANES) + lane / LANES;
        raw[i] = part * 8 < head_dim && token < longest ? C::load(rows + token * head_dim + part * 8) : C::zero();
    }
}

// 8 values of one token: from the cache's, or where the token is the current one from shared memory.
template <class C, bool CURRENT>
__device__ __forceinline__ void values_of(const typename C::Raw& raw, const float* own, bool is_current, unsigned part,
                                          unsigned head_dim, float (&v)[8]) {
    C::unpack(raw, v);
    if (CURRENT && is_current) {
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] = part * 8 < head_dim ? own[part * 8 + e] : 0.f;
    }
}

// Scores of the loaded keys into shared memory.
template <class C, int SLOTS, int LANES, bool CURRENT, int BATCH, class S>
__device__ __forceinline__ void score_keys(S& sh, const float (&q)[SLOTS][8], const typename C::Raw (&raw)[BATCH],
                                           unsigned from, unsigned current, unsigned head_dim) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane % LANES;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        unsigned token = from + i * (32 / LANES) + lane / LANES;
        float key[8];
        values_of<C, CURRENT>(raw[i], sh.k, token == current, part, head_dim, key);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            float dot = 0.f;
#pragma unroll
            for (int e = 0; e < 8; e++) dot = fmaf(q[s][e], key[e], dot);
#pragma unroll
            for (int o = LANES / 2; o; o >>= 1) dot += __shfl_xor_sync(~0u, dot, o);
            if (part == 0) sh.scores[warp][s][token] = dot;
        }
    }
}

// Online softmax over the scores of a unit: they become weights, and what was summed so far shrinks to the new maximum.
template <int SLOTS, unsigned UNIT, class S>
__device__ __forceinline__ void weigh(S& sh, State<SLOTS>& st, const unsigned (&limit)[SLOTS]) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    __syncwarp();
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        float score = lane < limit[s] ? sh.scores[warp][s][lane] : NEG_INF;
        float most = fmaxf(st.most[s], max_over_warp(score));
        // A slot that sees nothing of this unit (and nothing before it) stays as it is.
        float p = lane < limit[s] ? exp2f(score - most) : 0.f;
        float shrink = limit[s] ? exp2f(st.most[s] - most) : 1.f;
        st.total[s] = st.total[s] * shrink + sum_over_warp(p);
        st.most[s] = most;
        if (UNIT == BLOCK_TOKENS || lane < UNIT) sh.scores[warp][s][lane] = p;
#pragma unroll
        for (int e = 0; e < 8; e++) st.sum[s][e] *= shrink;
    }
    __syncwarp();
}

// Adds the loaded values by their weights.
template <class C, int SLOTS, int LANES, bool CURRENT, int BATCH, class S>
__device__ __forceinline__ void add_values(S& sh, State<SLOTS>& st, const typename C::Raw (&raw)[BATCH], unsigned from,
                                           unsigned current, unsigned head_dim) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane % LANES;
#pragma unroll
    for (int i = 0; i < BATCH; i++) {
        unsigned token = from + i * (32 / LANES) + lane / LANES;
        float value[8];
        values_of<C, CURRENT>(raw[i], sh.v, token == current, part, head_dim, value);
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            float p = sh.scores[warp][s][token];
#pragma unroll
            for (int e = 0; e < 8; e++) st.sum[s][e] = fmaf(p, value[e], st.sum[s][e]);
        }
    }
}

// A KV block of one head. `limit[s]`: tokens of it that slot s may see; `longest`: the largest of them.
template <class C, int SLOTS, int LANES, class S>
__device__ __forceinline__ void visit_block(S& sh, State<SLOTS>& st, const float (&q)[SLOTS][8],
                                            const typename C::Value* keys, const typename C::Value* values,
                                            unsigned head_dim, const unsigned (&limit)[SLOTS], unsigned longest) {
    constexpr int TOKENS = 32 / LANES;  // at once
    constexpr int BATCH = SLOTS > 4 ? C::IN_FLIGHT / 2 : C::IN_FLIGHT;  // registers are short with many slots
    typename C::Raw raw[BATCH];
#pragma unroll 1
    for (unsigned from = 0; from < BLOCK_TOKENS; from += BATCH * TOKENS) {
        load_tokens<C, LANES>(raw, keys, from, head_dim, longest);
        score_keys<C, SLOTS, LANES, false>(sh, q, raw, from, BLOCK_TOKENS, head_dim);
    }
    weigh<SLOTS, BLOCK_TOKENS>(sh, st, limit);
#pragma unroll 1
    for (unsigned from = 0; from < BLOCK_TOKENS; from += BATCH * TOKENS) {
        load_tokens<C, LANES>(raw, values, from, head_dim, longest);
        add_values<C, SLOTS, LANES, false>(sh, st, raw, from, BLOCK_TOKENS, head_dim);
    }
    __syncwarp();
}

// What a decode warp takes at once: DECODE_UNIT neighbouring tokens, keys and values asked for together.
template <class C, int LANES>
struct Unit {
    static constexpr int STEPS = DECODE_UNIT * LANES / 32;
    typename C::Raw keys[STEPS], values[STEPS];
    unsigned tokens, current;  // tokens that are there; which of them is the current position, if one is

    // Unit `u` of a sequence at `position`, in the cache's block `block`. Its older tokens were written by earlier steps, so
    // this need not wait for the kernel before.
    __device__ __forceinline__ void load(const Args& a, const typename C::Value* layer, unsigned block, unsigned kv_head,
                                         unsigned u, unsigned position) {
        const bool last = u == position / DECODE_UNIT;
        tokens = last ? position % DECODE_UNIT + 1 : DECODE_UNIT;
        current = last ? tokens - 1 : DECODE_UNIT;
        const unsigned offset = u % UNITS * DECODE_UNIT * a.head_dim, older = min(tokens, current);
        load_tokens<C, LANES>(keys, cache_head(layer, block, 0, a.kv_heads, kv_head, a.head_dim) + offset, 0, a.head_dim,
                              older);
        load_tokens<C, LANES>(values, cache_head(layer, block, 1, a.kv_heads, kv_head, a.head_dim) + offset, 0,
                              a.head_dim, older);
    }

    template <int SLOTS, class S>
    __device__ __forceinline__ void visit(S& sh, State<SLOTS>& st, const float (&q)[SLOTS][8], unsigned head_dim) const {
        unsigned limit[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) limit[s] = tokens;
        score_keys<C, SLOTS, LANES, true>(sh, q, keys, 0, current, head_dim);
        weigh<SLOTS, DECODE_UNIT>(sh, st, limit);
        add_values<C, SLOTS, LANES, true>(sh, st, values, 0, current, head_dim);
        __syncwarp();
    }
};

template <int SLOTS>
__device__ __forceinline__ void clear(State<SLOTS>& st) {
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        st.most[s] = NEG_INF;
        st.total[s] = 0.f;
#pragma unroll
        for (int e = 0; e < 8; e++) st.sum[s][e] = 0.f;
    }
}

// Adds up the lanes that saw different tokens, and leaves every warp's state in shared memory.
template <int SLOTS, int LANES, class S>
__device__ __forceinline__ void share(S& sh, State<SLOTS>& st) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane % LANES;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
#pragma unroll
        for (int e = 0; e < 8; e++) {
            float v = st.sum[s][e];
#pragma unroll
            for (int o = 16; o >= LANES; o >>= 1) v += __shfl_xor_sync(~0u, v, o);
            if (lane < LANES) sh.sums[warp][s][part * 8 + e] = v;
        }
        if (lane == 0) {
            sh.most[warp][s] = st.most[s];
            sh.total[warp][s] = st.total[s];
        }
    }
    __syncthreads();
}

// One value of one slot, over the warps in order: unnormalised sum; most and total are the slot's.
template <class S>
__device__ __forceinline__ float combine(const S& sh, unsigned slot, unsigned e, float& most, float& total) {
    most = NEG_INF;
#pragma unroll
    for (unsigned w = 0; w < WARPS; w++) most = fmaxf(most, sh.most[w][slot]);
    float sum = 0.f;
    total = 0.f;
#pragma unroll
    for (unsigned w = 0; w < WARPS; w++) {
        float shrink = sh.most[w][slot] == NEG_INF ? 0.f : exp2f(sh.most[w][slot] - most);
        total += sh.total[w][slot] * shrink;
        sum += sh.sums[w][slot][e] * shrink;
    }
    return sum;
}

template <int SLOTS, class S>
__device__ __forceinline__ void load_queries(const S& sh, float (&q)[SLOTS][8], unsigned part, unsigned head_dim) {
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
#pragma unroll
        for (int e = 0; e < 8; e++) q[s][e] = part * 8 < head_dim ? sh.q[s][part * 8 + e] : 0.f;
    }
}

// The last block of a (row, head group) adds up all parts in order of the splits.
__device__ __forceinline__ void add_parts(const Args& a, unsigned row, unsigned first_head, unsigned slots,
                                          unsigned active) {
    const unsigned stride = a.head_dim + 2;
    for (unsigned i = threadIdx.x; i < slots * a.head_dim; i += THREADS) {
        unsigned s = i / a.head_dim, e = i % a.head_dim;
        const float* parts = a.parts + (size_t(row) * a.heads + first_head + s) * a.splits * stride;
        float most = NEG_INF, total = 0.f, sum = 0.f;
        for (unsigned n = 0; n < active; n++) most = fmaxf(most, __ldcg(parts + n * stride + a.head_dim));
        for (unsigned n = 0; n < active; n++) {
            const float* part = parts + n * stride;
            float shrink = exp2f(__ldcg(part + a.head_dim) - most);
            total += __ldcg(part + a.head_dim + 1) * shrink;
            sum += __ldcg(part + e) * shrink;
        }
        a.out[size_t(row) * a.out_stride + (first_head + s) * a.head_dim + e] = sum / total;
    }
}

// Asks L2 for keys and values of the range: they do not depend on the kernel before.
template <class V>
__device__ __forceinline__ void prefetch(const Args& a, const V* layer, const unsigned* table, unsigned kv_head,
                                         unsigned first, unsigned end) {
    const unsigned bytes = BLOCK_TOKENS * a.head_dim * sizeof(V);
    const unsigned most = first + 16 < end ? first + 16 : end;
    for (unsigned b = first; b < most; b++) {
        for (unsigned part = 0; part < 2; part++) {
            const char* p = (const char*)cache_head(layer, load_word(table + b), part, a.kv_heads, kv_head, a.head_dim);
            for (unsigned at = threadIdx.x * 128; at < bytes; at += THREADS * 128) {
                asm volatile("prefetch.global.L2 [%0];" ::"l"(p + at));
            }
        }
    }
}

// Queries into shared memory, normed, turned and scaled; for the block that owns the current position its key and value
// too, rounded as the cache rounds.
template <class C, int SLOTS, class S>
__device__ __forceinline__ void prepare_row(S& sh, const Args& a, unsigned row, unsigned kv_head, unsigned first_head,
                                            unsigned slots, bool owner) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, dim = a.head_dim;
    for (unsigned s = warp; s < slots + (owner ? 2u : 0u); s += WARPS) {
        if (s < slots) {
            const float* x = a.q + size_t(row) * a.q_stride + (first_head + s) * dim;
            prepare_head(x, a.q_norm, a.eps, a.rotation, sh.cosines, sh.sines, sh.q[s], dim);
            for (unsigned i = lane; i < dim; i += 32) sh.q[s][i] *= a.scale * 1.44269504f;  // scores in powers of 2
        } else if (s == slots) {
            const float* x = a.k + size_t(row) * a.k_stride + kv_head * dim;
            prepare_head(x, a.k_norm, a.eps, a.rotation, sh.cosines, sh.sines, sh.k, dim);
            for (unsigned i = lane; i < dim; i += 32) sh.k[i] = C::round(sh.k[i]);
        } else {
            const float* x = a.v + size_t(row) * a.v_stride + kv_head * dim;
            for (unsigned i = lane; i < dim; i += 32) sh.v[i] = C::round(x[i]);
        }
    }
    for (unsigned s = slots + warp; s < SLOTS; s += WARPS) {
        for (unsigned i = lane; i < dim; i += 32) sh.q[s][i] = 0.f;
    }
    __syncthreads();
}

// The current position's key and value into the cache.
template <class C, class S>
__device__ __forceinline__ void write_current(const S& sh, const Args& a, unsigned block, unsigned kv_head,
                                              unsigned token) {
    using Value = typename C::Value;
    Value* keys = cache_head((Value*)a.cache, block, 0, a.kv_heads, kv_head, a.head_dim) + token * a.head_dim;
    Value* values = cache_head((Value*)a.cache, block, 1, a.kv_heads, kv_head, a.head_dim) + token * a.head_dim;
    for (unsigned i = threadIdx.x; i < a.head_dim; i += THREADS) {
        keys[i] = C::from_float(sh.k[i]);
        values[i] = C::from_float(sh.v[i]);
    }
}

// What this block found: the result where it is alone, else its part, and the result if it is the last to finish.
template <class S>
__device__ __forceinline__ void write_out(S& sh, const Args& a, unsigned row, unsigned first_head, unsigned slots,
                                          unsigned split, unsigned active) {
    const unsigned dim = a.head_dim, stride = dim + 2;
    for (unsigned i = threadIdx.x; i < slots * dim; i += THREADS) {
        unsigned s = i / dim, e = i % dim;
        float most, total, sum = combine(sh, s, e, most, total);
        if (active == 1) {
            a.out[size_t(row) * a.out_stride + (first_head + s) * dim + e] = sum / total;
        } else {
            float* to = a.parts + ((size_t(row) * a.heads + first_head + s) * a.splits + split) * stride;
            to[e] = sum;
            if (e == 0) to[dim] = most, to[dim + 1] = total;
        }
    }
    if (active == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        sh.last = atomicInc(a.tickets + row * gridDim.y + blockIdx.y, active - 1) == active - 1;
        __threadfence();
    }
    __syncthreads();
    if (sh.last) add_parts(a, row, first_head, slots, active);
}

// grid: (splits, kv_heads * head groups, rows)
template <class C, int SLOTS, int LANES>
__device__ __forceinline__ void decode(const Args& a) {
    using Value = typename C::Value;
    __shared__ Shared<C, SLOTS, LANES> sh;
    launch_dependents();
    const unsigned row = blockIdx.z, lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane % LANES;
    const unsigned per_kv = a.heads / a.kv_heads, groups = (per_kv + SLOTS - 1) / SLOTS;
    const unsigned kv_head = blockIdx.y / groups, group = blockIdx.y % groups;
    const unsigned first_head = kv_head * per_kv + group * SLOTS;
    const unsigned slots = min(unsigned(SLOTS), per_kv - group * SLOTS);
    if (!a.early) wait_for_prerequisites();
    const unsigned position = load_word(a.positions + row);
    const unsigned blocks = position / BLOCK_TOKENS + 1;
    const unsigned chunk = max((blocks + a.splits - 1) / a.splits, LEAST_BLOCKS), active = (blocks + chunk - 1) / chunk;
    const unsigned split = blockIdx.x, first = split * chunk, end = min(first + chunk, blocks);
    // Nothing to do: gone at once, so that the blocks of the product after this one find room and can stage. The grid as
    // a whole still ends after the kernel before it, since every step has a row.
    if (position == NO_ROW || split >= active) return;
    const bool owner = split == active - 1;  // of the current position
    const unsigned* table = a.tables + size_t(load_word(a.sequences + row)) * a.table_len;
    Value* layer = (Value*)a.cache;
    for (unsigned j = threadIdx.x; j < a.rotation.pairs; j += THREADS) {
        turn(float(position), a.rotation.frequencies[j], sh.cosines[j], sh.sines[j]);
    }
    // The first unit of every warp is on its way before the kernel before has ended, the rest of the range into L2.
    const unsigned dim = a.head_dim, units = min(end * UNITS, position / DECODE_UNIT + 1);
    unsigned u = first * UNITS + warp;
    auto block_of = [&](unsigned unit) { return unit < units ? load_word(table + unit / UNITS) : 0; };
    unsigned later = block_of(u + WARPS);  // block of the unit after the next load
    Unit<C, LANES> unit;
    if (u < units) unit.load(a, layer, block_of(u), kv_head, u, position);
    prefetch(a, layer, table, kv_head, first + WARPS / UNITS, end);
    const unsigned own_block = load_word(table + blocks - 1);
    __syncthreads();
    wait_for_prerequisites();

    prepare_row<C, SLOTS>(sh, a, row, kv_head, first_head, slots, owner);
    if (owner && group == 0) write_current<C>(sh, a, own_block, kv_head, position % BLOCK_TOKENS);

    float q[SLOTS][8];
    load_queries<SLOTS>(sh, q, part, dim);
    State<SLOTS> st;
    clear(st);
    for (; u < units; u += WARPS) {
        unit.template visit<SLOTS>(sh, st, q, dim);
        if (u + WARPS < units) {
            unit.load(a, layer, later, kv_head, u + WARPS, position);
            later = block_of(u + 2 * WARPS);
        }
    }
    share<SLOTS, LANES>(sh, st);
    write_out(sh, a, row, first_head, slots, split, active);
}

// grid: (1, kv_heads * head groups, tiles). A tile has at most max(1, SLOTS / per_kv) rows.
template <class C, int SLOTS, int LANES>
__device__ __forceinline__ void attend_rows(const Args& a) {
    using Value = typename C::Value;
    __shared__ Shared<C, SLOTS, LANES> sh;
    launch_dependents();
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32, part = lane % LANES, dim = a.head_dim;
    const unsigned per_kv = a.heads / a.kv_heads, groups = (per_kv + SLOTS - 1) / SLOTS;
    const unsigned kv_head = blockIdx.y / groups, group = blockIdx.y % groups;
    const unsigned per_row = min(unsigned(SLOTS), per_kv - group * SLOTS);
    const unsigned first_head = kv_head * per_kv + group * SLOTS;
    if (!a.early) wait_for_prerequisites();
    const uint2 tile = make_uint2(load_word(&a.tiles[blockIdx.z].x), load_word(&a.tiles[blockIdx.z].y));
    const unsigned slots = tile.y * per_row;
    const unsigned* table = a.tables + size_t(load_word(a.sequences + tile.x)) * a.table_len;
    const unsigned first_position = load_word(a.positions + tile.x);
    const unsigned end = first_position + tile.y;  // tokens that the last row sees
    wait_for_prerequisites();

    for (unsigned s = warp; s < SLOTS; s += WARPS) {
        const float* x = a.q + size_t(tile.x + s / per_row) * a.q_stride + (first_head + s % per_row) * dim;
        for (unsigned i = lane; i < dim; i += 32) sh.q[s][i] = s < slots ? x[i] * a.scale * 1.44269504f : 0.f;
    }
    __syncthreads();
    float q[SLOTS][8];
    load_queries<SLOTS>(sh, q, part, dim);
    State<SLOTS> st;
    clear(st);
    const Value* layer = (const Value*)a.cache;
    for (unsigned b = warp; b * BLOCK_TOKENS < end; b += WARPS) {
        const unsigned before = b * BLOCK_TOKENS;
        unsigned limit[SLOTS];
#pragma unroll
        for (int s = 0; s < SLOTS; s++) {
            unsigned sees = first_position + min(s / per_row, tile.y - 1) + 1;
            limit[s] = sees > before ? min(sees - before, BLOCK_TOKENS) : 0;
        }
        const Value* keys = cache_head(layer, table[b], 0, a.kv_heads, kv_head, dim);
        const Value* values = cache_head(layer, table[b], 1, a.kv_heads, kv_head, dim);
        visit_block<C, SLOTS, LANES>(sh, st, q, keys, values, dim, limit, min(end - before, BLOCK_TOKENS));
    }
    share<SLOTS, LANES>(sh, st);
    for (unsigned i = threadIdx.x; i < slots * dim; i += THREADS) {
        unsigned s = i / dim, e = i % dim;
        float most, total, sum = combine(sh, s, e, most, total);
        a.out[size_t(tile.x + s / per_row) * a.out_stride + (first_head + s % per_row) * dim + e] = sum / total;
    }
}

// grid: rows. Warps share out the row's heads.
template <class C>
__device__ __forceinline__ void rope_kv_write(const Args& a) {
    using Value = typename C::Value;
    constexpr unsigned DIM = 256;
    __shared__ float cosines[DIM / 2], sines[DIM / 2], head[WARPS][DIM];
    launch_dependents();
    const unsigned row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x / 32, dim = a.head_dim;
    if (!a.early) wait_for_prerequisites();
    const unsigned position = load_word(a.positions + row);
    if (position == NO_ROW) {
        wait_for_prerequisites();
        return;
    }
    for (unsigned j = threadIdx.x; j < a.rotation.pairs; j += THREADS) {
        turn(float(position), a.rotation.frequencies[j], cosines[j], sines[j]);
    }
    const unsigned* table = a.tables + size_t(load_word(a.sequences + row)) * a.table_len;
    const unsigned block = load_word(table + position / BLOCK_TOKENS);
    const unsigned token = position % BLOCK_TOKENS;
    __syncthreads();
    wait_for_prerequisites();
    for (unsigned h = warp; h < a.heads + 2 * a.kv_heads; h += WARPS) {
        if (h < a.heads) {
            float* x = a.q + size_t(row) * a.q_stride + h * dim;
            prepare_head(x, a.q_norm, a.eps, a.rotation, cosines, sines, head[warp], dim);
            for (unsigned i = lane; i < dim; i += 32) x[i] = head[warp][i];
        } else if (h < a.heads + a.kv_heads) {
            const unsigned kv = h - a.heads;
            const float* x = a.k + size_t(row) * a.k_stride + kv * dim;
            prepare_head(x, a.k_norm, a.eps, a.rotation, cosines, sines, head[warp], dim);
            Value* to = cache_head((Value*)a.cache, block, 0, a.kv_heads, kv, dim) + token * dim;
            for (unsigned i = lane; i < dim; i += 32) to[i] = C::from_float(head[warp][i]);
        } else {
            const unsigned kv = h - a.heads - a.kv_heads;
            const float* x = a.v + size_t(row) * a.v_stride + kv * dim;
            Value* to = cache_head((Value*)a.cache, block, 1, a.kv_heads, kv, dim) + token * dim;
            for (unsigned i = lane; i < dim; i += 32) to[i] = C::from_float(x[i]);
        }
        __syncwarp();
    }
}

}  // namespace

#define DECODE(type, slots, lanes, dim)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_decode_##type##_##slots##_##dim( \
        const __grid_constant__ Args args) {                                                         \
        decode<Cache##type, slots, lanes>(args);                                                     \
    }
#define ROWS(type, slots, lanes, dim)                                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, 1) attention_rows_##type##_##slots##_##dim( \
        const __grid_constant__ Args args) {                                                       \
        attend_rows<Cache##type, slots, lanes>(args);                                              \
    }
#define PREPARE(type)                                                                                             \
    extern "C" __global__ void __launch_bounds__(THREADS) rope_kv_write_##type(const __grid_constant__ Args args) { \
        rope_kv_write<Cache##type>(args);                                                                         \
    }

// dim: the largest head that the kernel takes.
DECODE(F16, 1, 8, 64)
DECODE(F16, 1, 16, 128)
DECODE(F16, 4, 8, 64)
DECODE(F16, 4, 16, 128)
DECODE(F16, 4, 32, 256)
DECODE(F16, 8, 8, 64)
DECODE(F16, 8, 16, 128)
DECODE(F32, 4, 8, 64)
DECODE(F32, 4, 16, 128)
DECODE(F32, 4, 32, 256)
ROWS(F16, 8, 8, 64)
ROWS(F16, 8, 16, 128)
ROWS(F16, 4, 32, 256)
ROWS(F32, 4, 8, 64)
ROWS(F32, 4, 16, 128)
ROWS(F32, 4, 32, 256)
PREPARE(F16)
PREPARE(F32)
