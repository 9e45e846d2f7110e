// Loading warps: some warps of a block only load locations and weights. The others locate samples,
// load rows and sum.
//
//   loaders                 shared memory                       other warps
//   load locations,   -->   [buffer 0][buffer 1][buffer 2]  --> locate, load rows,
//   weights                                                     sum, store
//
//   buffer b:   SAMPLES_PER_PASS samples of each query of a tile, sample by sample
//   full[b]:    loaders arrive, the others wait
//   empty[b]:   the others arrive, loaders wait
//
// Both kinds of warps step through the same list: every tile of queries, every pass over its
// samples.
//
// Macros beside those of ladder.cuh: LOADERS (warps that load), THREADS, SAMPLES_PER_PASS (divides
// SAMPLES), BUFFERS, LOCATION_ALIGN and WEIGHT_ALIGN (bytes, of the samples of a pass).
#pragma once
#include "ladder/barrier.cuh"
#include "ladder/ladder.cuh"

constexpr int LOADING_THREADS = LOADERS * 32;
constexpr int SUMMING_THREADS = THREADS - LOADING_THREADS;
constexpr int QUERIES_PER_TILE = SUMMING_THREADS / LANES_PER_ROW;
constexpr bool ONE_LEVEL_PER_PASS = UNIFORM_POINTS > 0 && UNIFORM_POINTS % SAMPLES_PER_PASS == 0;

struct InputBuffers {
    SampleInput input[BUFFERS][SAMPLES_PER_PASS][QUERIES_PER_TILE];
    Barrier full[BUFFERS], empty[BUFFERS];

    // By all threads of the block. A barrier of the block must follow. One thread does it, behind a
    // branch: three threads became a uniform predicate, which racecheck does not see.
    __device__ __forceinline__ void init() {
        if (threadIdx.x != 0) return;
#pragma unroll 1
        for (int b = 0; b < BUFFERS; b++) {
            full[b].init(LOADING_THREADS), empty[b].init(SUMMING_THREADS);
        }
    }
};

// The next buffer, and how often all buffers were used.
struct Cursor {
    int buffer, phase;
    __device__ __forceinline__ void advance() {
        if (++buffer == BUFFERS) buffer = 0, phase++;
    }
};

// Queries of one plane: tiles from `first` on, `stride` queries apart, up to `end`.
struct Tiles {
    int image, head, first, end, stride;
};

__device__ __forceinline__ bool is_loader() { return threadIdx.x < LOADING_THREADS; }

// Loads the samples of all tiles; by loaders.
__device__ __forceinline__ void load_tiles(InputBuffers &buffers, Cursor &cursor, const Call &call,
                                           const Tiles &tiles) {
#pragma unroll 1
    for (int first = tiles.first; first < tiles.end; first += tiles.stride) {
#pragma unroll 1
        for (int s = 0; s < SAMPLES; s += SAMPLES_PER_PASS) {
            if (cursor.phase > 0) buffers.empty[cursor.buffer].wait(cursor.phase - 1);
#pragma unroll 1
            for (int q = threadIdx.x; q < QUERIES_PER_TILE; q += LOADING_THREADS) {
                if (first + q >= tiles.end) break;
                SampleInput input[SAMPLES_PER_PASS];
                load_samples<SAMPLES_PER_PASS, LOCATION_ALIGN, WEIGHT_ALIGN>(
                    input, call, tiles.image, first + q, tiles.head, s);
#pragma unroll
                for (int r = 0; r < SAMPLES_PER_PASS; r++) {
                    buffers.input[cursor.buffer][r][q] = input[r];
                }
            }
            buffers.full[cursor.buffer].arrive();
            cursor.advance();
        }
    }
}

// Sums all tiles; by the other warps. Calls `add(sum, l, taps)` for each sample, with its level,
// and `finish(query, sum)` after the last sample of a query.
template <typename Add, typename Finish>
__device__ __forceinline__ void sum_tiles(InputBuffers &buffers, Cursor &cursor, const Call &call,
                                          const Tiles &tiles, Add add, Finish finish) {
    const int q = (int(threadIdx.x) - LOADING_THREADS) / LANES_PER_ROW;
#pragma unroll 1
    for (int first = tiles.first; first < tiles.end; first += tiles.stride) {
        const bool active = q < QUERIES_PER_TILE && first + q < tiles.end;
        float sum[CHANNELS_PER_LANE];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
#pragma unroll 1
        for (int s = 0; s < SAMPLES; s += SAMPLES_PER_PASS) {
            buffers.full[cursor.buffer].wait(cursor.phase);
            const int level_of_pass = level_of(call, s);
#pragma unroll 1
            for (int r = 0; active && r < SAMPLES_PER_PASS; r++) {
                const int l = ONE_LEVEL_PER_PASS ? level_of_pass : level_of(call, s + r);
                add(sum, l, taps_of(call.level[l], buffers.input[cursor.buffer][r][q]));
            }
            buffers.empty[cursor.buffer].arrive();
            cursor.advance();
        }
        if (active) finish(first + q, sum);
    }
}
