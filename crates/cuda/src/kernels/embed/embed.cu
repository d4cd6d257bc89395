// out[row] = table[token(row)], decoded to f32. A token is an id, or the n-th sample of the step before, read from the
// device's own memory so that the host need not have seen it.
// Bytes: one table row (cols/2 .. 4 cols) read and 4 cols written a row. Floor: under 1 us, bound by launch latency.
#include "../common/device.cuh"
#include "../common/step.cuh"
#include "../linear/quant.cuh"

template <uint32_t TYPE>
__device__ __forceinline__ void decode_row(const uint8_t* row, uint32_t cols, float* out) {
    for (uint32_t piece = threadIdx.x; piece < (cols + 15) / 16; piece += blockDim.x) {
        float v[16];
        decode16<TYPE>(row, cols, piece, v);
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            if (16 * piece + i < cols) out[16 * piece + i] = v[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(256) embed(const StepHead* step, const uint32_t* tokens,
                                                        const uint32_t* previous, const uint8_t* table, uint32_t type,
                                                        uint32_t row_bytes, uint32_t cols, float* out) {
    common::launch_dependents();
    common::wait_for_prerequisites();
    const uint32_t row = blockIdx.x;
    if (row >= step->rows) return;
    uint32_t token = tokens[row];
    if (token & FROM_PREVIOUS) token = previous[token & ~FROM_PREVIOUS];
    const uint8_t* from = table + size_t(token) * row_bytes;
    float* to = out + size_t(row) * cols;
    switch (type) {
        case F32: decode_row<F32>(from, cols, to); break;
        case F16: decode_row<F16>(from, cols, to); break;
        case BF16: decode_row<BF16>(from, cols, to); break;
        case Q4_0: decode_row<Q4_0>(from, cols, to); break;
        case Q4_1: decode_row<Q4_1>(from, cols, to); break;
        case Q8_0: decode_row<Q8_0>(from, cols, to); break;
        case Q4_K: decode_row<Q4_K>(from, cols, to); break;
        default: decode_row<Q6_K>(from, cols, to); break;
    }
}
