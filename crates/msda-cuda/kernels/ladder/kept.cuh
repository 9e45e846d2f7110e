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
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Keep &part = keep[l];
#pragma unroll 4
        for (int i = threadIdx.x; i < part.count * ITEM; i += BLOCK) {
            const int position = i / ITEM, chunk = i % ITEM * VEC;
            const Vector<VEC> v = gather<VEC>(offset(plane.value, part.from + position, plane.row) + chunk);
            store<VEC>(plane.kept + (part.at + position) * STEP + chunk, v);
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
    if (!PARTIAL && keep.from == BEYOND) {
        add(sum, plane.value + chunk, plane.row, taps);
        return;
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int position = taps.position[k];
        if (position == NOWHERE) continue;
        if (!PARTIAL || position >= keep.from) {
            const char *at = plane.kept + (position - keep.from + keep.at) * STEP + chunk;
            multiply_add<VALUE>(sum, row_kept(at), taps.weight[k]);
        } else {
            multiply_add<VALUE>(sum, row_at(offset(plane.value + chunk, position, plane.row)), taps.weight[k]);
        }
    }
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
