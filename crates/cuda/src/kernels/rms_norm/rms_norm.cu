// out = x / sqrt(mean(x^2) + eps) * weight over every group of `width` neighbouring values (Zhang and Sennrich 2019);
// `out` may be `x`. One block a group.
// Bytes: 8 a value, 4 a weight. Floor: under 1 us for a decode step, bound by launch latency and two block barriers.
#include "../common/device.cuh"

extern "C" __global__ void __launch_bounds__(1024) rms_norm(const float* x, const float* weight, float* out,
                                                            uint32_t width, float eps) {
    __shared__ float scratch[32];
    common::launch_dependents();
    common::wait_for_prerequisites();
    const size_t start = size_t(blockIdx.x) * width;
    float squares = 0.f;
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) squares += x[start + i] * x[start + i];
    const float scale = 1.f / sqrtf(common::block_sum(squares, scratch) / float(width) + eps);
    for (uint32_t i = threadIdx.x; i < width; i += blockDim.x) out[start + i] = x[start + i] * scale * weight[i];
}
