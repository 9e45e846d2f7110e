// specialised: some warps of a block only locate samples, the others only load rows and sum.
//
//   producers               shared memory                       consumers
//   load locations,   -->   [buffer 0][buffer 1][buffer 2]  --> load rows,
//   locate                                                      sum, store
//
//   buffer b:   the taps of SAMPLES_PER_PASS samples of each query of the tile, sample by sample
//   full[b]:    producers arrive, consumers wait
//   empty[b]:   consumers arrive, producers wait
//
// Both kinds of warps step through the same list: every tile of the block, every pass over its
// samples.
//
//   PRODUCERS CONSUMERS       warps of each kind
//   SAMPLES_PER_PASS BUFFERS  samples per query in a buffer; number of buffers
//
// Bound by: the threads that are left for loading rows.
// Best for: many lanes per query. Samples are located once per query, and consumers never wait for
// locations; but rows cannot be loaded before their taps are known.
#include "ladder/barrier.cuh"
#include "ladder/staged.cuh"

constexpr int QUERIES_PER_TILE = CONSUMERS * 32 / LANES_PER_ROW;
constexpr int PASSES = (SAMPLES + SAMPLES_PER_PASS - 1) / SAMPLES_PER_PASS;
constexpr int PITCH = QUERIES_PER_TILE + 2; // neighbouring samples are stored to different banks
constexpr int THREADS = (PRODUCERS + CONSUMERS) * 32;

struct Args {
    Call call;
    int tiles;
};
CHECK_ARGS;

typedef StagedTaps<SAMPLES_PER_PASS * PITCH> Buffer;

// A pass: the samples from `first` on of a tile's queries.
struct Pass {
    int tile, first;
    __device__ __forceinline__ Pass next() const {
        return first + SAMPLES_PER_PASS < SAMPLES ? Pass{tile, first + SAMPLES_PER_PASS}
                                                  : Pass{tile + int(gridDim.x), 0};
    }
};

constexpr int SAMPLES_PER_PRODUCER =
    (QUERIES_PER_TILE * SAMPLES_PER_PASS + PRODUCERS * 32 - 1) / (PRODUCERS * 32);

// Calls `work(n, q, r)` for each sample of a pass that belongs to this producer thread: its number
// n, query q of the tile, sample r of the pass.
template <typename Work>
__device__ __forceinline__ void for_own_samples(const Call &call, const Pass &pass, Work work) {
#pragma unroll
    for (int n = 0; n < SAMPLES_PER_PRODUCER; n++) {
        const int i = int(threadIdx.x) + n * (PRODUCERS * 32);
        const int q = i / SAMPLES_PER_PASS, r = i % SAMPLES_PER_PASS;
        if (q < QUERIES_PER_TILE && pass.first + r < SAMPLES &&
            pass.tile * QUERIES_PER_TILE + q < call.queries) {
            work(n, q, r);
        }
    }
}

// Adds the samples of a pass.
__device__ __forceinline__ void add_pass(float (&sum)[CHANNELS_PER_LANE], const Buffer &buffer,
                                         const char *base, int pixel_stride, int q, int first) {
#pragma unroll
    for (int r = 0; r < SAMPLES_PER_PASS; r++) {
        if (SAMPLES % SAMPLES_PER_PASS != 0 && first + r >= SAMPLES) break;
        add_taps(sum, base, pixel_stride, buffer.load(r * PITCH + q));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    msda_forward(const __grid_constant__ Args args) {
    __shared__ Buffer buffers[BUFFERS];
    __shared__ Barrier full[BUFFERS], empty[BUFFERS];
    if (threadIdx.x < BUFFERS) {
        full[threadIdx.x].init(PRODUCERS * 32), empty[threadIdx.x].init(CONSUMERS * 32);
    }
    __syncthreads();
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    // Passes of this block, over all of its tiles.
    const int passes =
        (args.tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * PASSES;
    Pass pass{int(blockIdx.x), 0};
    int b = 0, phase = 0; // the buffer, and how often all buffers were used
    if (threadIdx.x < PRODUCERS * 32) {
        SampleInput prefetched[SAMPLES_PER_PRODUCER];
        const auto prefetch = [&](const Pass &pass) {
            for_own_samples(call, pass, [&](int i, int q, int r) {
                prefetched[i] = load_sample(call, image, pass.tile * QUERIES_PER_TILE + q, head,
                                            pass.first + r);
            });
        };
        prefetch(pass);
#pragma unroll 1
        for (int n = 0; n < passes; n++) {
            SampleInput input[SAMPLES_PER_PRODUCER];
#pragma unroll
            for (int i = 0; i < SAMPLES_PER_PRODUCER; i++) input[i] = prefetched[i];
            // Load the next pass while this one is located, or while the buffer is not empty.
            if (n + 1 < passes) prefetch(pass.next());
            if (n >= BUFFERS) empty[b].wait(phase - 1);
            for_own_samples(call, pass, [&](int i, int q, int r) {
                const Level &level = call.level[level_of(call, pass.first + r)];
                buffers[b].store(r * PITCH + q, taps_of(level, input[i]));
            });
            full[b].arrive();
            if (++b == BUFFERS) b = 0, phase++;
            pass = pass.next();
        }
        return;
    }
    const int thread = int(threadIdx.x) - PRODUCERS * 32;
    const int q = thread / LANES_PER_ROW, row_offset = thread % LANES_PER_ROW * VEC;
    const char *base = opaque(call.value.at(image, 0, head) + row_offset);
    float sum[CHANNELS_PER_LANE];
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
#pragma unroll 1
    for (int n = 0; n < passes; n++) {
        const int query = pass.tile * QUERIES_PER_TILE + q;
        const bool active = q < QUERIES_PER_TILE && query < call.queries;
        full[b].wait(phase);
        if (active) add_pass(sum, buffers[b], base, call.value.row_stride, q, pass.first);
        empty[b].arrive();
        if (++b == BUFFERS) b = 0, phase++;
        pass = pass.next();
        if (pass.first > 0) continue;
        if (active) store_output(call, image, query, head, row_offset, sum);
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
    }
}
