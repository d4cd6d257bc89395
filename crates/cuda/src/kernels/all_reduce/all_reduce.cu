// All-reduce between the ranks of one machine, alone or fused with what follows it: one-shot, every rank sends its
// whole partial sum to every other (ll.cuh: lines, epochs, deadlines, and why two slots are enough).
//
//   all_reduce           out = Σ partial
//   all_reduce_add       residual_out = residual_in + Σ partial
//   all_reduce_add_norm  the same, and out = residual_out / sqrt(mean(residual_out²) + eps) ⊙ weight
//
// partial, residual, out: f32 [rows, width]; weight: f32 [width]. The wire carries bf16 or f32. Every rank sums the
// wire-rounded values of ranks 0..N-1, its own included, in f32 and in that order, so all ranks hold the same bits.
//
// A warp owns tiles of 32 lines of one row and needs no barrier with any other warp. For the norm every warp leaves
// its tile's sum of squares in a flagged word of the own device's memory (one more hop, through L2) and adds up the
// words of its row in tile order: the result depends neither on the grid nor on the rank. All warps of the grid must
// therefore be resident at once: the wrapper launches at most 128 blocks of 256 threads.
//
// Bytes: (N - 1) * 2 * wire bytes out and in. 12 KiB over 2 ranks: 24 KiB each way, 0.5 us on PCIe 5 x16; what
// bounds it is latency: read partial and epoch (L2), one flight, one poll, and for the norm one hop through L2.
// Verified on: 2x H200, NVLink peer memory and pinned host memory over PCIe 5 x16.
#include "ll.cuh"

using namespace tombolo;

namespace {

enum Mode { SUM, ADD, ADD_NORM };

struct Args {
    const float* partial;
    const float* residual_in;  // may be residual_out: every value is read and written by one thread only
    float* residual_out;
    float* out;
    const float* weight;
    unsigned rows;
    unsigned width;
    float eps;
    unsigned kind;  // what to call this operation when a rank is silent
};

struct Tile {
    unsigned row;
    unsigned first;  // value within the row
    unsigned line;   // within the slot
    bool mine;       // whether this lane has a line in it
};

template <class W>
__device__ __forceinline__ Tile tile_at(unsigned tile, unsigned tiles_per_row, unsigned width) {
    unsigned row = tile / tiles_per_row;
    unsigned j = (tile - row * tiles_per_row) * 32 + (threadIdx.x & 31);
    unsigned lines_per_row = width / W::VALUES;
    return Tile{row, j * W::VALUES, row * lines_per_row + j, j < lines_per_row};
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int lane = 16; lane; lane >>= 1) v += __shfl_xor_sync(~0u, v, lane);
    return v;
}

// A tile's sum of squares, for the other warps of this device.
__device__ __forceinline__ void publish(unsigned long long* word, float value, const Call& call) {
    asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(word), "r"(__float_as_uint(value)), "r"(call.flag_b)
                 : "memory");
}

// The sum of a row's published words; false for the whole warp when one lane gave up.
__device__ __forceinline__ bool collect(const Link& link, const Call& call, const unsigned long long* words,
                                        unsigned count, float& sum, unsigned kind) {
    sum = 0.f;
    bool ok = true;
    for (unsigned t = threadIdx.x & 31; t < count && ok; t += 32) {
        unsigned value, flag;
        Patience patience;
        while (true) {
            asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(value), "=r"(flag) : "l"(words + t) : "memory");
            if (flag == call.flag_b) break;
            if (!may_wait(patience, link, call, link.rank, kind, 2)) {
                ok = false;
                break;
            }
        }
        sum += __uint_as_float(value);
    }
    ok = __all_sync(~0u, ok);
    sum = warp_sum(sum);
    return ok;
}

template <class W, int N>
__device__ __forceinline__ bool reduce_line(const Link& link, const Call& call, unsigned line, uint2 own,
                                            float (&sum)[W::VALUES], unsigned kind) {
    uint2 data[N];
    if (!receive_line<N>(link, call, line, own, data, kind)) return false;
    W::unpack(data[0], sum);
#pragma unroll
    for (int r = 1; r < N; r++) {
        if (r < int(link.ranks)) {
            float v[W::VALUES];
            W::unpack(data[r], v);
#pragma unroll
            for (int i = 0; i < W::VALUES; i++) sum[i] += v[i];
        }
    }
    return true;
}

// The last phase of ADD_NORM for one tile.
template <class W>
__device__ __forceinline__ void write_normed(const Args& a, const Tile& t, const float (&x)[W::VALUES],
                                             const float (&w)[W::VALUES], float sum_of_squares) {
    float scale = rsqrtf(sum_of_squares / float(a.width) + a.eps);
    float y[W::VALUES];
#pragma unroll
    for (int i = 0; i < W::VALUES; i++) y[i] = x[i] * scale * w[i];
    W::store(a.out + size_t(t.row) * a.width + t.first, y);
}

template <class W, int N, Mode M>
__device__ __forceinline__ void all_reduce(const Link& link, const Args& a) {
    constexpr int V = W::VALUES;
    launch_dependents();
    const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    const unsigned tiles_per_row = (a.width / V + 31) / 32, tiles = a.rows * tiles_per_row;
    const Tile first = tile_at<W>(warp, tiles_per_row, a.width);
    const bool first_mine = warp < tiles && first.mine;
    // Weights do not depend on what ran before; everything else does.
    float w0[V] = {};
    if (M == ADD_NORM && first_mine) W::load(a.weight + first.first, w0);
    wait_for_prerequisites();

    float own0[V] = {}, kept[V] = {};
    if (first_mine) W::load(a.partial + size_t(first.row) * a.width + first.first, own0);
    if (M != SUM && first_mine) W::load(a.residual_in + size_t(first.row) * a.width + first.first, kept);
    const Call call = enter(link, warp, warps);
    if (call.dead) return;
    const uint2 packed0 = W::pack(own0);
    if (first_mine) send_line(link, call, first.line, packed0);
    for (unsigned tile = warp + warps; tile < tiles; tile += warps) {
        Tile t = tile_at<W>(tile, tiles_per_row, a.width);
        if (!t.mine) continue;
        float own[V];
        W::load(a.partial + size_t(t.row) * a.width + t.first, own);
        send_line(link, call, t.line, W::pack(own));
    }

    bool ok = true;
    for (unsigned tile = warp; tile < tiles && ok; tile += warps) {
        Tile t = tile_at<W>(tile, tiles_per_row, a.width);
        const size_t at = size_t(t.row) * a.width + t.first;
        const bool is_first = tile == warp;
        float squares = 0.f;
        if (t.mine) {
            float own[V], sum[V], x[V];
            uint2 packed = packed0;
            if (!is_first) {
                W::load(a.partial + at, own);
                packed = W::pack(own);
            }
            ok = reduce_line<W, N>(link, call, t.line, packed, sum, a.kind);
            if (ok && M == SUM) W::store(a.out + at, sum);
            if (ok && M != SUM) {
#pragma unroll
                for (int i = 0; i < V; i++) x[i] = kept[i];
                if (!is_first) W::load(a.residual_in + at, x);
#pragma unroll
                for (int i = 0; i < V; i++) {
                    x[i] += sum[i];
                    squares += x[i] * x[i];
                    if (is_first) kept[i] = x[i];
                }
                W::store(a.residual_out + at, x);
            }
        }
        ok = __all_sync(~0u, ok);
        if (M == ADD_NORM && ok) {
            squares = warp_sum(squares);
            if ((threadIdx.x & 31) == 0) publish(link.tiles + tile, squares, call);
        }
    }
    if constexpr (M == ADD_NORM) {
        for (unsigned tile = warp; tile < tiles && ok; tile += warps) {
            Tile t = tile_at<W>(tile, tiles_per_row, a.width);
            float squares;
            ok = collect(link, call, link.tiles + size_t(t.row) * tiles_per_row, tiles_per_row, squares, a.kind);
            if (!ok || !t.mine) continue;
            if (tile == warp) {
                write_normed<W>(a, t, kept, w0, squares);
            } else {
                float x[V], w[V];
                W::load(a.residual_out + size_t(t.row) * a.width + t.first, x);
                W::load(a.weight + t.first, w);
                write_normed<W>(a, t, x, w, squares);
            }
        }
    }
}

}  // namespace

#define KERNEL(name, wire, n, mode)                                                                       \
    extern "C" __global__ void __launch_bounds__(256) name(const __grid_constant__ Link link,             \
                                                           const __grid_constant__ Args args) {           \
        all_reduce<wire, n, mode>(link, args);                                                            \
    }
#define KERNELS(name, mode)                      \
    KERNEL(name##_bf16_2, WireBf16, 2, mode)     \
    KERNEL(name##_bf16_8, WireBf16, 8, mode)     \
    KERNEL(name##_f32_2, WireF32, 2, mode)       \
    KERNEL(name##_f32_8, WireF32, 8, mode)

KERNELS(all_reduce, SUM)
KERNELS(all_reduce_add, ADD)
KERNELS(all_reduce_add_norm, ADD_NORM)
