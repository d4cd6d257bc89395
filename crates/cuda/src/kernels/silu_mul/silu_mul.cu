// out = gate / (1 + exp(-gate)) * up (SwiGLU, Shazeer 2020).
// Bytes: 12 a value. Floor: 12 * rows * width / bandwidth; bound by launch latency in a decode step.
#include "../common/device.cuh"

extern "C" __global__ void __launch_bounds__(256) silu_mul(const float* gate, const float* up, float* out,
                                                           unsigned long long count) {
    common::launch_dependents();
    common::wait_for_prerequisites();
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) {
        const float g = gate[i];
        out[i] = g / (1.f + expf(-g)) * up[i];
    }
}
