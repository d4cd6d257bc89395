// What all kernels that talk to other ranks share: lines that carry their own arrival flag, call epochs, deadlines.
// Device code only; the host's view of these structs is in collective/mod.rs and must match byte for byte.
//
// A line is 16 bytes: 4 data, 4 flag, 4 data, 4 flag. The writer stores it with one plain 16-byte store into memory
// that the reader polls; the reader knows that the data is there when both flags hold the call's epoch. Each 8-byte
// half carries its own flag, so it is enough that 8-byte stores arrive whole: no fence, no remote atomic, no clearing.
//
// Epochs. One 64-bit counter per rank in its own device memory counts calls. Every warp of a call adds its share to
// it after reading the call's epoch from it: the shares of one call add up to CALL_SHARE whatever the grid, so a changed
// grid cannot desynchronise anything.
//
// Why two slots are enough (no end barrier). Call e writes slot e & 1, which held call e - 2. Rank r starts to write
// call e only after its kernel of call e - 1 has ended, hence after it received lines of call e - 1 from every rank p
// (every call carries at least one line from each rank to each). Rank p sent those only after its own kernel of call
// e - 2 had ended, hence after p had read everything of call e - 2 out of that slot. Kernels of one rank follow each
// other in one stream; under programmatic dependent launch the order holds because every kernel of the stream waits
// for the one before (griddepcontrol.wait) before it touches anything here.
#pragma once
#include "../common/device.cuh"

namespace tombolo {

constexpr int MAX_RANKS = 8;
constexpr unsigned long long CALL_SHARE = 1ull << 16;  // more warps than any grid here has
constexpr unsigned long long DEAD = 1ull << 63;        // in the counter: a deadline passed, later calls do nothing
constexpr unsigned SPINS_PER_CHECK = 32;               // a failed poll takes about a microsecond
constexpr unsigned long long CHECK_NS = 1000000;

constexpr unsigned ERROR_SILENT = 1;   // a rank did not send in time
constexpr unsigned ERROR_ABORTED = 2;  // the host asked to stop

// Pinned host memory, one per rank.
struct Control {
    unsigned long long deadline_ns;  // host -> device: the longest wait
    unsigned abort;                  // host -> device: not 0: leave every spin
    unsigned error;                  // device -> host, written last: ERROR_*
    unsigned rank;                   // who waited
    unsigned silent;                 // for whom
    unsigned kind;                   // in which operation: the number that the launch was given
    unsigned reserved;
    unsigned long long epoch;
    unsigned long long waited_ns;
};

// By value to every kernel that communicates.
struct Link {
    uint4* push[MAX_RANKS];          // [reader]: where this rank's lines for that reader go (two slots)
    const uint4* recv[MAX_RANKS];    // [writer]: where that rank's lines for this one arrive (two slots)
    unsigned long long* counter;     // own device memory: the epoch counter
    unsigned long long* tiles;       // own device memory: one word per tile of 32 lines of a slot (all_reduce_add_norm)
    Control* control;
    unsigned rank;
    unsigned ranks;
    unsigned slot_lines;             // lines of one slot
    unsigned poll_delay;             // clock cycles from the last store to the first poll
};

struct Call {
    unsigned flag_a;      // low word of the epoch
    unsigned flag_b;      // low and high word mixed: a line left over from 2^32 calls ago never matches both
    unsigned slot;        // first line of this call's slot
    bool dead;
    unsigned long long epoch;
};

using common::launch_dependents;
using common::wait_for_prerequisites;

__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}

// Called once by every lane of every warp of the grid, after wait_for_prerequisites. A plain load: what the warps of the
// same call have added so far is less than CALL_SHARE and falls out of the division, for this warp has not added yet.
__device__ __forceinline__ Call enter(const Link& link) {
    const unsigned long long held = *(const volatile unsigned long long*)link.counter;
    Call call;
    call.dead = (held & DEAD) != 0;
    call.epoch = (held & ~DEAD) / CALL_SHARE + 1;
    call.flag_a = unsigned(call.epoch);
    call.flag_b = call.flag_a + unsigned(call.epoch >> 32) * 0x9e3779b9u;
    call.slot = (call.flag_a & 1u) * link.slot_lines;
    return call;
}

// Called once by every lane of every warp, after enter and off the critical path: this warp's share of the call.
__device__ __forceinline__ void count(const Link& link, unsigned warp, unsigned warps) {
    __syncwarp();  // a lane that reads the counter only after the last share was added would see the next call's epoch
    if ((threadIdx.x & 31) == 0) atomicAdd(link.counter, warp == 0 ? CALL_SHARE - (warps - 1) : 1ull);
}

// Before the first poll: one that just misses costs a whole round trip more, and polls hold up what they wait for.
__device__ __forceinline__ void delay_first_poll(const Link& link) {
    if (link.poll_delay == 0) return;
    const long long start = clock64();
    while (clock64() - start < link.poll_delay) {
    }
}

__device__ __forceinline__ void store_line(uint4* line, uint2 data, const Call& call) {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(line), "r"(data.x), "r"(call.flag_a),
                 "r"(data.y), "r"(call.flag_b)
                 : "memory");
}

__device__ __forceinline__ bool load_line(const uint4* line, uint2& data, const Call& call) {
    unsigned a, b;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(data.x), "=r"(a), "=r"(data.y), "=r"(b)
                 : "l"(line)
                 : "memory");
    return a == call.flag_a && b == call.flag_b;
}

// One waiting thread's clock. It looks at the time every SPINS_PER_CHECK failed polls and at the host's words at most
// every CHECK_NS: those lie across PCIe, and thousands of waiting warps that read them would hold up the data.
struct Patience {
    unsigned spins = 0;
    unsigned long long start = 0, checked = 0;
};

__device__ __forceinline__ void report(const Link& link, const Call& call, unsigned error, unsigned silent,
                                       unsigned kind, unsigned long long waited) {
    if (atomicOr(link.counter, DEAD) & DEAD) return;  // somebody of this rank was first
    volatile Control* c = link.control;
    c->rank = link.rank;
    c->silent = silent;
    c->kind = kind;
    c->epoch = call.epoch;
    c->waited_ns = waited;
    __threadfence_system();
    c->error = error;
    __threadfence_system();
}

// After a failed poll: whether to go on waiting for `silent`. `factor` is 2 for waits inside the own device, which are
// over as soon as those for other ranks are.
__device__ __forceinline__ bool may_wait(Patience& p, const Link& link, const Call& call, unsigned silent,
                                         unsigned kind, unsigned factor = 1) {
    if (++p.spins % SPINS_PER_CHECK) return true;
    const unsigned long long now = now_ns();
    if (p.start == 0) p.start = p.checked = now;
    if (now - p.checked < CHECK_NS) return true;
    p.checked = now;
    if (*(const volatile unsigned long long*)link.counter & DEAD) return false;
    const volatile Control* c = link.control;
    const unsigned long long waited = now - p.start;
    const bool late = waited > c->deadline_ns * factor;
    const bool aborted = c->abort != 0;
    if (!late && !aborted) return true;
    report(link, call, late ? ERROR_SILENT : ERROR_ABORTED, silent, kind, waited);
    return false;
}

__device__ __forceinline__ unsigned pack_bf16(float low, float high) {
    unsigned packed;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    return packed;
}

// What a line carries: 4 bf16 or 2 f32.
struct WireBf16 {
    static constexpr int VALUES = 4;
    static __device__ __forceinline__ uint2 pack(const float (&v)[4]) {
        return make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    }
    static __device__ __forceinline__ void unpack(uint2 d, float (&v)[4]) {
        v[0] = __uint_as_float(d.x << 16);
        v[1] = __uint_as_float(d.x & 0xffff0000u);
        v[2] = __uint_as_float(d.y << 16);
        v[3] = __uint_as_float(d.y & 0xffff0000u);
    }
    static __device__ __forceinline__ void load(const float* p, float (&v)[4]) {
        float4 f = *(const float4*)p;
        v[0] = f.x, v[1] = f.y, v[2] = f.z, v[3] = f.w;
    }
    static __device__ __forceinline__ void store(float* p, const float (&v)[4]) {
        *(float4*)p = make_float4(v[0], v[1], v[2], v[3]);
    }
};

struct WireF32 {
    static constexpr int VALUES = 2;
    static __device__ __forceinline__ uint2 pack(const float (&v)[2]) {
        return make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1]));
    }
    static __device__ __forceinline__ void unpack(uint2 d, float (&v)[2]) {
        v[0] = __uint_as_float(d.x);
        v[1] = __uint_as_float(d.y);
    }
    static __device__ __forceinline__ void load(const float* p, float (&v)[2]) {
        float2 f = *(const float2*)p;
        v[0] = f.x, v[1] = f.y;
    }
    static __device__ __forceinline__ void store(float* p, const float (&v)[2]) { *(float2*)p = make_float2(v[0], v[1]); }
};

__device__ __forceinline__ void send_line(const Link& link, const Call& call, unsigned line, uint2 data) {
#pragma unroll
    for (int k = 1; k < MAX_RANKS; k++) {
        if (k >= int(link.ranks)) break;
        unsigned reader = link.rank + k;  // rotated: no two ranks start with the same reader
        if (reader >= link.ranks) reader -= link.ranks;
        store_line(link.push[reader] + call.slot + line, data, call);
    }
}

// This line of every rank, `own` at the own place; all polls are in flight together. False: leave.
template <int N>
__device__ __forceinline__ bool receive_line(const Link& link, const Call& call, unsigned line, uint2 own,
                                             uint2 (&data)[N], unsigned kind) {
    unsigned missing = 0;
#pragma unroll
    for (int r = 0; r < N; r++) {
        if (r == int(link.rank)) data[r] = own;
        else if (r < int(link.ranks) && !load_line(link.recv[r] + call.slot + line, data[r], call)) missing |= 1u << r;
    }
    Patience patience;
    while (missing) {
#pragma unroll
        for (int r = 0; r < N; r++) {
            if (missing >> r & 1u) {
                if (load_line(link.recv[r] + call.slot + line, data[r], call)) missing &= ~(1u << r);
            }
        }
        if (missing && !may_wait(patience, link, call, __ffs(missing) - 1, kind)) return false;
    }
    return true;
}

}  // namespace tombolo
