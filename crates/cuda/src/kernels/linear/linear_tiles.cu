// y = W x for many rows of x and quantized W: exact products of bytes on the matrix units (mma.sync s8), f32 sums.
//
// `linear_tiles_x` quantizes x to 8 bits with one scale per 32 values (RMS-normed if asked), as the decode kernel does,
// and lays the bytes down in scratch as mma.sync's B wants them. `linear_tiles_<N>x<M>` computes tiles of N rows of W by M
// rows of x, a chunk of 256 columns at a time, which come by cp.async some chunks ahead: weights as they are in memory. A
// warp makes bytes of 64 columns of its weights in registers and multiplies blocks of 32: every sum is exact in int32, and
// is scaled and added in f32 in the order of the columns. So a result has the same bits in every tile that does not share
// the columns out: it depends on its row of x and its row of W alone. In the tiles that do (`_split`, for grids that would
// not fill the card), groups of warps take every second or fourth chunk, and their sums meet at the end.
// The minima of Q4_K are a product of their own, of 6-bit numbers and sums of x (bf16, in two halves: 16 bits), once a
// chunk.
//
// Measured, H200, the layers of an 8B model (Q4_K, half of down Q6_K): 8 rows of x 2.7 ms, 16 3.1, 32 4.2, 64 6.4, 128
// 10.1, 512 36.4 (196 TOP/s). Bound by issuing: mma.sync keeps an H200's issue port for 7 cycles, and the 8 multiply-adds
// that scale it and about 8 other instructions come on top, not beside (measured alone: 7 cycles + 1 an instruction).
// Below 64 rows by the way from one chunk to the next.
// Bytes: every weight once per M rows of x, x once per N rows of W (from L2). Operations: what the floor is depends on the
// card: 8 f32 instructions of a lane scale what one mma.sync (16 x 8 x 32) gives.
#include <cuda_bf16.h>

#include "args.cuh"
#include "stage.cuh"
#include "tile_types.cuh"

// x in scratch: [chunk][8 rows][X_BYTES]. Of 8 rows by 256 columns: bytes [4 units][8 rows][4 lanes][2 blocks][2 halves][4],
// scales f32 [4 units][8 rows][2 blocks], and for the minima scale * sum of bytes as bf16 [8 rows][4 units][high, low][2].
constexpr uint32_t X_BYTES = 2560, X_SCALES = 2048, X_SUMS = 2304;

// A block does 2048 columns of one row (grid: rows, column groups), a warp one chunk of them.
extern "C" __global__ void __launch_bounds__(256) linear_tiles_x(const __grid_constant__ Args a, uint8_t* out) {
    __shared__ float parts[8];
    launch_dependents();
    wait_for_input();
    const uint32_t r = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* x = a.x + size_t(r) * a.x_stride;
    float factor = 1.f;
    if (a.norm != nullptr) {
        float square = 0.f;
        for (uint32_t i = threadIdx.x; i < a.cols; i += 256) square = fmaf(x[i], x[i], square);
#pragma unroll
        for (int o = 16; o; o /= 2) square += __shfl_xor_sync(~0u, square, o);
        if (lane == 0) parts[warp] = square;
        __syncthreads();
        square = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) square += parts[i];
        factor = rsqrtf(square / float(a.cols) + a.eps);
    }
    const uint32_t chunk = blockIdx.y * 8 + warp, e = chunk * CHUNK + lane * 8;
    if (chunk * CHUNK >= a.cols) return;
    float v[8] = {};
    if (e < a.cols) {
        *reinterpret_cast<float4*>(v) = *reinterpret_cast<const float4*>(x + e);
        *reinterpret_cast<float4*>(v + 4) = *reinterpret_cast<const float4*>(x + e + 4);
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] *= a.norm != nullptr ? a.norm[e + i] : 1.f;
    }
    float most = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) most = fmaxf(most, fabsf(v[i]));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float inverse = most > 0.f ? __fdividef(127.f, most) : 0.f;
    uint32_t packed[2];
    int total = 0;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint32_t q[4];  // the low byte of 12582912 + q, rounded to nearest even, is q
#pragma unroll
        for (int j = 0; j < 4; j++) {
            q[j] = __float_as_uint(fmaf(v[4 * i + j], inverse, MAGIC));
            total += int(q[j]) - MAGIC_BITS;
        }
        packed[i] = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
    }
    total += __shfl_xor_sync(~0u, total, 1);
    total += __shfl_xor_sync(~0u, total, 2);
    uint8_t* to = out + (size_t(chunk) * a.round_rows + r / 8) * X_BYTES;
    const uint32_t row = r % 8, unit = lane / 8, block = lane / 4 % 2, quarter = lane % 4;
    uint8_t* bytes = to + unit * 512 + (row * 4 + quarter % 2 * 2) * 16 + block * 8 + quarter / 2 * 4;
    *reinterpret_cast<uint32_t*>(bytes) = packed[0];
    *reinterpret_cast<uint32_t*>(bytes + 16) = packed[1];
    if (quarter == 0) {
        const float scale = most * (1.f / 127.f) * factor, sum = scale * float(total);
        *reinterpret_cast<float*>(to + X_SCALES + ((unit * 8 + row) * 2 + block) * 4) = scale;
        const uint32_t high = __float_as_uint(sum) & 0xffff0000;
        const __nv_bfloat16 low = __float2bfloat16_rn(sum - __uint_as_float(high));
        uint8_t* sums = to + X_SUMS + (row * 4 + unit) * 8 + block * 2;
        *reinterpret_cast<uint16_t*>(sums) = high >> 16;
        *reinterpret_cast<__nv_bfloat16*>(sums + 4) = low;
    }
}

// N rows of W by M of x, by SHARES groups of WN x WM warps.
template <uint32_t N, uint32_t M, uint32_t WN, uint32_t WM, uint32_t SHARES>
struct Tile {
    static constexpr uint32_t THREADS = WN * WM * SHARES * 32, WARP_N = N / WN;
    static constexpr uint32_t NT = WARP_N / 16, MT = M / WM / 8;
    static constexpr uint32_t PER_ROW = THREADS / N;  // threads that copy a row
    static_assert(THREADS % N == 0 && WARP_N % 16 == 0);

    const Args& a;
    const Weight* w;     // the tile's; with SILU_MUL gate
    uint32_t first;      // first row of W
    bool paired;
    const uint8_t* x;    // the tile's rows, of chunk 0
    uint32_t memory;     // shared: slots, each a chunk for every share
    uint32_t share_bytes;
    uint32_t x_at;       // x in a share's chunk
    const uint8_t* source;  // the row that this thread copies

    float sum[NT][MT][4];

    __device__ __forceinline__ uint32_t slot(uint32_t index) const { return memory + index * a.slot_bytes; }

    // Row of W in row i of the tile. With SILU_MUL the first half of every warp's rows is gate, the second up.
    __device__ __forceinline__ uint32_t row_of(uint32_t i) const {
        return paired ? first + i / WARP_N * (WARP_N / 2) + i % (WARP_N / 2) : first + i;
    }

    // The chunks of slot `to`, from chunk `first_chunk` on.
    template <uint32_t TYPE>
    __device__ __forceinline__ void copy_w(uint32_t first_chunk, uint32_t chunks, uint32_t to) {
        const uint32_t row = threadIdx.x / PER_ROW, part = threadIdx.x % PER_ROW;
#pragma unroll
        for (uint32_t s = 0; s < SHARES; s++) {
            const uint32_t chunk = first_chunk + s, at = to + s * share_bytes;
            if (SHARES > 1 && chunk >= chunks) break;
#pragma unroll
            for (uint32_t i = 0; i < (PIECES<TYPE> + PER_ROW - 1) / PER_ROW; i++) {
                const uint32_t piece = i * PER_ROW + part;
                if (piece < PIECES<TYPE>) copy_piece<TYPE>(at + row * PITCH<TYPE> + piece * 16, source, a.cols, chunk, piece);
            }
            if (TYPE == Q6_K && part == 0) copy_beside(at + N * PITCH<TYPE> + row * 4, source, a.cols, chunk);
        }
    }

    __device__ __forceinline__ void copy_x(uint32_t first_chunk, uint32_t chunks, uint32_t to) {
        const uint8_t* from = x + size_t(first_chunk) * a.round_rows * X_BYTES + threadIdx.x * 16;
#pragma unroll
        for (uint32_t s = 0; s < SHARES; s++) {
            if (SHARES > 1 && first_chunk + s >= chunks) break;
#pragma unroll
            for (uint32_t i = 0; i < M / 8 * X_BYTES / 16; i += THREADS) {
                if (i + threadIdx.x < M / 8 * X_BYTES / 16) {
                    copy16(to + s * share_bytes + x_at + (i + threadIdx.x) * 16, from + i * 16, true);
                }
            }
            from += a.round_rows * X_BYTES;
        }
    }

    // One unit of 64 columns with all rows of x: `f` by row tile.
    template <uint32_t TYPE>
    __device__ __forceinline__ void multiply_unit(const Fragment<TYPE> (&f)[NT], uint32_t xs, uint32_t unit, uint32_t lane) {
        constexpr bool SIGNED = TYPE == Q4_0 || TYPE == Q8_0;
        // A product sum arrives as MAGIC + sum. One multiply-add takes MAGIC off and scales: s * (MAGIC + sum) - s * MAGIC
        // is exact before it is rounded, since s has 19 bits at most (f16 times 8 bits) and MAGIC two.
        constexpr int PARTS = TYPE == Q6_K ? 4 : 2;
        float off[NT][2][PARTS];
#pragma unroll
        for (uint32_t i = 0; i < NT; i++) {
#pragma unroll
            for (int k = 0; k < 2 * PARTS; k++) off[i][k / PARTS][k % PARTS] = -MAGIC * f[i].s[k / PARTS][k % PARTS];
        }
#pragma unroll
        for (uint32_t j = 0; j < MT; j++) {
            const uint4 b = shared_quad(xs + j * X_BYTES + unit * 512 + lane * 16);
            const uint4 scales = shared_quad(xs + j * X_BYTES + X_SCALES + (unit * 8 + lane % 4 * 2) * 8);
            // Of this lane's two rows of x, per block.
            const float s0[2] = {__uint_as_float(scales.x), __uint_as_float(scales.z)};
            const float s1[2] = {__uint_as_float(scales.y), __uint_as_float(scales.w)};
            float sums[2][2];
            if constexpr (TYPE == Q4_1) {
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const uint2 v = shared_pair(xs + j * X_BYTES + X_SUMS + ((lane % 4 * 2 + c) * 4 + unit) * 8);
                    sums[c][0] = __uint_as_float(v.x << 16) + __uint_as_float(v.y << 16);
                    sums[c][1] = __uint_as_float(v.x & 0xffff0000) + __uint_as_float(v.y & 0xffff0000);
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < NT; i++) {
                float (&y)[4] = sum[i][j];
                if constexpr (TYPE == Q6_K) {
                    float p[4];
#pragma unroll
                    for (int part = 0; part < 4; part++) {
                        multiply16(p, f[i].w + 2 * part, part == 0 ? b.x : part == 1 ? b.y : part == 2 ? b.z : b.w);
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            const float t = fmaf(f[i].s[k / 2][part], p[k], off[i][k / 2][part]);
                            y[k] = fmaf(part < 2 ? s0[k % 2] : s1[k % 2], t, y[k]);
                        }
                    }
                } else {
                    float p[4];
                    multiply32<SIGNED>(p, f[i].w, b.x, b.y);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        y[k] = fmaf(s0[k % 2], fmaf(f[i].s[k / 2][0], p[k], off[i][k / 2][0]), y[k]);
                    }
                    multiply32<TYPE != Q4_K && TYPE != Q4_1>(p, f[i].w + 4, b.z, b.w);
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        y[k] = fmaf(s1[k % 2], fmaf(f[i].s[k / 2][1], p[k], off[i][k / 2][1]), y[k]);
                    }
                    if constexpr (TYPE == Q4_1) {
#pragma unroll
                        for (int k = 0; k < 4; k++) {
                            y[k] = fmaf(f[i].m[k / 2][0], sums[k % 2][0], y[k]);
                            y[k] = fmaf(f[i].m[k / 2][1], sums[k % 2][1], y[k]);
                        }
                    }
                }
            }
        }
    }

    // Takes the minima of a chunk of Q4_K off. `minima`, `dmin`: of this lane's rows and unit lane % 4.
    __device__ __forceinline__ void take_minima(const uint32_t (&minima)[NT][2], const float (&dmin)[NT][2], uint32_t xs, uint32_t lane) {
#pragma unroll
        for (uint32_t j = 0; j < MT; j++) {
            const uint2 b = shared_pair(xs + j * X_BYTES + X_SUMS + lane * 8);
#pragma unroll
            for (uint32_t i = 0; i < NT; i++) {
                float c[4];
                asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %4, %5}, {%6, %7}, {%8, %8, %8, %8};"
                    : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                    : "r"(minima[i][0]), "r"(minima[i][1]), "r"(b.x), "r"(b.y), "f"(0.f));
#pragma unroll
                for (int k = 0; k < 4; k++) sum[i][j][k] = fmaf(-dmin[i][k / 2], c[k], sum[i][j][k]);
            }
        }
    }

    // This warp's part of the chunk at `at`.
    template <uint32_t TYPE>
    __device__ __forceinline__ void multiply_chunk(uint32_t chunk, uint32_t at) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % (WN * WM);
        const uint32_t row = warp / WM * WARP_N, rows = at + row * PITCH<TYPE>;
        const uint32_t xs = at + x_at + warp % WM * MT * X_BYTES;
        // Of the K types every lane makes the scales of its rows and of unit lane % 4; the others take them from it.
        Scales<TYPE> own[NT][2];
        if constexpr (TYPE == Q4_K) {
            uint32_t minima[NT][2];
            float dmin[NT][2];
#pragma unroll
            for (uint32_t i = 0; i < 2 * NT; i++) {
                const uint32_t r = i / 2 * 16 + i % 2 * 8 + lane / 4;
                own[i / 2][i % 2] = header4(rows + r * PITCH<TYPE>, lane % 4, minima[i / 2][i % 2], dmin[i / 2][i % 2]);
            }
            take_minima(minima, dmin, xs, lane);
        } else if constexpr (TYPE == Q6_K) {
#pragma unroll
            for (uint32_t i = 0; i < 2 * NT; i++) {
                const uint32_t r = row + i / 2 * 16 + i % 2 * 8 + lane / 4;
                own[i / 2][i % 2] = scales6(at + r * PITCH<TYPE>, at + N * PITCH<TYPE> + r * 4, chunk, lane % 4);
            }
        }
#pragma unroll
        for (uint32_t unit = 0; unit < 4; unit++) {
            Fragment<TYPE> f[NT];
#pragma unroll
            for (uint32_t i = 0; i < NT; i++) {
                load_bytes(f[i], rows + i * 16 * PITCH<TYPE>, unit, lane);
                if constexpr (TYPE == Q4_K || TYPE == Q6_K) {
                    constexpr int PARTS = TYPE == Q6_K ? 4 : 2;
#pragma unroll
                    for (int k = 0; k < 2 * PARTS; k++) {
                        const float s = own[i][k / PARTS].s[k % PARTS];
                        f[i].s[k / PARTS][k % PARTS] = __shfl_sync(~0u, s, (lane & 28) | unit);
                    }
                } else {
                    load_scales(f[i], rows + i * 16 * PITCH<TYPE>, unit, lane);
                }
            }
            multiply_unit<TYPE>(f, xs, unit, lane);
        }
    }

    template <uint32_t TYPE>
    __device__ __forceinline__ void run() {
        const uint32_t chunks = (a.cols + CHUNK - 1) / CHUNK, ahead = a.slots - 1;
        const uint32_t i = threadIdx.x / PER_ROW, share = threadIdx.x / (WN * WM * 32);
        const Weight& from = paired && i % WARP_N >= WARP_N / 2 ? w[1] : w[0];
        source = from.data + size_t(min(row_of(i), from.rows - 1)) * from.row_bytes;
        // The weights are there before x is.
        for (uint32_t c = 0; c < ahead * SHARES && c < chunks; c += SHARES) copy_w<TYPE>(c, chunks, slot(c / SHARES));
        wait_for_input();
        for (uint32_t c = 0; c < ahead * SHARES; c += SHARES) {
            if (c < chunks) copy_x(c, chunks, slot(c / SHARES));
            asm volatile("cp.async.commit_group;" ::: "memory");
        }
        uint32_t at = 0, next = ahead;
#pragma unroll 1
        for (uint32_t chunk = 0; chunk < chunks; chunk += SHARES) {
            // All groups but the newest `ahead - 1` have landed.
            if (ahead == 1) asm volatile("cp.async.wait_group 0;" ::: "memory");
            else if (ahead == 2) asm volatile("cp.async.wait_group 1;" ::: "memory");
            else asm volatile("cp.async.wait_group 2;" ::: "memory");
            __syncthreads();  // this slot is whole, and nobody reads the one before any more
            if (chunk + ahead * SHARES < chunks) {
                copy_w<TYPE>(chunk + ahead * SHARES, chunks, slot(next));
                copy_x(chunk + ahead * SHARES, chunks, slot(next));
            }
            asm volatile("cp.async.commit_group;" ::: "memory");
            if (SHARES == 1 || chunk + share < chunks) multiply_chunk<TYPE>(chunk + share, slot(at) + share * share_bytes);
            at = at + 1 == a.slots ? 0 : at + 1;
            next = next + 1 == a.slots ? 0 : next + 1;
        }
    }

    // The sums of all shares, added in their order.
    __device__ __forceinline__ void join(float* room) {
        constexpr uint32_t LANES = WN * WM * 32;
        const uint32_t share = threadIdx.x / LANES, lane = threadIdx.x % LANES;
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        __syncthreads();
        if (share > 0) {
#pragma unroll
            for (uint32_t i = 0; i < NT * MT * 4; i++) {
                room[((share - 1) * NT * MT * 4 + i) * LANES + lane] = sum[i / (MT * 4)][i / 4 % MT][i % 4];
            }
        }
        __syncthreads();
        if (share > 0) return;
#pragma unroll
        for (uint32_t i = 0; i < NT * MT * 4; i++) {
            float& y = sum[i / (MT * 4)][i / 4 % MT][i % 4];
#pragma unroll
            for (uint32_t s = 0; s + 1 < SHARES; s++) y += room[(s * NT * MT * 4 + i) * LANES + lane];
        }
    }

    __device__ __forceinline__ void put(uint32_t r, uint32_t row, float y) {
        if (r >= a.x_rows || row >= w->rows) return;
        float* out = w->out + size_t(r) * w->out_stride + row;
        *out = a.epilogue == ADD ? *out + y : y;
    }

    __device__ __forceinline__ void write(uint32_t first_x) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const uint32_t r0 = first_x + warp % WM * MT * 8 + lane % 4 * 2;
#pragma unroll
        for (uint32_t j = 0; j < MT; j++) {
#pragma unroll
            for (uint32_t c = 0; c < 2; c++) {
                const uint32_t r = r0 + j * 8 + c;
                if (paired) {
                    // Gate and up are the halves of the warp's rows: of a lone row tile its halves.
#pragma unroll
                    for (uint32_t i = 0; i < NT; i++) {
                        const uint32_t row = first + warp / WM * (WARP_N / 2) + i * 8 + lane / 4;
                        const float gate = sum[i / 2][j][i % 2 * 2 + c];
                        const float up = sum[(NT + i) / 2][j][(NT + i) % 2 * 2 + c];
                        put(r, row, gate / (1.f + __expf(-gate)) * up);
                    }
                } else {
#pragma unroll
                    for (uint32_t i = 0; i < 2 * NT; i++) {
                        put(r, first + warp / WM * WARP_N + i * 8 + lane / 4, sum[i / 2][j][i % 2 * 2 + c]);
                    }
                }
            }
        }
    }
};

template <uint32_t N, uint32_t M, uint32_t WN, uint32_t WM, uint32_t SHARES>
__device__ __forceinline__ void tiles(const Args& a, const uint8_t* x) {
    using T = Tile<N, M, WN, WM, SHARES>;
    extern __shared__ __align__(128) uint8_t memory[];
    launch_dependents();
    // Which weight, which tile of it.
    uint32_t tile = blockIdx.y, which = 0;
    const bool paired = a.epilogue == SILU_MUL;
    if (!paired) {
        while (which + 1 < a.weight_count && tile >= (a.weights[which].rows + N - 1) / N) {
            tile -= (a.weights[which++].rows + N - 1) / N;
        }
    }
    T t = {a, &a.weights[which], tile * (paired ? N / 2 : N), paired, x + blockIdx.x * (M / 8) * X_BYTES,
           shared_address(memory), a.slot_bytes / SHARES, a.slot_bytes / SHARES - M / 8 * X_BYTES, nullptr, {}};
    switch (t.w->type) {
        case Q4_0: t.template run<Q4_0>(); break;
        case Q4_1: t.template run<Q4_1>(); break;
        case Q8_0: t.template run<Q8_0>(); break;
        case Q4_K: t.template run<Q4_K>(); break;
        default: t.template run<Q6_K>(); break;
    }
    if (SHARES > 1) {
        t.join(reinterpret_cast<float*>(memory));
        if (threadIdx.x >= WN * WM * 32) return;
    }
    t.write(blockIdx.x * M);
}

// Grid: tiles of rows of x along x (neighbours share W), of all weights' rows along y. With SILU_MUL gate and up must be
// of one type.
#define TILES(NAME, N, M, WN, WM, SHARES, BLOCKS)                                                                    \
    extern "C" __global__ void __launch_bounds__(WN * WM * SHARES * 32, BLOCKS)                                      \
        linear_tiles_##NAME(const __grid_constant__ Args a, const uint8_t* x) {                                      \
        tiles<N, M, WN, WM, SHARES>(a, x);                                                                           \
    }
TILES(64x64, 64, 64, 4, 2, 1, 2)
TILES(64x16, 64, 16, 4, 1, 1, 4)
TILES(32x64_split, 32, 64, 2, 2, 2, 2)
TILES(32x32_split, 32, 32, 2, 2, 2, 2)
TILES(32x16_split, 32, 16, 2, 1, 4, 2)
TILES(32x8_split, 32, 8, 2, 1, 4, 2)
TILES(32x8, 32, 8, 2, 1, 1, 8)
