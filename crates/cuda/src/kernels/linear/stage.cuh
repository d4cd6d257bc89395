// Copies of weights from global to shared memory that run while the warp does something else: a ring of slots that
// belongs to one warp, each slot with an mbarrier that completes when its bytes have landed. Bulk copies where the card
// has them (sm_90 and up), 16-byte cp.async below. Also what programmatic dependent launch and the matrix units need.
#pragma once
#include <stdint.h>

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define BULK_COPY 1
#else
#define BULK_COPY 0
#endif

__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Until every kernel before this one in the stream has ended and its writes can be seen.
__device__ __forceinline__ void wait_for_input() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four 8 x 8 matrices of 16-bit values out of shared memory: every lane gives the address of a row.
__device__ __forceinline__ void load_matrices(uint32_t (&to)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void barrier_init(uint32_t barrier) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(BULK_COPY ? 1 : 32) : "memory");
}

// After the inits, before the first copy.
__device__ __forceinline__ void barrier_init_done() {
#if BULK_COPY
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
    __syncwarp();
}

__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
#if BULK_COPY
        asm volatile(
            "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#else
        asm volatile(
            "{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
            : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
#endif
    }
}

// The whole warp calls this: `bytes` (a multiple of 16) of each of `rows` rows, `pitch` apart, to places `stride` apart
// in the slot. Only then does the slot's barrier complete. All lanes must have read what the slot held before.
__device__ __forceinline__ void stage(uint32_t slot, uint32_t stride, const uint8_t* source, uint32_t pitch, uint32_t rows,
                                      uint32_t bytes, uint32_t barrier, uint32_t lane) {
    __syncwarp();
#if BULK_COPY
    if (lane == 0) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(rows * bytes) : "memory");
    }
    __syncwarp();
    if (lane < rows) {
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                slot + lane * stride),
            "l"(source + size_t(lane) * pitch), "r"(bytes), "r"(barrier) : "memory");
    }
#else
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t at = 16 * lane; at < bytes; at += 512) {
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(slot + row * stride + at),
                         "l"(source + size_t(row) * pitch + at) : "memory");
        }
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
#endif
}
