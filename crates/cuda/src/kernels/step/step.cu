// The first and the last kernel of every step. Host and device talk through two pinned blocks each way, used in turn:
// which one is counted on the device, so that one recorded graph serves both.
//
// take_input: copies `words` 16-byte words from pinned block (count & 1) to the input block in device memory.
// give_output: copies the samples, and the summaries that the host has to draw from, to pinned block (number & 1), and
// counts the step.
// Bytes: those of the blocks, over PCIe. Floor: one PCIe round trip, 1.0 to 1.5 us; bound by it up to some 16 KB.
#include "../common/device.cuh"
#include "../common/step.cuh"

extern "C" __global__ void __launch_bounds__(256) take_input(const uint4* first, const uint4* second,
                                                             const uint32_t* count, uint4* to, uint32_t words) {
    common::launch_dependents();
    common::wait_for_prerequisites();
    const uint4* from = *count & 1 ? second : first;
    const uint32_t stride = gridDim.x * blockDim.x;
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += stride) {
        uint4 v;
        // The host writes this block again before the next step that reads it: never from a cache.
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "l"(from + i));
        to[i] = v;
    }
}

// grid: logits rows (at least one). `summaries`: per row `words` 16-byte words, wanted only where the row is not greedy.
extern "C" __global__ void __launch_bounds__(128) give_output(const StepHead* step, const float* inverse,
                                                              const uint32_t* tokens, const uint4* summaries,
                                                              uint32_t words, uint4* first, uint4* second,
                                                              uint32_t token_words, uint32_t* count) {
    common::launch_dependents();
    common::wait_for_prerequisites();
    const uint32_t row = blockIdx.x, number = step->number;
    // Nothing else of this step reads the count: its first kernel did, the next step's will.
    if (row == 0 && threadIdx.x == 0) *count = number + 1;
    if (row >= step->logits) return;
    uint4* to = number & 1 ? second : first;
    if (threadIdx.x == 0) reinterpret_cast<uint32_t*>(to)[row] = tokens[row];
    if (!(inverse[row] > 0.f)) return;
    to += token_words + size_t(row) * words;
    summaries += size_t(row) * words;
    for (uint32_t i = threadIdx.x; i < words; i += blockDim.x) to[i] = summaries[i];
}
