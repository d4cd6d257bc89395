// What every kernel of this folder takes: one struct by value, mirrored in mod.rs.
#pragma once
#include <stdint.h>

enum Epilogue : uint32_t { STORE = 0, ADD = 1, SILU_MUL = 2 };

struct Weight {
    const uint8_t* data;   // `rows` rows of `row_bytes` bytes, laid out as quant.cuh says
    float* out;            // [x rows, rows], rows `out_stride` values apart
    uint32_t rows;
    uint32_t type;         // Type
    uint32_t row_bytes;
    uint32_t out_stride;
};

struct Args {
    Weight weights[3];
    const float* x;        // [x_rows, cols], rows `x_stride` values apart
    const float* norm;     // [cols] or null: x is RMS-normed on the way in
    float eps;
    uint32_t cols;
    uint32_t x_rows;
    uint32_t x_stride;
    uint32_t weight_count;
    uint32_t epilogue;     // SILU_MUL: weights 0 and 1 are gate and up, and only weight 0's `out` is written
    uint32_t slots;        // decode: ring slots of a warp; tiles: slots of a block
    uint32_t slot_bytes;   // bytes of one
    uint32_t round_rows;   // decode: virtual rows whose sums fit in shared memory at once, a multiple of a block's row step;
                           // tiles: tiles of 8 rows of x in a chunk
    uint32_t pad;
};
