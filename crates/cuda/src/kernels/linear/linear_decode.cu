// y = W x for 1 to 8 rows of x and quantized W: the matrix-vector product of decode.
//
// Bytes: every weight once, and x by every block (from L2). Floor: weight bytes / read bandwidth.
// How: stage first. A block owns a contiguous run of rows of W (of up to three matrices in one launch). Every warp has
// one group of 2048 columns and every n-th pair of the block's rows, and its own ring of slots that it starts to fill
// before it waits for the kernel that makes x. Then the block quantizes x to 8 bits with one scale per 32 values
// (RMS-normed on the way if asked), and the warps go through their rings without meeting. The sums of the groups meet in
// shared memory, where one thread per result adds them and applies the epilogue.
// Products are exact in int32 (dp4a) per 32 (Q6_K: 16) weights, sums are f32 in one order that depends on neither grid
// nor batch: a row of x gives the same bits in any batch of 1 to 8.
//
// Measured, H200 (132 SMs, 4.5 TB/s), a graph of an 8B Q4_K/Q6_K model's 4 launches a layer x 32 and head, with a stand-in
// for attention: 1.59 ms a token (2.9 TB/s; floor 1.02), half of it as one of two ranks with stand-ins for the all-reduces
// 1.05 ms. Alone in a chain of its kind: q, k, v 6.7 us (floor 3.3), output 4.3 (2.1), gate and up 18.3 (14.7), down 13.0
// and 17.7 (7.3 and 10.7), head 105 (96).
// Bound by the chain of dependent launches: 2 to 4 us each from the end of one to the first product of the next (hand-over,
// x from L2, quantizing it in every block, two block barriers), longest where x is wide (down: 14,336 values). With 4 and 8
// rows of x (3.0 and 4.7 ms a step) by instructions: dp4a and its scaling, four to eight times per weight.
// Two of these must fit on an SM beside a small kernel: with registers for one more or one less the chain is 10 % slower.
#include "args.cuh"
#include "bytes.cuh"
#include "stage.cuh"

template <bool SIGNED>
__device__ __forceinline__ int dot4(uint32_t w, uint32_t x, int sum) {
    int out;
    if (SIGNED) asm("dp4a.s32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
    else asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(out) : "r"(w), "r"(x), "r"(sum));
    return out;
}

// One lane's 64 weights as bytes, ready for dp4a, with what the sums are multiplied by.
struct Lane64 {
    uint32_t w[16];
    float s[4];  // per block of 32, Q6_K per 16
    float m[2];  // subtracted per block
};

// Low and high nibbles of eight words, not shifted down: the high ones count sixteenfold.
__device__ __forceinline__ void split_nibbles(const uint4& a, const uint4& b, Lane64& out) {
    const uint32_t q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        out.w[i] = q[i] & 0x0f0f0f0f;
        out.w[8 + i] = q[i] & 0xf0f0f0f0;
    }
}

template <uint32_t TYPE>
__device__ __forceinline__ void unpack(const uint8_t* g, uint32_t n, uint32_t lane, Lane64& out) {
    if constexpr (TYPE == Q4_K) {
        const uint8_t* b = g + (lane >> 2) * 144;
        const uint32_t j = lane & 3;
        const uint4 h = *reinterpret_cast<const uint4*>(b);
        split_nibbles(*reinterpret_cast<const uint4*>(b + 16 + 32 * j), *reinterpret_cast<const uint4*>(b + 32 + 32 * j), out);
        const Packed4 packed = packed4(h, j);
        const float2 d = halves(h.x);
        out.s[0] = d.x * float(packed.low & 255);
        out.s[1] = d.x * 0.0625f * float(packed.low >> 8 & 255);
        out.m[0] = d.y * float(packed.low >> 16);
        out.m[1] = d.y * float(packed.second >> 24);
    } else if constexpr (TYPE == Q6_K) {
        const uint8_t* b = g + (lane >> 2) * 208;
        const uint32_t j = lane & 3;
        const uint4 l0 = *reinterpret_cast<const uint4*>(b + 32 * j), l1 = *reinterpret_cast<const uint4*>(b + 32 * j + 16);
        const uint4 hq = *reinterpret_cast<const uint4*>(b + 128 + 16 * j);
        const uint32_t scales = *reinterpret_cast<const uint32_t*>(b + 192 + 4 * j);
        const float d = 0.25f * half_at(g + 52 * n + (lane >> 2) * 2);
        const uint32_t low[8] = {l0.x, l0.y, l0.z, l0.w, l1.x, l1.y, l1.z, l1.w}, high[4] = {hq.x, hq.y, hq.z, hq.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t r0 = __funnelshift_l(low[i], low[i], 4), r1 = __funnelshift_l(low[i + 4], low[i + 4], 4);
            out.w[i] = (low[i] & 0x3c3c3c3c) | (high[i] & 0xc0c0c0c0);
            out.w[i + 4] = (low[i + 4] & 0x3c3c3c3c) | (high[i] << 2 & 0xc0c0c0c0);
            out.w[i + 8] = (r0 & 0x3c3c3c3c) | (high[i] << 4 & 0xc0c0c0c0);
            out.w[i + 12] = (r1 & 0x3c3c3c3c) | (high[i] << 6 & 0xc0c0c0c0);
        }
#pragma unroll
        for (int k = 0; k < 4; k++) out.s[k] = d * float(int8_t(scales >> (8 * k)));
    } else if constexpr (TYPE == Q8_0) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint4 q = *reinterpret_cast<const uint4*>(g + (i * n + lane) * 16);
            out.w[4 * i] = q.x, out.w[4 * i + 1] = q.y, out.w[4 * i + 2] = q.z, out.w[4 * i + 3] = q.w;
        }
        const float2 d = halves(*reinterpret_cast<const uint32_t*>(g + 64 * n + lane * 4));
        out.s[0] = d.x, out.s[1] = d.y;
    } else if constexpr (TYPE == Q4_1) {
        split_nibbles(*reinterpret_cast<const uint4*>(g + lane * 16), *reinterpret_cast<const uint4*>(g + (n + lane) * 16), out);
        const uint2 scales = *reinterpret_cast<const uint2*>(g + 32 * n + lane * 8);
        const float2 first = halves(scales.x), second = halves(scales.y);
        out.s[0] = first.x, out.s[1] = second.x * 0.0625f;
        out.m[0] = -first.y, out.m[1] = -second.y;
    } else {  // Q4_0: nibbles moved to the top of the byte are signed, sixteenfold
        const uint4 a = *reinterpret_cast<const uint4*>(g + lane * 16), b = *reinterpret_cast<const uint4*>(g + (n + lane) * 16);
        const uint32_t q[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            out.w[i] = q[i] << 4 & 0xf0f0f0f0;
            out.w[8 + i] = q[i] & 0xf0f0f0f0;
        }
        const float2 d = halves(*reinterpret_cast<const uint32_t*>(g + 32 * n + lane * 4));
        out.s[0] = d.x * 0.0625f, out.s[1] = d.y * 0.0625f;
    }
}

// One lane's 64 values of x: bytes, and {scale, scale * sum of bytes} of both blocks.
struct X64 {
    uint4 v[4];
    float4 scale;
};

// x in shared memory: per row of x and group of 2048 values bytes [4][32 lanes][16], and apart from them the scales.
struct Quantized {
    const uint8_t* bytes;
    const float4* scales;
    uint32_t groups;

    __device__ __forceinline__ X64 at(uint32_t r, uint32_t group, uint32_t lane) const {
        X64 x;
        const uint32_t index = r * groups + group;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x.v[i] = *reinterpret_cast<const uint4*>(bytes + index * GROUP + 512 * i + 16 * lane);
        }
        x.scale = scales[index * 32 + lane];
        return x;
    }
};

template <uint32_t TYPE>
__device__ __forceinline__ float dot64(const Lane64& l, const X64& x, float sum) {
    constexpr bool SIGNED = TYPE == Q4_0 || TYPE == Q6_K || TYPE == Q8_0;
    constexpr int PARTS = TYPE == Q6_K ? 4 : 2;
    int part[PARTS];
#pragma unroll
    for (int k = 0; k < PARTS; k++) part[k] = MAGIC_BITS;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        int& p = part[i * PARTS / 4];
        p = dot4<SIGNED>(l.w[4 * i], x.v[i].x, p);
        p = dot4<SIGNED>(l.w[4 * i + 1], x.v[i].y, p);
        p = dot4<SIGNED>(l.w[4 * i + 2], x.v[i].z, p);
        p = dot4<SIGNED>(l.w[4 * i + 3], x.v[i].w, p);
    }
    float f[PARTS];
#pragma unroll
    for (int k = 0; k < PARTS; k++) f[k] = __int_as_float(part[k]) - MAGIC;
    if constexpr (TYPE == Q6_K) {
        sum = fmaf(x.scale.x, fmaf(l.s[1], f[1], l.s[0] * f[0]), sum);
        return fmaf(x.scale.z, fmaf(l.s[3], f[3], l.s[2] * f[2]), sum);
    } else {
        sum = fmaf(l.s[0], x.scale.x * f[0], sum);
        sum = fmaf(l.s[1], x.scale.z * f[1], sum);
        if constexpr (TYPE == Q4_K || TYPE == Q4_1) sum = fmaf(-l.m[1], x.scale.w, fmaf(-l.m[0], x.scale.y, sum));
        return sum;
    }
}


// A run of rows of one weight that a block works on.
struct Span {
    uint32_t start, count;  // rows of the weight
    uint32_t place;         // of the first row's sums among the round's
};

// The rows of weight `w` in one round of a block that owns the virtual rows begin..end. Virtual rows count through all
// weights; with SILU_MUL one is a gate row and the up row of the same number.
__device__ __forceinline__ Span span_at(const Args& a, uint32_t begin, uint32_t end, uint32_t round, uint32_t w) {
    const uint32_t low = begin + round * a.round_rows, high = min(end, low + a.round_rows);
    if (low >= end) return {0, 0, 0};
    if (a.epilogue == SILU_MUL) return {low, high - low, w * a.round_rows};
    const uint32_t base = w == 0 ? 0 : w == 1 ? a.weights[0].rows : a.weights[0].rows + a.weights[1].rows;
    const uint32_t first = max(low, base), last = min(high, base + a.weights[w].rows);
    return {first - base, last > first ? last - first : 0, first - low};
}

// What a warp does: rows `lane_row`, `lane_row + step` ... of every span, groups `group`, `group + concurrent` ...
struct Share {
    uint32_t begin, end, rounds;
    uint32_t first_group, concurrent, groups, passes;
    uint32_t lane_row, step;
};

// Where the producer of a warp is. In shared memory: it is needed once in a span, and registers are few.
struct Place {
    Share share;
    uint32_t round, pass, weight;
};

// A warp's ring and what it will copy next. One slot: the warp's group of ROWS neighbouring rows.
template <int ROWS>
struct Ring {
    uint32_t barriers;            // shared addresses
    uint32_t slot, parity;        // next to be consumed
    uint32_t fill;                // next to be filled
    const uint8_t* source;
    uint32_t row_bytes, bytes;
    uint32_t row, count;          // of the span; row >= count: nothing is left

    // Finds the first span from the producer's place on that has rows for this warp.
    __device__ __forceinline__ void seek(const Args& a, Place& p) {
        count = row = 0;
        const Share s = p.share;
        uint32_t round = p.round, pass = p.pass, weight = p.weight;
#pragma unroll 1
        while (round < s.rounds) {
            const uint32_t group = s.first_group + pass * s.concurrent;
            const Span span = span_at(a, s.begin, s.end, round, weight);
            const uint32_t here = weight;
            if (++weight == a.weight_count) {
                weight = 0;
                if (++pass == s.passes) {
                    pass = 0;
                    round++;
                }
            }
            if (group < s.groups && s.lane_row < span.count) {
                const Weight& w = a.weights[here];
                row_bytes = w.row_bytes;
                bytes = group_bytes(w.type, lanes_from(a.cols, group * GROUP));
                row = s.lane_row;
                count = span.count;
                source = w.data + size_t(span.start + row) * row_bytes + group * group_bytes(w.type, 32);
                break;
            }
        }
        __syncwarp();
        p.round = round, p.pass = pass, p.weight = weight;
    }

    __device__ __forceinline__ void fill_one(const Args& a, Place& p, uint32_t slots_at, uint32_t step, uint32_t lane) {
        if (row >= count) return;
        stage(slots_at + fill * a.slot_bytes, a.slot_bytes / ROWS, source, row_bytes, min(count - row, ROWS), bytes,
              barriers + 8 * fill, lane);
        fill = fill + 1 == a.slots ? 0 : fill + 1;
        source += step * row_bytes;
        row += step;
        if (row >= count) seek(a, p);
    }
};

// One step of `reduce`: halves the N values that a lane holds, or just adds when one is left.
template <int N, int WIDTH, int ALL>
__device__ __forceinline__ void reduce_step(float (&v)[ALL], uint32_t lane) {
    if constexpr (N > 1) {
        const bool upper = lane & WIDTH;
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float keep = upper ? v[i + N / 2] : v[i], send = upper ? v[i] : v[i + N / 2];
            v[i] = keep + __shfl_xor_sync(~0u, send, WIDTH);
        }
    } else {
        v[0] += __shfl_xor_sync(~0u, v[0], WIDTH);
    }
    if constexpr (WIDTH > 1) reduce_step<(N > 1 ? N / 2 : 1), WIDTH / 2, ALL>(v, lane);
}

// All rows of a span that are this warp's, from the ring. Sums go to sums[(place + row) * groups + r * plane].
template <uint32_t TYPE, int R, int ROWS>
__device__ __forceinline__ void dot_span(const Args& a, Place& p, Ring<ROWS>& ring, const uint8_t* slots, const Quantized& x,
                                         const X64& mine, uint32_t group, const Span& span, float* sums, uint32_t plane,
                                         uint32_t lane) {
    constexpr uint32_t EACH = 32 / (ROWS * R);  // lanes that end up with the same sum
    const uint32_t n = lanes_from(a.cols, group * GROUP), stride = a.slot_bytes / ROWS;
    const bool active = lane < n;
    const uint32_t index = lane / EACH, step = p.share.step;
    uint32_t row = p.share.lane_row;
    float* out = sums + (span.place + row + index / R) * x.groups + index % R * plane + group;
#pragma unroll 1
    for (; row < span.count; row += step) {
        barrier_wait(ring.barriers + 8 * ring.slot, ring.parity);
        const uint8_t* slot = slots + ring.slot * a.slot_bytes;
        float sum[ROWS * R];
#pragma unroll
        for (int i = 0; i < ROWS * R; i++) sum[i] = 0.f;
        if (active) {
            if constexpr (R == 1) {
#pragma unroll
                for (int i = 0; i < ROWS; i++) {
                    Lane64 w;
                    unpack<TYPE>(slot + i * stride, n, lane, w);
                    sum[i] = dot64<TYPE>(w, mine, 0.f);
                }
            } else {
                Lane64 w[ROWS];
#pragma unroll
                for (int i = 0; i < ROWS; i++) unpack<TYPE>(slot + i * stride, n, lane, w[i]);
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const X64 v = x.at(r, group, lane);
#pragma unroll
                    for (int i = 0; i < ROWS; i++) sum[i * R + r] = dot64<TYPE>(w[i], v, 0.f);
                }
            }
        }
        ring.fill_one(a, p, shared_address(slots), step, lane);
        if (++ring.slot == a.slots) {
            ring.slot = 0;
            ring.parity ^= 1;
        }
        reduce_step<ROWS * R, 16>(sum, lane);
        if (lane % EACH == 0 && row + index / R < span.count) *out = sum[0];
        out += step * x.groups;
    }
}

// Quantizes x into shared memory: the largest of 32 neighbours becomes 127 steps. The norm's factor 1 / rms is left out
// here (it cancels in the bytes) and multiplied to the results. Each warp leaves its part of the sums of squares.
template <int R, bool NORM>
__device__ __forceinline__ void quantize(const Args& a, uint8_t* bytes, float2* scales, float* squares, uint32_t groups) {
    constexpr uint32_t BATCH = R == 1 && !NORM ? 4 : 2;  // loads in flight
    const uint32_t step = blockDim.x * 8, padded = (a.cols + 63) & ~63u;
#pragma unroll 1
    for (uint32_t r = 0; r < R; r++) {
        const bool used = r < a.x_rows;
        const float* row = a.x + size_t(r) * a.x_stride;
        float square = 0.f;
#pragma unroll 1
        for (uint32_t start = 0; start < padded; start += BATCH * step) {
            float v[BATCH][8], w[BATCH][8];
#pragma unroll
            for (uint32_t k = 0; k < BATCH; k++) {
                if (start + k * step >= padded) continue;
                const uint32_t e = start + k * step + threadIdx.x * 8;
                const float4 zero = make_float4(0, 0, 0, 0);
                const bool in = used && e < a.cols;
                *reinterpret_cast<float4*>(v[k]) = in ? __ldcg(reinterpret_cast<const float4*>(row + e)) : zero;
                *reinterpret_cast<float4*>(v[k] + 4) = in ? __ldcg(reinterpret_cast<const float4*>(row + e + 4)) : zero;
                if (NORM) {
                    *reinterpret_cast<float4*>(w[k]) = in ? __ldg(reinterpret_cast<const float4*>(a.norm + e)) : zero;
                    *reinterpret_cast<float4*>(w[k] + 4) = in ? __ldg(reinterpret_cast<const float4*>(a.norm + e + 4)) : zero;
                }
            }
#pragma unroll
            for (uint32_t k = 0; k < BATCH; k++) {
                if (start + k * step >= padded) continue;
                const uint32_t e = start + k * step + threadIdx.x * 8;
                float most = 0.f;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    if (NORM) {
                        square = fmaf(v[k][i], v[k][i], square);
                        v[k][i] *= w[k][i];
                    }
                    most = fmaxf(most, fabsf(v[k][i]));
                }
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
                most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
                const float inverse = most > 0.f ? __fdividef(127.f, most) : 0.f;
                uint32_t packed[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    uint32_t q[4];  // the low byte of 12582912 + q, rounded to nearest even, is q
#pragma unroll
                    for (int j = 0; j < 4; j++) q[j] = __float_as_uint(fmaf(v[k][4 * i + j], inverse, MAGIC));
                    packed[i] = __byte_perm(__byte_perm(q[0], q[1], 0x0040), __byte_perm(q[2], q[3], 0x0040), 0x5410);
                }
                int total = dot4<true>(packed[0], 0x01010101, dot4<true>(packed[1], 0x01010101, 0));
                total += __shfl_xor_sync(~0u, total, 1);
                total += __shfl_xor_sync(~0u, total, 2);
                if (e < padded) {
                    const uint32_t group = r * groups + e / GROUP, owner = e % GROUP / 64;
                    *reinterpret_cast<uint2*>(bytes + group * GROUP + e % 64 / 16 * 512 + owner * 16 + e % 16) =
                        make_uint2(packed[0], packed[1]);
                    const float scale = most * (1.f / 127.f);
                    if (threadIdx.x % 4 == 0) {
                        scales[(group * 32 + owner) * 2 + e % 64 / 32] = make_float2(scale, scale * float(total));
                    }
                }
            }
        }
        if (NORM) {
#pragma unroll
            for (int o = 16; o; o /= 2) square += __shfl_xor_sync(~0u, square, o);
            if (threadIdx.x % 32 == 0) squares[r * 16 + threadIdx.x / 32] = square;
        }
    }
}

__device__ __forceinline__ float total(const float* parts, uint32_t groups) {
    float sum = 0.f;
    for (uint32_t g = 0; g < groups; g++) sum += parts[g];
    return sum;
}

// Which weight a virtual row belongs to, and which of its rows it is.
__device__ __forceinline__ uint32_t weight_of(const Args& a, uint32_t& row) {
    uint32_t w = 0;
    while (a.epilogue != SILU_MUL && w + 1 < a.weight_count && row >= a.weights[w].rows) row -= a.weights[w++].rows;
    return w;
}

template <int R, int ROWS>
__device__ __forceinline__ void decode(const Args& a) {
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ Place places[16];
    launch_dependents();
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;

    uint32_t virtual_rows = a.weights[0].rows;
    if (a.epilogue != SILU_MUL) {
        for (uint32_t i = 1; i < a.weight_count; i++) virtual_rows += a.weights[i].rows;
    }
    Share s;
    s.begin = uint32_t(uint64_t(virtual_rows) * blockIdx.x / gridDim.x);
    s.end = uint32_t(uint64_t(virtual_rows) * (blockIdx.x + 1) / gridDim.x);
    s.rounds = (s.end - s.begin + a.round_rows - 1) / a.round_rows;
    const uint32_t groups = (a.cols + GROUP - 1) / GROUP;
    s.groups = groups;
    s.concurrent = min(s.groups, warps);
    s.passes = (s.groups + s.concurrent - 1) / s.concurrent;
    const uint32_t row_lanes = warps / s.concurrent;
    s.first_group = warp % s.concurrent;
    // A warp too many gets a row that no span has.
    s.lane_row = warp / s.concurrent < row_lanes ? warp / s.concurrent * ROWS : ~0u;
    s.step = row_lanes * ROWS;

    // Shared memory: rings, barriers, factors, squares, x, sums. In this order all are aligned.
    uint8_t* at = memory;
    Ring<ROWS> ring;
    const uint8_t* slots = at + warp * a.slots * a.slot_bytes;
    at += warps * a.slots * a.slot_bytes;
    ring.barriers = shared_address(at) + warp * a.slots * 8;
    at += (warps * a.slots * 8 + 15) & ~15u;
    float* factors = reinterpret_cast<float*>(at);
    float* squares = factors + 8;
    at += 32 + R * 64;
    float4* scales = reinterpret_cast<float4*>(at);
    at += R * groups * 512;
    uint8_t* bytes = at;
    at += R * groups * GROUP;
    float* sums = reinterpret_cast<float*>(at);
    const uint32_t plane = a.round_rows * (a.epilogue == SILU_MUL ? 2 : 1) * groups;  // sums of one row of x

    ring.slot = ring.parity = ring.fill = 0;
    Place& p = places[warp];
    if (lane == 0) {
        p = {s, 0, 0, 0};
        for (uint32_t i = 0; i < a.slots; i++) barrier_init(ring.barriers + 8 * i);
    }
    barrier_init_done();
    ring.seek(a, p);
#pragma unroll 1
    for (uint32_t i = 0; i < a.slots; i++) ring.fill_one(a, p, shared_address(slots), s.step, lane);
    if (a.norm != nullptr) {
        for (uint32_t e = threadIdx.x * 32; e < a.cols; e += blockDim.x * 32) {
            asm volatile("prefetch.global.L2 [%0];" ::"l"(a.norm + e));
        }
    }

    wait_for_input();
    // What ADD adds to: asked for before x is worked on, so that nobody waits for it later.
    float old = 0.f;
    if (a.epilogue == ADD && threadIdx.x < min(a.round_rows, s.end - s.begin)) {
        uint32_t row = s.begin + threadIdx.x;
        const Weight& w = a.weights[weight_of(a, row)];
        old = __ldcg(w.out + row);
    }
    if (a.norm != nullptr) quantize<R, true>(a, bytes, reinterpret_cast<float2*>(scales), squares, groups);
    else quantize<R, false>(a, bytes, reinterpret_cast<float2*>(scales), squares, groups);
    const Quantized x = {bytes, scales, groups};

    const Share& share = p.share;  // read where it is used
#pragma unroll 1
    for (uint32_t round = 0; round < share.rounds; round++) {
        const uint32_t low = share.begin + round * a.round_rows, rows = min(a.round_rows, share.end - low);
        __syncthreads();
        if (round == 0 && threadIdx.x < R) {
            float square = 0.f;
            for (uint32_t i = 0; i < warps; i++) square += squares[threadIdx.x * 16 + i];
            factors[threadIdx.x] = a.norm != nullptr ? rsqrtf(square / float(a.cols) + a.eps) : 1.f;
        }
#pragma unroll 1
        for (uint32_t group = share.first_group; group < groups; group += share.concurrent) {
            X64 mine;
            if (R == 1) mine = x.at(0, group, lane);
#pragma unroll 1
            for (uint32_t w = 0; w < a.weight_count; w++) {
                const Span span = span_at(a, share.begin, share.end, round, w);
                switch (a.weights[w].type) {
                    case Q4_K: dot_span<Q4_K, R>(a, p, ring, slots, x, mine, group, span, sums, plane, lane); break;
                    case Q6_K: dot_span<Q6_K, R>(a, p, ring, slots, x, mine, group, span, sums, plane, lane); break;
                    case Q8_0: dot_span<Q8_0, R>(a, p, ring, slots, x, mine, group, span, sums, plane, lane); break;
                    case Q4_1: dot_span<Q4_1, R>(a, p, ring, slots, x, mine, group, span, sums, plane, lane); break;
                    default: dot_span<Q4_0, R>(a, p, ring, slots, x, mine, group, span, sums, plane, lane); break;
                }
            }
        }
        __syncthreads();
        for (uint32_t r = 0; r < a.x_rows; r++) {
            for (uint32_t local = threadIdx.x; local < rows; local += blockDim.x) {
                uint32_t row = low + local;
                const Weight& w = a.weights[weight_of(a, row)];
                float* out = w.out + size_t(r) * w.out_stride + row;
                const float* part = sums + r * plane + local * groups;
                float y = total(part, groups) * factors[r];
                if (a.epilogue == ADD) y += r == 0 && round == 0 && local == threadIdx.x ? old : __ldcg(out);
                if (a.epilogue == SILU_MUL) {
                    const float up = total(part + a.round_rows * groups, groups) * factors[r];
                    y = y / (1.f + __expf(-y)) * up;
                }
                *out = y;
            }
        }
        if (round + 1 < share.rounds) __syncthreads();
    }
}

// The cap on registers lets two blocks of 8 warps and a small kernel fit on a multiprocessor (one row of x), or a block of
// 12 warps (more rows).
#define DECODE(NAME, R, ROWS, REGISTERS)                                                                          \
    extern "C" __global__ void __maxnreg__(REGISTERS) linear_decode_##NAME(const __grid_constant__ Args a) {      \
        decode<R, ROWS>(a);                                                                                       \
    }
DECODE(r1, 1, 4, 104)
DECODE(r1_narrow, 1, 2, 104)
DECODE(r2, 2, 2, 128)
DECODE(r4, 4, 2, 168)
DECODE(r8, 8, 2, 168)
