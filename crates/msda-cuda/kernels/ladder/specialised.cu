// specialised: some warps of a block only find taps, the others only gather and sum.
//
//   producers   read locations and weights --> taps --> [buffer 0][buffer 1][buffer 2] --> consumers   read rows, sum, write
//                                                       a ring in shared memory
//
//   buffer b:   the taps of ROUND samples of each of the tile's queries, those of a sample side by side
//   barriers:   full b  (producers arrive, consumers wait)      empty b  (consumers arrive, producers wait)
//
// Both sides walk the same list: every tile of the block, every round of its samples.
//
//   PRODUCERS CONSUMERS  warps of each kind
//   ROUND BUFFERS        samples of a query in a buffer; buffers
//
// Wins: nothing by itself, since rows cannot be asked for before their taps are known; but taps are found once for all
// lanes of a query, and warps that gather never wait for locations. What is lost are the threads that do not gather.
#include "ladder/ladder.cuh"

constexpr int QUERIES = CONSUMERS * 32 / LANES; // of a tile
constexpr int ROUNDS = (SAMPLES + ROUND - 1) / ROUND;
constexpr int PITCH = QUERIES + 2; // neighbouring samples are written to other banks
constexpr int EVERYBODY = (PRODUCERS + CONSUMERS) * 32;

struct Args {
    Call call;
    int tiles;
};

struct __align__(4 * TAPS) Positions {
    int tap[TAPS];
};
struct __align__(4 * TAPS) Weights {
    float tap[TAPS];
};
struct Buffer {
    Positions positions[ROUND * PITCH];
    Weights weights[ROUND * PITCH];
};

// Barrier 0 is that of all threads.
__device__ __forceinline__ int full(int b) { return 1 + b; }
__device__ __forceinline__ int empty(int b) { return 1 + BUFFERS + b; }

__device__ __forceinline__ void wait(int barrier) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(EVERYBODY) : "memory");
}

__device__ __forceinline__ void arrive(int barrier) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(EVERYBODY) : "memory");
}

// The taps of samples from `start` on.
__device__ __forceinline__ void find(const Call &call, Buffer &buffer, int image, int head, int tile, int start) {
    for (int i = threadIdx.x; i < QUERIES * ROUND; i += PRODUCERS * 32) {
        const int q = i / ROUND, r = i % ROUND, s = start + r, query = tile * QUERIES + q;
        if (s >= SAMPLES || query >= call.queries) continue;
        const Taps taps = taps_of(call.level[level_of(call, s)], given(call, image, query, head, s));
        Positions positions;
        Weights weights;
#pragma unroll
        for (int k = 0; k < TAPS; k++) positions.tap[k] = taps.position[k], weights.tap[k] = taps.weight[k];
        buffer.positions[r * PITCH + q] = positions;
        buffer.weights[r * PITCH + q] = weights;
    }
}

// Adds them.
__device__ __forceinline__ void gather_round(float (&sum)[EACH], const Buffer &buffer, const char *base, int row, int q, int start) {
#pragma unroll
    for (int r = 0; r < ROUND; r++) {
        if (SAMPLES % ROUND != 0 && start + r >= SAMPLES) break;
        const Positions positions = buffer.positions[r * PITCH + q];
        const Weights weights = buffer.weights[r * PITCH + q];
        Taps taps;
#pragma unroll
        for (int k = 0; k < TAPS; k++) taps.position[k] = positions.tap[k], taps.weight[k] = weights.tap[k];
        add(sum, base, row, taps);
    }
}

extern "C" __global__ void __launch_bounds__(EVERYBODY, 1024 / EVERYBODY) msda_forward(const __grid_constant__ Args args) {
    __shared__ Buffer buffers[BUFFERS];
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    // Rounds of this block, over all of its tiles.
    const int rounds = (args.tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * ROUNDS;
    int tile = blockIdx.x, start = 0, b = 0;
    if (threadIdx.x < PRODUCERS * 32) {
#pragma unroll 1
        for (int n = 0; n < rounds; n++) {
            if (n >= BUFFERS) wait(empty(b));
            find(call, buffers[b], image, head, tile, start);
            __threadfence_block();
            arrive(full(b));
            b = b + 1 < BUFFERS ? b + 1 : 0;
            start += ROUND;
            if (start >= SAMPLES) start = 0, tile += gridDim.x;
        }
        return;
    }
    const int thread = int(threadIdx.x) - PRODUCERS * 32, q = thread / LANES, chunk = thread % LANES * VEC;
    const char *base = call.value.at(image, 0, head) + chunk;
    float sum[EACH];
#pragma unroll
    for (int c = 0; c < EACH; c++) sum[c] = 0;
#pragma unroll 1
    for (int n = 0; n < rounds; n++) {
        const int query = tile * QUERIES + q;
        const bool busy = q < QUERIES && query < call.queries;
        wait(full(b));
        if (busy) gather_round(sum, buffers[b], base, call.value.row, q, start);
        // Nobody waits for the last buffers.
        if (n + BUFFERS < rounds) arrive(empty(b));
        b = b + 1 < BUFFERS ? b + 1 : 0;
        start += ROUND;
        if (start < SAMPLES) continue;
        if (busy) finish(call, image, query, head, chunk, sum);
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[c] = 0;
        start = 0, tile += gridDim.x;
    }
}
