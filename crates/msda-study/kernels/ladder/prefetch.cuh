// Prefetched rows: while a warp computes a query, the rows of its next query are copied to shared
// memory.
//
//   buffer 0   [ rows of query n     ]  <-- summed
//   buffer 1   [ rows of query n + 1 ]  <-- cp.async
//
// Only taps on levels that are not resident are copied: the first STREAMED samples. A warp computes
// one query at a time; its inputs are loaded one query earlier than its rows.
//
// Macros beside those of resident.cuh: STREAMED (their number).
#pragma once
#include "ladder/resident.cuh"

static_assert(SHARED_PIXEL_STRIDE == ROW_BYTES, "copied rows lie like resident ones");

constexpr int ROWS_PER_TAP = STREAMED > 0 ? STREAMED : 1;
constexpr int SAMPLES_PER_PASS = ROWS_PER_TAP < 32 ? ROWS_PER_TAP : 32; // located by a warp
constexpr int PASSES = (STREAMED + SAMPLES_PER_PASS - 1) / SAMPLES_PER_PASS;

struct QueryRows {
    char tap[TAPS][ROWS_PER_TAP][ROW_BYTES];
};

// The streamed samples of a query, one per lane and pass.
struct QueryInput {
    SampleInput sample[PASSES > 0 ? PASSES : 1];
};

__device__ __forceinline__ QueryInput load_input(const Call &call, int image, int query, int head,
                                                 int lane) {
    QueryInput input{};
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int s = p * SAMPLES_PER_PASS + lane;
        if (lane < SAMPLES_PER_PASS && s < STREAMED) {
            input.sample[p] = load_sample(call, image, query, head, s);
        }
    }
    return input;
}

// Queues copies of the rows of a query, by a warp.
__device__ __forceinline__ void copy_rows(QueryRows &rows, const QueryInput &input,
                                          const Call &call, const Plane &plane, int lane) {
    constexpr int COPIES = SAMPLES_PER_PASS * COPIES_PER_ROW; // per tap
#pragma unroll
    for (int p = 0; p < PASSES; p++) {
        const int first = p * SAMPLES_PER_PASS;
        const int s = min(first + lane, STREAMED - 1);
        const Taps taps = taps_of(call.level[level_of(call, s)], input.sample[p]);
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
#pragma unroll
            for (int i = 0; i < COPIES; i += 32) {
                const int sample = (i + lane) / COPIES_PER_ROW;
                const int piece = (i + lane) % COPIES_PER_ROW * COPY;
                const int position = __shfl_sync(0xffffffffu, taps.position[k], sample & 31);
                if (i + lane < COPIES && first + sample < STREAMED && position != NOWHERE) {
                    const char *row = address_mad(plane.value, position, plane.pixel_stride);
                    copy_async<COPY>(rows.tap[k][first + sample] + piece, row + piece);
                }
            }
        }
    }
}

// Adds the taps of streamed sample s. `copied`: the lane's bytes of the first row.
__device__ __forceinline__ void add_copied(float (&sum)[CHANNELS_PER_LANE], u32 copied, int s,
                                           const Taps &taps) {
    TapRows rows{};
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        // The rows of a tap follow each other without padding. NOWHERE was not copied.
        const u32 first = copied + k * ROWS_PER_TAP * ROW_BYTES;
        load_row_if(rows.tap[k], first, taps.position[k] == NOWHERE ? NOWHERE : s);
    }
    add_taps(sum, rows, taps);
}
