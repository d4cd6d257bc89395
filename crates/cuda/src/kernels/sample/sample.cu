// From logits to candidates and the greedy token, over all vocabulary shards: two launches.
//
//   sample_chunks  per row and chunk of 4,096 logits: the best 64 (the best one where the row is greedy), sorted by
//                  falling logit, ties by lower token; and Σ exp((logit - best) / temperature) of the chunk.
//   sample_merge   per row: the shard's best 64 and weight from its chunks; then every rank sends its summary to every
//                  other (ll.cuh) and all pick the same greedy token.
//
// A summary is 66 lines of 8 bytes: weight (f64), {candidates, 0}, then {token, logit} of each candidate. A greedy
// row's summary has one candidate: nothing beyond its first three lines is sent or written.
//
// Bytes: the logits once. What bounds it: latency at one row, the sorting of 64-element runs at many sampled rows.
// Verified on: H200.
#include "../all_reduce/ll.cuh"

using namespace tombolo;

namespace {

constexpr unsigned CANDIDATES = 64;
constexpr unsigned CHUNK = 4096;
constexpr unsigned THREADS = 256;
constexpr unsigned WARPS = THREADS / 32;
constexpr unsigned PER_THREAD = CHUNK / THREADS;
constexpr unsigned LINES = CANDIDATES + 2;

using Key = unsigned long long;  // larger is better; 0: none

struct Args {
    const float* logits;         // [rows][stride], this rank's shard
    const float* inverse;        // [rows]: 1 / temperature; not above 0: greedy
    Key* keys;                   // scratch [rows][chunks][64]
    float* weights;              // scratch [rows][chunks]
    uint2* summaries;            // out [rows][ranks][66]
    unsigned* tokens;            // out [rows]: the greedy token
    unsigned stride;
    unsigned shard;              // logits of a row
    unsigned first;              // token of the shard's first logit
    unsigned kind;               // what to call this when a rank is silent
};

// Falling total order of logits (NaN last, as -infinity), then lower token first.
__device__ __forceinline__ Key make_key(float logit, unsigned token) {
    unsigned bits = __float_as_uint(logit != logit ? -__builtin_huge_valf() : logit);
    unsigned ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return Key(ordered) << 32 | (0xffffffffu - token);
}

__device__ __forceinline__ float key_logit(Key key) {
    unsigned ordered = unsigned(key >> 32);
    return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

__device__ __forceinline__ unsigned key_token(Key key) { return 0xffffffffu - unsigned(key); }

// 64 keys of a warp: key i in `low` of lane i, key 32 + i in `high` of lane i.
struct Run {
    Key low, high;
};

__device__ __forceinline__ Key exchange(Key key, unsigned distance, bool falling) {
    Key other = __shfl_xor_sync(~0u, key, distance);
    bool keep_larger = ((threadIdx.x & distance) == 0) == falling;
    return (key > other) == keep_larger ? key : other;
}

// Sorts a bitonic run, falling.
__device__ __forceinline__ void finish(Run& run) {
    Key larger = run.low > run.high ? run.low : run.high, smaller = run.low > run.high ? run.high : run.low;
    run.low = larger, run.high = smaller;
#pragma unroll
    for (unsigned distance = 16; distance; distance >>= 1) {
        run.low = exchange(run.low, distance, true);
        run.high = exchange(run.high, distance, true);
    }
}

// Sorts any run, falling (bitonic sort, Batcher 1968).
__device__ __forceinline__ void sort(Run& run) {
    const unsigned lane = threadIdx.x & 31;
#pragma unroll
    for (unsigned size = 2; size <= 32; size <<= 1) {
#pragma unroll
        for (unsigned distance = size / 2; distance; distance >>= 1) {
            run.low = exchange(run.low, distance, (lane & size) == 0);
            run.high = exchange(run.high, distance, ((lane + 32) & size) == 0);
        }
    }
    finish(run);
}

// The best 64 of two sorted runs, the second given in reverse.
__device__ __forceinline__ void merge(Run& run, Key reversed_low, Key reversed_high) {
    run.low = run.low > reversed_low ? run.low : reversed_low;
    run.high = run.high > reversed_high ? run.high : reversed_high;
    finish(run);
}

__device__ __forceinline__ void merge(Run& run, const Run& other) {
    const unsigned mirror = 31 - (threadIdx.x & 31);
    Key low = __shfl_sync(~0u, other.high, mirror), high = __shfl_sync(~0u, other.low, mirror);
    merge(run, low, high);
}

__device__ __forceinline__ Key best_of_warp(Key key) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) {
        Key other = __shfl_xor_sync(~0u, key, lane);
        key = key > other ? key : other;
    }
    return key;
}

// Warp 0 ends with the best 64 of every warp's run; `runs` is shared.
__device__ __forceinline__ void merge_warps(Run& run, Key (&runs)[WARPS][CANDIDATES]) {
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
#pragma unroll
    for (unsigned half = WARPS / 2; half; half >>= 1) {
        if (warp >= half && warp < 2 * half) {
            runs[warp][lane] = run.low;
            runs[warp][lane + 32] = run.high;
        }
        __syncthreads();
        if (warp < half) merge(run, runs[warp + half][63 - lane], runs[warp + half][31 - lane]);
    }
}

__device__ __forceinline__ double relative_weight(float logit, float best, float inverse) {
    if (logit == best) return 1.0;
    return inverse > 0.f ? double(expf((logit - best) * inverse)) : 0.0;
}

__device__ __forceinline__ double sum_of_warp(double v) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}

}  // namespace

// grid: (chunks, rows)
extern "C" __global__ void __launch_bounds__(THREADS) sample_chunks(const __grid_constant__ Args a) {
    __shared__ Key runs[WARPS][CANDIDATES];
    __shared__ double sums[WARPS];
    __shared__ Key best_key;
    launch_dependents();
    const unsigned chunk = blockIdx.x, chunks = gridDim.x, row = blockIdx.y;
    const unsigned lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    wait_for_prerequisites();
    const float inverse = a.inverse[row];
    const float* logits = a.logits + size_t(row) * a.stride;
    // A warp's 512 logits in 8 runs of 64.
    float values[PER_THREAD];
    const unsigned start = chunk * CHUNK + warp * (CHUNK / WARPS) + lane;
#pragma unroll
    for (unsigned i = 0; i < PER_THREAD; i++) {
        unsigned at = start + i * 32;
        values[i] = at < a.shard ? logits[at] : 0.f;
    }
    auto key_at = [&](unsigned i) {
        unsigned at = start + i * 32;
        return at < a.shard ? make_key(values[i], a.first + at) : 0ull;
    };
    Key* out = a.keys + (size_t(row) * chunks + chunk) * CANDIDATES;
    if (!(inverse > 0.f)) {
        Key best = 0;
#pragma unroll
        for (unsigned i = 0; i < PER_THREAD; i++) {
            Key key = key_at(i);
            best = best > key ? best : key;
        }
        best = best_of_warp(best);
        if (lane == 0) runs[warp][0] = best;
        __syncthreads();
        if (warp == 0) {
            best = best_of_warp(lane < WARPS ? runs[lane][0] : 0);
            if (lane == 0) out[0] = best;
        }
        return;
    }
    Run run{key_at(0), key_at(1)};
    sort(run);
#pragma unroll
    for (unsigned i = 2; i < PER_THREAD; i += 2) {
        Run next{key_at(i), key_at(i + 1)};
        Key worst = __shfl_sync(~0u, run.high, 31);
        if (!__any_sync(~0u, next.low > worst || next.high > worst)) continue;
        sort(next);
        merge(run, next);
    }
    merge_warps(run, runs);
    if (warp == 0) {
        out[lane] = run.low;
        out[lane + 32] = run.high;
        if (lane == 0) best_key = run.low;
    }
    __syncthreads();
    const float best = key_logit(best_key);
    double sum = 0.0;
#pragma unroll
    for (unsigned i = 0; i < PER_THREAD; i++) {
        float value = values[i] != values[i] ? -__builtin_huge_valf() : values[i];
        if (start + i * 32 < a.shard) sum += relative_weight(value, best, inverse);
    }
    sum = sum_of_warp(sum);
    if (lane == 0) sums[warp] = sum;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned w = 1; w < WARPS; w++) sum += sums[w];
        a.weights[size_t(row) * chunks + chunk] = float(sum);
    }
}

// grid: rows
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    sample_merge(const __grid_constant__ Link link, const __grid_constant__ Args a, unsigned chunks) {
    __shared__ Key runs[WARPS][CANDIDATES];
    __shared__ uint2 mine[LINES];
    __shared__ uint2 firsts[MAX_RANKS];
    __shared__ bool received;  // firsts hold what every rank sent
    launch_dependents();
    const unsigned row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    if (threadIdx.x == 0) received = false;
    wait_for_prerequisites();
    const float inverse = a.inverse[row];
    const bool greedy = !(inverse > 0.f);
    const Key* keys = a.keys + size_t(row) * chunks * CANDIDATES;
    Run run{0, 0};
    if (greedy) {
        for (unsigned c = threadIdx.x; c < chunks; c += THREADS) {
            Key key = keys[size_t(c) * CANDIDATES];
            run.low = run.low > key ? run.low : key;
        }
        run.low = best_of_warp(run.low);
        if (lane != 0) run.low = 0;  // a run of one
    } else {
        for (unsigned c = warp; c < chunks; c += WARPS) {
            const Key* list = keys + size_t(c) * CANDIDATES;
            merge(run, list[63 - lane], list[31 - lane]);
        }
    }
    merge_warps(run, runs);
    if (warp == 0) {
        const unsigned count = __popc(__ballot_sync(~0u, run.low != 0)) + __popc(__ballot_sync(~0u, run.high != 0));
        mine[2 + lane] = make_uint2(key_token(run.low), __float_as_uint(key_logit(run.low)));
        mine[34 + lane] = make_uint2(key_token(run.high), __float_as_uint(key_logit(run.high)));
        const float best = key_logit(__shfl_sync(~0u, run.low, 0));
        double weight = 0.0;
        for (unsigned c = lane; c < chunks && !greedy; c += 32) {
            weight += a.weights[size_t(row) * chunks + c] *
                      relative_weight(key_logit(keys[size_t(c) * CANDIDATES]), best, inverse);
        }
        weight = greedy ? 1.0 : sum_of_warp(weight);
        if (lane == 0) {
            unsigned long long bits = __double_as_longlong(weight);
            mine[0] = make_uint2(unsigned(bits), unsigned(bits >> 32));
            mine[1] = make_uint2(greedy ? 1 : count, 0);
        }
    }
    const Call call = enter(link);
    count(link, row * WARPS + warp, gridDim.x * WARPS);
    __syncthreads();
    if (call.dead) return;
    const unsigned lines = greedy ? 3 : LINES, i = threadIdx.x;
    if (i < lines) {
        send_line(link, call, row * LINES + i, mine[i]);
        uint2 all[MAX_RANKS];
        if (receive_line<MAX_RANKS>(link, call, row * LINES + i, mine[i], all, a.kind)) {
#pragma unroll
            for (unsigned r = 0; r < MAX_RANKS; r++) {
                if (r < link.ranks) {
                    a.summaries[(size_t(row) * link.ranks + r) * LINES + i] = all[r];
                    if (i == 2) firsts[r] = all[r];
                }
            }
            if (i == 2) received = true;
        }
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        Key best = 0;
        for (unsigned r = 0; r < link.ranks && received; r++) {
            Key key = make_key(__uint_as_float(firsts[r].y), firsts[r].x);
            best = best > key ? best : key;
        }
        // The next step may be on its way already: where a rank was silent it must still find a token that exists.
        a.tokens[row] = received ? key_token(best) : 0;
    }
}
