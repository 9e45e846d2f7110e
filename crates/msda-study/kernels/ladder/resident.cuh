// Resident levels: a block keeps the last levels of one plane (image and head) in shared memory.
//
//   global memory   [ level 0 ........ | level 1 ... | level 2 | level 3 ]
//                                                      |         |
//   shared memory                      [ level 3 | level 2 ]
//
//   a position takes GROUP_BYTES there, then PAD unused elements
//
// Macros beside those of ladder.cuh: THREADS; PAD; CHANNEL_GROUPS (parts that a row is divided
// into: a block has one at a time); PARTIAL (of one level only the end may be resident); UNROLL;
// COPY (bytes per load of the copy to shared memory); STORED_ROW_BYTES (bytes of a row as it is
// gathered: ROW_BYTES, or fewer if values are quantised); HIDE_ADDRESS (the compiler does not know
// the address of the resident levels: otherwise it computes it again for every tap).
#pragma once
#include "ladder/ladder.cuh"

#ifndef STORED_ROW_BYTES
#define STORED_ROW_BYTES ROW_BYTES
#endif
#ifndef COPY
#define COPY VEC
#endif
#ifndef HIDE_ADDRESS
#define HIDE_ADDRESS 0
#endif

constexpr int GROUP_BYTES = STORED_ROW_BYTES / CHANNEL_GROUPS;
constexpr int GROUP_LANES = LANES_PER_ROW / CHANNEL_GROUPS; // lanes per query
constexpr int SHARED_PIXEL_STRIDE = GROUP_BYTES + PAD * size_of<VALUE>;
constexpr int COPIES_PER_ROW = GROUP_BYTES / COPY;

// The resident positions of a level: the first, their number, and the positions before them in
// shared memory. If a level is not resident, the first is NOT_RESIDENT.
struct Residency {
    int first, count, offset;
};
constexpr int NOT_RESIDENT = 0x7fffffff;

// A block's part of a plane.
struct Plane {
    const char *value; // position 0 in global memory
    int pixel_stride;  // bytes from position to position there
    char *resident;    // shared memory
    u32 address;       // the same, if HIDE_ADDRESS: see load_row_if
};

// Copies the resident levels to shared memory, by all threads. A barrier must follow.
__device__ __forceinline__ void load_resident(const Plane &plane,
                                              const Residency (&residency)[LEVELS]) {
    constexpr int LOADS_IN_FLIGHT = 4; // per thread
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Residency &level = residency[l];
#pragma unroll 1
        for (int first = threadIdx.x; first < level.count * COPIES_PER_ROW;
             first += LOADS_IN_FLIGHT * THREADS) {
            Vector<COPY> v[LOADS_IN_FLIGHT];
#pragma unroll
            for (int r = 0; r < LOADS_IN_FLIGHT; r++) {
                const int i = first + r * THREADS, position = level.first + i / COPIES_PER_ROW;
                if (i < level.count * COPIES_PER_ROW) {
                    const char *row = address_mad(plane.value, position, plane.pixel_stride);
                    v[r] = ld_global<COPY>(row + i % COPIES_PER_ROW * COPY);
                }
            }
#pragma unroll
            for (int r = 0; r < LOADS_IN_FLIGHT; r++) {
                const int i = first + r * THREADS, position = level.offset + i / COPIES_PER_ROW;
                if (i < level.count * COPIES_PER_ROW) {
                    char *row = plane.resident + position * SHARED_PIXEL_STRIDE;
                    store<COPY>(row + i % COPIES_PER_ROW * COPY, v[r]);
                }
            }
        }
    }
}

__device__ __forceinline__ Vector<VEC> load_resident_row(const char *from) {
    Vector<VEC> v;
    if constexpr (VEC == 16) {
        const uint4 all = *reinterpret_cast<const uint4 *>(from);
        v.word[0] = all.x, v.word[1] = all.y, v.word[2] = all.z, v.word[3] = all.w;
    } else if constexpr (VEC == 8) {
        const uint2 both = *reinterpret_cast<const uint2 *>(from);
        v.word[0] = both.x, v.word[1] = both.y;
    } else if constexpr (VEC == 4) {
        v.word[0] = *reinterpret_cast<const u32 *>(from);
    } else {
        v.word[0] = *reinterpret_cast<const u16 *>(from);
    }
    return v;
}

// An address in shared memory. The compiler does not know where it came from.
__device__ __forceinline__ u32 hidden_address(const void *shared) {
    u32 address = u32(__cvta_generic_to_shared(shared));
    asm volatile("" : "+r"(address));
    return address;
}

// Loads the lane's bytes of position i from `base` on, if i is not negative.
__device__ __forceinline__ void load_row_if(Vector<VEC> &v, u32 base, int i) {
    const u32 from = base + i * SHARED_PIXEL_STRIDE;
    if constexpr (VEC == 16) {
        asm volatile("{.reg .pred p; setp.ge.s32 p, %5, 0; @p ld.shared.v4.u32 {%0, %1, %2, %3}, "
                     "[%4];}"
                     : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
                     : "r"(from), "r"(i));
    } else if constexpr (VEC == 8) {
        asm volatile("{.reg .pred p; setp.ge.s32 p, %3, 0; @p ld.shared.v2.u32 {%0, %1}, [%2];}"
                     : "+r"(v.word[0]), "+r"(v.word[1])
                     : "r"(from), "r"(i));
    } else if constexpr (VEC == 4) {
        asm volatile("{.reg .pred p; setp.ge.s32 p, %2, 0; @p ld.shared.u32 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(from), "r"(i));
    } else {
        asm volatile("{.reg .pred p; setp.ge.s32 p, %2, 0; @p ld.shared.u16 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(from), "r"(i));
    }
}

// Adds the taps of a sample, from either memory. `row_offset`: the lane's first byte of a row.
template <typename SumsOfLane>
__device__ __forceinline__ void add_taps(SumsOfLane &sum, const Plane &plane, int row_offset,
                                         const Residency &residency, const Taps &taps) {
    const char *base = plane.value + row_offset;
    TapRows rows{};
    if (!PARTIAL && residency.first == NOT_RESIDENT) {
        rows = load_taps(base, plane.pixel_stride, taps);
    } else {
        // NOWHERE lies before every resident position. Loads from global memory are issued first.
        const auto is_resident = [&](int k) { return taps.position[k] >= residency.first; };
#pragma unroll
        for (int k = 0; PARTIAL && k < TAPS; k++) {
            const int position = is_resident(k) ? NOWHERE : taps.position[k];
            rows.tap[k] = load_row(base, plane.pixel_stride, position);
        }
        const u32 first = plane.address + residency.offset * SHARED_PIXEL_STRIDE + row_offset;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (HIDE_ADDRESS) {
                load_row_if(rows.tap[k], first, taps.position[k] - residency.first);
            } else if (is_resident(k)) {
                const int position = taps.position[k] - residency.first + residency.offset;
                rows.tap[k] =
                    load_resident_row(plane.resident + position * SHARED_PIXEL_STRIDE + row_offset);
            }
        }
    }
    add_taps(sum, rows, taps);
}

// Calls `add(l, first, end)` for each level, with its samples.
template <typename Add> __device__ __forceinline__ void for_each_level(const Call &call, Add add) {
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const int end = l + 1 < LEVELS ? call.level[l + 1].first_sample : SAMPLES;
        add(l, call.level[l].first_sample, end);
    }
}

// Sums the lane's bytes of a query; the lane locates all samples itself.
__device__ __forceinline__ void sum_query(Sums &sum, const Call &call,
                                          const Residency (&residency)[LEVELS], const Plane &plane,
                                          int image, int head, int query, int row_offset) {
#pragma unroll UNROLL
    for (int s = 0; s < SAMPLES; s++) {
        const int l = level_of(call, s);
        add_taps(sum, plane, row_offset, residency[l],
                 taps_of(call.level[l], load_sample(call, image, query, head, s)));
    }
}
