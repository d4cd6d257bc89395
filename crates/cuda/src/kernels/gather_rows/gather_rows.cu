// out[i] = x[rows[i]]: keeps the rows that want logits.
// Bytes: 8 a value kept. Bound by launch latency.
#include "../common/device.cuh"
#include "../common/step.cuh"

extern "C" __global__ void __launch_bounds__(256) gather_rows(const StepHead* step, const uint32_t* rows,
                                                              const float* x, float* out, uint32_t width) {
    common::launch_dependents();
    common::wait_for_prerequisites();
    if (blockIdx.x >= step->logits) return;
    const float* from = x + size_t(rows[blockIdx.x]) * width;
    float* to = out + size_t(blockIdx.x) * width;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) to[i] = from[i];
}
