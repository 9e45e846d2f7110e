// Levels of one plane (image and head) that a block keeps in shared memory: the last ones, which are the smallest.
//
//   device memory   [ level 0 ........ | level 1 ... | level 2 | level 3 ]
//                                                      |         |
//   shared memory                      [ level 3 | level 2 ]     a row: PART bytes, then PAD elements of nothing
//
// Macros beside those of ladder.cuh: BLOCK; PAD; GROUPS (parts that a row is divided into: a block has one at a time);
// PARTIAL (of one level only the end may be kept); UNROLL.
#pragma once
#include "ladder/ladder.cuh"

constexpr int PART = ROW / GROUPS;
constexpr int ITEM = PART / VEC;                  // lanes of a query
constexpr int STEP = PART + PAD * size_of<VALUE>; // bytes from position to position in shared memory

// Of a level: the first position that is kept, how many are, and how many lie before them in shared memory. Of one that
// is not kept, the first is beyond all.
struct Keep {
    int from, count, at;
};
constexpr int BEYOND = 0x7fffffff;

// Where a block's part of a plane is.
struct Plane {
    const char *value; // position 0 in device memory
    int row;           // bytes from position to position there
    char *kept;        // shared memory
};

// Brings what is kept to shared memory, by all threads; they must meet before it is read.
__device__ __forceinline__ void bring(const Plane &plane, const Keep (&keep)[LEVELS]) {
    constexpr int AT_ONCE = 4; // pieces that a thread asks for before it waits
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Keep &part = keep[l];
#pragma unroll 1
        for (int first = threadIdx.x; first < part.count * ITEM; first += AT_ONCE * BLOCK) {
            Vector<VEC> v[AT_ONCE];
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                const int i = first + r * BLOCK, position = part.from + i / ITEM;
                if (i < part.count * ITEM) v[r] = gather<VEC>(offset(plane.value, position, plane.row) + i % ITEM * VEC);
            }
#pragma unroll
            for (int r = 0; r < AT_ONCE; r++) {
                const int i = first + r * BLOCK, place = part.at + i / ITEM;
                if (i < part.count * ITEM) store<VEC>(plane.kept + place * STEP + i % ITEM * VEC, v[r]);
            }
        }
    }
}

__device__ __forceinline__ Vector<VEC> row_kept(const char *at) {
    Vector<VEC> v;
    if constexpr (VEC == 16) {
        const uint4 all = *reinterpret_cast<const uint4 *>(at);
        v.word[0] = all.x, v.word[1] = all.y, v.word[2] = all.z, v.word[3] = all.w;
    } else if constexpr (VEC == 8) {
        const uint2 both = *reinterpret_cast<const uint2 *>(at);
        v.word[0] = both.x, v.word[1] = both.y;
    } else if constexpr (VEC == 4) {
        v.word[0] = *reinterpret_cast<const u32 *>(at);
    } else {
        v.word[0] = *reinterpret_cast<const u16 *>(at);
    }
    return v;
}

// Adds the taps of a sample, from wherever they are; `chunk` is where a row has the lane's bytes.
__device__ __forceinline__ void add(float (&sum)[EACH], const Plane &plane, int chunk, const Keep &keep, const Taps &taps) {
    const char *base = plane.value + chunk;
    Rows rows{};
    if (!PARTIAL && keep.from == BEYOND) {
        rows = rows_of(base, plane.row, taps);
    } else {
        // What is nowhere is before all that is kept. What comes from far is asked for first.
        const auto kept = [&](int k) { return taps.position[k] >= keep.from; };
#pragma unroll
        for (int k = 0; PARTIAL && k < TAPS; k++) {
            rows.tap[k] = row_at(base, plane.row, kept(k) ? NOWHERE : taps.position[k]);
        }
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            if (kept(k)) rows.tap[k] = row_kept(plane.kept + (taps.position[k] - keep.from + keep.at) * STEP + chunk);
        }
    }
    add(sum, rows, taps);
}

// The lane's bytes of a query, its taps found by the lane itself.
__device__ __forceinline__ void sum_query(float (&sum)[EACH], const Call &call, const Keep (&keep)[LEVELS],
                                          const Plane &plane, int image, int head, int query, int chunk) {
#pragma unroll
    for (int c = 0; c < EACH; c++) sum[c] = 0;
#pragma unroll UNROLL
    for (int s = 0; s < SAMPLES; s++) {
        const int l = level_of(call, s);
        add(sum, plane, chunk, keep[l], taps_of(call.level[l], given(call, image, query, head, s)));
    }
}
