// y = W x in f32 throughout: every weight decoded to f32, f32 products and sums, any type, any number of rows of x.
//
// For gates against reference logits (`--arith f32`) and for weights that are floats in the file. One warp takes one row
// of W (with SILU_MUL: of gate and of up) and 8 rows of x at a time; x comes from L2 and L1.
// Bytes: the weights once per 8 rows of x. Bound by instructions (decoding 16 weights takes about 60), not tuned.
#include "args.cuh"
#include "quant.cuh"
#include "stage.cuh"

constexpr uint32_t TILE = 8;  // rows of x at a time

// This lane's part of the products of one row of W with `count` rows of x.
template <uint32_t TYPE>
__device__ __forceinline__ void dot_row(const Args& a, const uint8_t* row, const float* x, uint32_t count, uint32_t lane,
                                        float (&sum)[TILE]) {
#pragma unroll 1
    for (uint32_t piece = lane; piece * 16 < a.cols; piece += 32) {
        float w[16];
        decode16<TYPE>(row, a.cols, piece, w);
        if (a.norm != nullptr) {
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                if (16 * piece + i < a.cols) w[i] *= a.norm[16 * piece + i];
            }
        }
#pragma unroll
        for (uint32_t r = 0; r < TILE; r++) {
            if (r >= count) break;
            const float* values = x + size_t(r) * a.x_stride + 16 * piece;
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                if (16 * piece + i < a.cols) sum[r] = fmaf(w[i], values[i], sum[r]);
            }
        }
    }
}

__device__ __forceinline__ void dot_any(const Args& a, const Weight& w, uint32_t row, const float* x, uint32_t count,
                                     uint32_t lane, float (&sum)[TILE]) {
    const uint8_t* bytes = w.data + size_t(row) * w.row_bytes;
    switch (w.type) {
        case F32: dot_row<F32>(a, bytes, x, count, lane, sum); break;
        case F16: dot_row<F16>(a, bytes, x, count, lane, sum); break;
        case BF16: dot_row<BF16>(a, bytes, x, count, lane, sum); break;
        case Q4_0: dot_row<Q4_0>(a, bytes, x, count, lane, sum); break;
        case Q4_1: dot_row<Q4_1>(a, bytes, x, count, lane, sum); break;
        case Q8_0: dot_row<Q8_0>(a, bytes, x, count, lane, sum); break;
        case Q4_K: dot_row<Q4_K>(a, bytes, x, count, lane, sum); break;
        default: dot_row<Q6_K>(a, bytes, x, count, lane, sum); break;
    }
#pragma unroll
    for (uint32_t r = 0; r < TILE; r++) {
#pragma unroll
        for (int o = 16; o; o /= 2) sum[r] += __shfl_xor_sync(~0u, sum[r], o);
    }
}

// Grid: any number of blocks of 256 threads along x (they stride over the rows of W), one per 8 rows of x along y.
extern "C" __global__ void __launch_bounds__(256, 2) linear_f32(const __grid_constant__ Args a) {
    __shared__ float factors[TILE];
    launch_dependents();
    wait_for_input();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t first = blockIdx.y * TILE, count = min(TILE, a.x_rows - first);
    const float* x = a.x + size_t(first) * a.x_stride;
    if (warp < count) {  // a warp for each row of x
        float square = 0.f;
        if (a.norm != nullptr) {
            for (uint32_t i = lane; i < a.cols; i += 32) {
                const float v = x[size_t(warp) * a.x_stride + i];
                square = fmaf(v, v, square);
            }
            for (int o = 16; o; o /= 2) square += __shfl_xor_sync(~0u, square, o);
        }
        if (lane == 0) factors[warp] = a.norm != nullptr ? 1.f / sqrtf(square / float(a.cols) + a.eps) : 1.f;
    }
    __syncthreads();
    const bool paired = a.epilogue == SILU_MUL;
    for (uint32_t i = 0; i < (paired ? 1 : a.weight_count); i++) {
        const Weight& w = a.weights[i];
        for (uint32_t row = blockIdx.x * 8 + warp; row < w.rows; row += gridDim.x * 8) {
            float sum[TILE] = {}, up[TILE] = {};
            dot_any(a, w, row, x, count, lane, sum);
            if (paired) dot_any(a, a.weights[1], row, x, count, lane, up);
#pragma unroll
            for (uint32_t r = 0; r < TILE; r++) {
                if (lane != 0 || r >= count) continue;
                float* out = w.out + size_t(first + r) * w.out_stride + row;
                float y = sum[r] * factors[r];
                if (a.epilogue == ADD) y += *out;
                if (paired) y = y / (1.f + expf(-y)) * (up[r] * factors[r]);
                *out = y;
            }
        }
    }
}
