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
// A warp owns tiles of 32 lines of one row and needs no barrier with any other warp. For the norm the tiles' sums of
// squares must meet. Two ways, with the same result bit for bit, whatever the grid and the rank (added in tile order):
//   _cluster  compute capability 9.0 on: one cluster of blocks per row, sums through distributed shared memory.
//   without   a flagged word per tile in the own device's memory: one more hop, through L2. All warps of the grid must
//             be resident at once: the wrapper launches at most 128 blocks of 256 threads.
// Measured on 2x H200, 12 KiB, in a graph, us a call, NVLink peer / pinned host: sum 1.9 / 3.2; with add and norm by
// cluster 2.8 / 4.2. Before the last tuning (2.2 / 3.9 and 2.9 / 4.5) by L2 3.6 / 5.1, every block polling all lines
// 3.6 / not steady, and the norm left to the next kernel as quick as the cluster (the pair 4.2 against 4.3, 5.7 against
// 5.8 on host).
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
__device__ __forceinline__ Tile tile_at(unsigned row, unsigned tile, unsigned width) {
    unsigned j = tile * 32 + (threadIdx.x & 31), lines_per_row = width / W::VALUES;
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

// Which tiles of which rows a warp has: in a cluster those of the cluster's row, else of all rows.
struct Share {
    unsigned first, step, end, tiles_per_row, row;
    bool one_row;

    __device__ __forceinline__ unsigned row_of(unsigned t) const { return one_row ? row : t / tiles_per_row; }
    __device__ __forceinline__ unsigned tile_of(unsigned t) const { return one_row ? t : t % tiles_per_row; }
};

[[maybe_unused]] constexpr unsigned MOST_TILES = 512;  // of a row, in a cluster

#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ unsigned cluster_blocks() {
    unsigned n;
    asm volatile("mov.u32 %0, %cluster_nctaid.x;" : "=r"(n));
    return n;
}

__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Leaves a value in the shared memory of block `block` of the cluster.
__device__ __forceinline__ void store_to_block(float* place, unsigned block, float value) {
    unsigned local = unsigned(__cvta_generic_to_shared(place)), remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(block));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(value) : "memory");
}
#endif

// The tail of ADD_NORM: every tile of this warp once its row's sum of squares is known.
template <class W, class Sum>
__device__ __forceinline__ void norm_tiles(const Args& a, const Share& share, const float (&kept)[W::VALUES],
                                           const float (&w0)[W::VALUES], Sum sum_of_row) {
    for (unsigned t = share.first; t < share.end; t += share.step) {
        Tile tile = tile_at<W>(share.row_of(t), share.tile_of(t), a.width);
        float squares;
        if (!sum_of_row(tile.row, squares)) return;
        if (!tile.mine) continue;
        if (t == share.first) {
            write_normed<W>(a, tile, kept, w0, squares);
        } else {
            float x[W::VALUES], w[W::VALUES];
            W::load(a.residual_out + size_t(tile.row) * a.width + tile.first, x);
            W::load(a.weight + tile.first, w);
            write_normed<W>(a, tile, x, w, squares);
        }
    }
}

// Every tile of this warp but the first, whose values are in registers already.
template <class W>
__device__ __forceinline__ void send_later_tiles(const Link& link, const Call& call, const Args& a,
                                                 const Share& share) {
    for (unsigned t = share.first + share.step; t < share.end; t += share.step) {
        Tile tile = tile_at<W>(share.row_of(t), share.tile_of(t), a.width);
        if (!tile.mine) continue;
        float own[W::VALUES];
        W::load(a.partial + size_t(tile.row) * a.width + tile.first, own);
        send_line(link, call, tile.line, W::pack(own));
    }
}

// This lane's line of a tile: the sum, and with ADD the residual and its squares. Of the warp's first tile the own
// values (`packed0`) and the residual (`kept`) are in registers, and the new residual stays there.
template <class W, int N, Mode M>
__device__ __forceinline__ bool reduce_tile(const Link& link, const Call& call, const Args& a, const Tile& tile,
                                            bool is_first, uint2 packed0, float (&kept)[W::VALUES], float& squares) {
    constexpr int V = W::VALUES;
    const size_t at = size_t(tile.row) * a.width + tile.first;
    [[maybe_unused]] float own[V], sum[V], x[V];
    uint2 packed = packed0;
    if (!is_first) {
        W::load(a.partial + at, own);
        packed = W::pack(own);
    }
    if (!reduce_line<W, N>(link, call, tile.line, packed, sum, a.kind)) return false;
    if constexpr (M == SUM) {
        W::store(a.out + at, sum);
    } else {
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
    return true;
}

template <class W, int N, Mode M, bool CLUSTER>
__device__ __forceinline__ void all_reduce(const Link& link, const Args& a, float* sums) {
    constexpr int V = W::VALUES;
    const unsigned lane = threadIdx.x & 31;
    const unsigned warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = gridDim.x * blockDim.x / 32;
    const unsigned tiles_per_row = (a.width / V + 31) / 32;
    Share share{warp, warps, a.rows * tiles_per_row, tiles_per_row, 0, false};
#if __CUDA_ARCH__ >= 900
    const unsigned blocks = CLUSTER ? cluster_blocks() : 1;
    if (CLUSTER) {
        const unsigned warps_of_row = blocks * blockDim.x / 32;
        share = Share{warp % warps_of_row, warps_of_row, tiles_per_row, tiles_per_row, warp / warps_of_row, true};
        asm volatile("barrier.cluster.arrive.relaxed;");  // every block is there before one writes to another
    }
#endif
    const bool any = share.first < share.end;
    const Tile first = tile_at<W>(share.row_of(share.first), share.tile_of(share.first), a.width);
    const bool first_mine = any && first.mine;
    // Weights do not depend on what ran before; everything else does.
    float w0[V] = {};
    if (M == ADD_NORM && first_mine) W::load(a.weight + first.first, w0);
    wait_for_prerequisites();

    float own0[V] = {}, kept[V] = {};
    if (first_mine) W::load(a.partial + size_t(first.row) * a.width + first.first, own0);
    if (M != SUM && first_mine) W::load(a.residual_in + size_t(first.row) * a.width + first.first, kept);
    const Call call = enter(link);
    bool ok = !call.dead;  // in a cluster nobody leaves before the others have written to it
    const uint2 packed0 = W::pack(own0);
    if (ok && first_mine) send_line(link, call, first.line, packed0);
    if (ok) send_later_tiles<W>(link, call, a, share);
    // Only now may the next kernel start: its staging before the lines are away would hold them up.
    launch_dependents();
    count(link, warp, warps);
    delay_first_poll(link);
#if __CUDA_ARCH__ >= 900
    if (CLUSTER) cluster_wait();
#endif

    for (unsigned t = share.first; t < share.end && ok; t += share.step) {
        Tile tile = tile_at<W>(share.row_of(t), share.tile_of(t), a.width);
        float squares = 0.f;
        if (tile.mine) ok = reduce_tile<W, N, M>(link, call, a, tile, t == share.first, packed0, kept, squares);
        ok = __all_sync(~0u, ok);
        if (M == ADD_NORM && ok) {
            squares = warp_sum(squares);
#if __CUDA_ARCH__ >= 900
            if (CLUSTER && lane < blocks) store_to_block(sums + t, lane, squares);
#endif
            if (!CLUSTER && lane == 0) publish(link.tiles + t, squares, call);
        }
    }
    if constexpr (M == ADD_NORM && CLUSTER) {
#if __CUDA_ARCH__ >= 900
        cluster_arrive();
        cluster_wait();
        if (!ok) return;
        float squares = 0.f;
        for (unsigned t = lane; t < tiles_per_row; t += 32) squares += sums[t];
        squares = warp_sum(squares);
        norm_tiles<W>(a, share, kept, w0, [&](unsigned, float& s) {
            s = squares;
            return true;
        });
#endif
    } else if constexpr (M == ADD_NORM) {
        norm_tiles<W>(a, share, kept, w0, [&](unsigned row, float& s) {
            return ok && collect(link, call, link.tiles + size_t(row) * tiles_per_row, tiles_per_row, s, a.kind);
        });
    }
}

}  // namespace

#define KERNEL(name, wire, n, mode)                                                             \
    extern "C" __global__ void __launch_bounds__(256, 1) name(const __grid_constant__ Link link,   \
                                                           const __grid_constant__ Args args) { \
        all_reduce<wire, n, mode, false>(link, args, nullptr);                                  \
    }
#define CLUSTER_KERNEL(name, wire, n)                                                           \
    extern "C" __global__ void __launch_bounds__(256, 1) name(const __grid_constant__ Link link,   \
                                                           const __grid_constant__ Args args) { \
        __shared__ float sums[MOST_TILES];                                                      \
        all_reduce<wire, n, ADD_NORM, true>(link, args, sums);                                  \
    }
#define KERNELS(name, mode)                  \
    KERNEL(name##_bf16_2, WireBf16, 2, mode) \
    KERNEL(name##_bf16_8, WireBf16, 8, mode) \
    KERNEL(name##_f32_2, WireF32, 2, mode)   \
    KERNEL(name##_f32_8, WireF32, 8, mode)

KERNELS(all_reduce, SUM)
KERNELS(all_reduce_add, ADD)
KERNELS(all_reduce_add_norm, ADD_NORM)
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
CLUSTER_KERNEL(all_reduce_add_norm_cluster_bf16_2, WireBf16, 2)
CLUSTER_KERNEL(all_reduce_add_norm_cluster_bf16_8, WireBf16, 8)
CLUSTER_KERNEL(all_reduce_add_norm_cluster_f32_2, WireF32, 2)
CLUSTER_KERNEL(all_reduce_add_norm_cluster_f32_8, WireF32, 8)
#endif
