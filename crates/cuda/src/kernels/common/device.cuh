// What several kernels share: programmatic dependent launch, sums over a warp and a block. Device code only.
#pragma once
#include <stdint.h>

namespace common {

// Lets the next kernel of the stream start: it waits for this one's end before it touches activations.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until every kernel before this one in the stream has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_prerequisites() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
    return v;
}

// The sum over a block of whole warps, in every thread; `scratch` has 32 floats. Called by all threads.
__device__ __forceinline__ float block_sum(float v, float* scratch) {
    const uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    v = warp_sum(v);
    if (warps == 1) return v;
    __syncthreads();
    if (lane == 0) scratch[warp] = v;
    __syncthreads();
    return warp_sum(lane < warps ? scratch[lane] : 0.f);
}

}  // namespace common
