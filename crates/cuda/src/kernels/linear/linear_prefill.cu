// y = W x for many rows of x and float weights: W rounded to bf16 tile by tile, products on the matrix units (mma.sync
// m16n8k16), f32 sums in the order of the columns, the same in every tile.
//
// Two kernels: `linear_prefill_x` makes a bf16 copy of x (RMS-normed if asked) in scratch memory, and
// `linear_prefill_<M>x<N>` computes tiles of M rows of x by N rows of W, 64 columns at a time: while the matrix units
// work on one step, the next one's x comes by cp.async and its weights are decoded into the other half of shared memory.
// Operations: 2 x rows x weights: with many rows the matrix units are the floor. Bound before by loads that are not asked
// for ahead: each block waits for its weights once a step, hidden only by the other blocks of its SM (seen when quantized
// weights took this way: 150 TFLOP/s of about 790 with 512 rows on an H200).
#include <cuda_bf16.h>

#include "args.cuh"
#include "quant.cuh"
#include "stage.cuh"

constexpr uint32_t STEP = 64;   // columns a step
constexpr uint32_t PITCH = 72;  // bf16 values from row to row of a tile: 16-byte rows fall on different banks

// One block a row. `x_bf16`: [x_rows, padded], padded = cols rounded up to 64, the rest zero.
extern "C" __global__ void __launch_bounds__(256) linear_prefill_x(const __grid_constant__ Args a, __nv_bfloat16* x_bf16) {
    __shared__ float parts[8];
    launch_dependents();
    wait_for_input();
    const float* x = a.x + size_t(blockIdx.x) * a.x_stride;
    float factor = 1.f;
    if (a.norm != nullptr) {
        float square = 0.f;
        for (uint32_t i = threadIdx.x; i < a.cols; i += 256) square = fmaf(x[i], x[i], square);
#pragma unroll
        for (int o = 16; o; o /= 2) square += __shfl_xor_sync(~0u, square, o);
        if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = square;
        __syncthreads();
        square = 0.f;
#pragma unroll
        for (int i = 0; i < 8; i++) square += parts[i];
        factor = rsqrtf(square / float(a.cols) + a.eps);
    }
    const uint32_t padded = (a.cols + STEP - 1) / STEP * STEP;
    __nv_bfloat16* out = x_bf16 + size_t(blockIdx.x) * padded;
    for (uint32_t i = threadIdx.x; i < padded; i += 256) {
        float v = i < a.cols ? x[i] : 0.f;
        if (a.norm != nullptr && i < a.cols) v *= factor * a.norm[i];
        out[i] = __float2bfloat16_rn(v);
    }
}

__device__ __forceinline__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Tiles of M x N by WM x WN warps.
template <uint32_t M, uint32_t N, uint32_t WM, uint32_t WN>
struct Tile {
    static constexpr uint32_t THREADS = WM * WN * 32, WARP_M = M / WM, WARP_N = N / WN;
    static constexpr uint32_t MT = WARP_M / 16, NT = WARP_N / 8;
    static_assert(WARP_N % 16 == 0);

    const Args& a;
    const Weight* w;      // the tile's; with SILU_MUL gate
    uint32_t first;       // first row of W
    bool paired;
    uint32_t first_x, padded;
    const __nv_bfloat16* x;
    __nv_bfloat16* memory;  // [2][M + N][PITCH]

    __device__ __forceinline__ __nv_bfloat16* half(uint32_t step) { return memory + (step & 1) * (M + N) * PITCH; }

    // Row of W in column c of the tile. With SILU_MUL the first half of every warp's columns is gate, the second up.
    __device__ __forceinline__ uint32_t row_of(uint32_t c) const {
        return paired ? first + c / WARP_N * (WARP_N / 2) + c % (WARP_N / 2) : first + c;
    }

    __device__ __forceinline__ void load_x(uint32_t step) {
        __nv_bfloat16* to = half(step);
#pragma unroll
        for (uint32_t i = threadIdx.x; i < M * 8; i += THREADS) {
            const uint32_t row = i / 8, part = i % 8;
            const uint32_t from = min(first_x + row, a.x_rows - 1);  // rows too many are computed and not written
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to + row * PITCH + part * 8)),
                         "l"(x + size_t(from) * padded + step * STEP + part * 8) : "memory");
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }

    template <uint32_t TYPE>
    __device__ __forceinline__ void decode_w(uint32_t step) {
        __nv_bfloat16* to = half(step) + M * PITCH;
#pragma unroll
        for (uint32_t i = threadIdx.x; i < N * 4; i += THREADS) {
            const uint32_t c = i / 4, piece = step * 4 + i % 4;
            const Weight& from = paired && c % WARP_N >= WARP_N / 2 ? w[1] : w[0];
            const uint32_t row = min(row_of(c), from.rows - 1);
            float v[16] = {};
            if (piece * 16 < a.cols) decode16<TYPE>(from.data + size_t(row) * from.row_bytes, a.cols, piece, v);
            uint32_t packed[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                const __nv_bfloat162 two = __floats2bfloat162_rn(v[2 * k], v[2 * k + 1]);
                packed[k] = *reinterpret_cast<const uint32_t*>(&two);
            }
            uint4* place = reinterpret_cast<uint4*>(to + c * PITCH + i % 4 * 16);
            place[0] = make_uint4(packed[0], packed[1], packed[2], packed[3]);
            place[1] = make_uint4(packed[4], packed[5], packed[6], packed[7]);
        }
    }

    __device__ __forceinline__ void multiply_step(uint32_t step, float (&sum)[MT][NT][4]) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
        const __nv_bfloat16* xs = half(step) + (warp / WN * WARP_M + lane % 16) * PITCH + lane / 16 * 8;
        const __nv_bfloat16* ws =
            half(step) + (M + warp % WN * WARP_N + lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;
#pragma unroll
        for (uint32_t k = 0; k < STEP; k += 16) {
            uint32_t b[NT / 2][4];
#pragma unroll
            for (uint32_t j = 0; j < NT / 2; j++) load_matrices(b[j], shared_address(ws + j * 16 * PITCH + k));
#pragma unroll
            for (uint32_t i = 0; i < MT; i++) {
                uint32_t m[4];
                load_matrices(m, shared_address(xs + i * 16 * PITCH + k));
#pragma unroll
                for (uint32_t j = 0; j < NT; j++) multiply(sum[i][j], m, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }

    template <uint32_t TYPE>
    __device__ __forceinline__ void run(float (&sum)[MT][NT][4]) {
        const uint32_t steps = padded / STEP;
        load_x(0);
        decode_w<TYPE>(0);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
            __syncthreads();  // this step's tiles are whole, and nobody reads the other half any more
            if (step + 1 < steps) {
                load_x(step + 1);
                decode_w<TYPE>(step + 1);
            }
            multiply_step(step, sum);
        }
    }

    __device__ __forceinline__ void put(uint32_t r, uint32_t row, float y) {
        if (r >= a.x_rows || row >= w->rows) return;
        float* out = w->out + size_t(r) * w->out_stride + row;
        *out = a.epilogue == ADD ? *out + y : y;
    }

    __device__ __forceinline__ void write(const float (&sum)[MT][NT][4]) {
        const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
        for (uint32_t i = 0; i < MT; i++) {
#pragma unroll
            for (uint32_t j = 0; j < NT; j++) {
                if (paired && j >= NT / 2) continue;
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    const uint32_t r = first_x + warp / WN * WARP_M + i * 16 + lane / 4 + k / 2 * 8;
                    const uint32_t c = warp % WN * WARP_N + j * 8 + lane % 4 * 2 + k % 2;
                    float y = sum[i][j][k];
                    if (paired) y = y / (1.f + __expf(-y)) * sum[i][(j + NT / 2) % NT][k];
                    put(r, row_of(c), y);
                }
            }
        }
    }
};

template <uint32_t M, uint32_t N, uint32_t WM, uint32_t WN>
__device__ __forceinline__ void prefill(const Args& a, const __nv_bfloat16* x_bf16) {
    using T = Tile<M, N, WM, WN>;
    extern __shared__ __align__(128) uint8_t memory[];
    launch_dependents();
    wait_for_input();
    // Which weight, which tile of it.
    uint32_t tile = blockIdx.x, which = 0;
    const bool paired = a.epilogue == SILU_MUL;
    if (!paired) {
        while (which + 1 < a.weight_count && tile >= (a.weights[which].rows + N - 1) / N) {
            tile -= (a.weights[which++].rows + N - 1) / N;
        }
    }
    const uint32_t padded = (a.cols + STEP - 1) / STEP * STEP;
    T t = {a, &a.weights[which], tile * (paired ? N / 2 : N), paired, blockIdx.y * M, padded, x_bf16,
           reinterpret_cast<__nv_bfloat16*>(memory)};
    float sum[T::MT][T::NT][4] = {};
    switch (t.w->type) {
        case F32: t.template run<F32>(sum); break;
        case F16: t.template run<F16>(sum); break;
        default: t.template run<BF16>(sum); break;
    }
    t.write(sum);
}

// Grid: tiles of all weights' rows along x, of rows of x along y. With SILU_MUL gate and up must be of one type.
#define PREFILL(M, N, WM, WN, BLOCKS)                                                                       \
    extern "C" __global__ void __launch_bounds__(WM * WN * 32, BLOCKS)                                      \
        linear_prefill_##M##x##N(const __grid_constant__ Args a, const __nv_bfloat16* x_bf16) {             \
        prefill<M, N, WM, WN>(a, x_bf16);                                                                   \
    }
PREFILL(32, 32, 2, 2, 6)
PREFILL(64, 64, 2, 2, 4)
PREFILL(128, 128, 2, 4, 2)
