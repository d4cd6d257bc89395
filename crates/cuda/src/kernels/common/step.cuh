// What a step brings: the head of its input block. The host's view is in input.rs and must match byte for byte.
#pragma once
#include <stdint.h>

constexpr uint32_t FROM_PREVIOUS = 0x80000000;  // in a token: the low bits are a logits row of the step before

// Start of the input block.
struct StepHead {
    uint32_t rows;       // rows that count; a bucket may launch more, which must change nothing
    uint32_t sequences;
    uint32_t logits;     // logits rows that count
    uint32_t number;     // of the step, from 0
};
