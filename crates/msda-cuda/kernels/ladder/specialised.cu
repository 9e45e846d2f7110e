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
#include "ladder/handed.cuh"

constexpr int QUERIES = CONSUMERS * 32 / LANES; // of a tile
constexpr int ROUNDS = (SAMPLES + ROUND - 1) / ROUND;
constexpr int PITCH = QUERIES + 2; // neighbouring samples are written to other banks
constexpr int EVERYBODY = (PRODUCERS + CONSUMERS) * 32;

struct Args {
    Call call;
    int tiles;
};

typedef Handed<ROUND * PITCH> Buffer;

// Barrier 0 is that of all threads.
__device__ __forceinline__ int full(int b) { return 1 + b; }
__device__ __forceinline__ int empty(int b) { return 1 + BUFFERS + b; }

__device__ __forceinline__ void wait(int barrier) {
    __syncwarp();
    asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(EVERYBODY) : "memory");
}

// What was written or read before is done for whoever waits: an arrival orders memory as a wait does, so no fence is
// needed, which would also wait for what is on its way.
__device__ __forceinline__ void arrive(int barrier) {
    __syncwarp();
    asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(EVERYBODY) : "memory");
}

// A round: samples from `start` on of a tile's queries, and those that come next.
struct Round {
    int tile, start;
    __device__ __forceinline__ Round next() const {
        return start + ROUND < SAMPLES ? Round{tile, start + ROUND} : Round{tile + int(gridDim.x), 0};
    }
};

// What a producer has to do with a round: some samples, the thread's own and every so many-th from there.
constexpr int SHARE = (QUERIES * ROUND + PRODUCERS * 32 - 1) / (PRODUCERS * 32);

// Calls `work` for each of them with its number, the place of its query in the tile and its own in the round.
template <typename Work> __device__ __forceinline__ void for_share(const Call &call, const Round &round, Work work) {
#pragma unroll
    for (int n = 0; n < SHARE; n++) {
        const int i = int(threadIdx.x) + n * (PRODUCERS * 32), q = i / ROUND, r = i % ROUND;
        if (q < QUERIES && round.start + r < SAMPLES && round.tile * QUERIES + q < call.queries) work(n, q, r);
    }
}

// Adds the samples of a round.
__device__ __forceinline__ void gather_round(float (&sum)[EACH], const Buffer &buffer, const char *base, int row, int q, int start) {
#pragma unroll
    for (int r = 0; r < ROUND; r++) {
        if (SAMPLES % ROUND != 0 && start + r >= SAMPLES) break;
        add(sum, base, row, buffer.take(r * PITCH + q));
    }
}

extern "C" __global__ void __launch_bounds__(EVERYBODY, 1024 / EVERYBODY) msda_forward(const __grid_constant__ Args args) {
    __shared__ Buffer buffers[BUFFERS];
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    // Rounds of this block, over all of its tiles.
    const int rounds = (args.tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * ROUNDS;
    Round round{int(blockIdx.x), 0};
    int b = 0;
    if (threadIdx.x < PRODUCERS * 32) {
        Given ahead[SHARE];
        const auto fetch = [&](const Round &round) {
            for_share(call, round, [&](int i, int q, int r) {
                ahead[i] = given(call, image, round.tile * QUERIES + q, head, round.start + r);
            });
        };
        fetch(round);
#pragma unroll 1
        for (int n = 0; n < rounds; n++) {
            Given now[SHARE];
#pragma unroll
            for (int i = 0; i < SHARE; i++) now[i] = ahead[i];
            // The next round's locations are on their way while this one's taps are found, or waited for.
            if (n + 1 < rounds) fetch(round.next());
            if (n >= BUFFERS) wait(empty(b));
            for_share(call, round, [&](int i, int q, int r) {
                buffers[b].put(r * PITCH + q, taps_of(call.level[level_of(call, round.start + r)], now[i]));
            });
            arrive(full(b));
            b = b + 1 < BUFFERS ? b + 1 : 0;
            round = round.next();
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
        const int query = round.tile * QUERIES + q;
        const bool busy = q < QUERIES && query < call.queries;
        wait(full(b));
        if (busy) gather_round(sum, buffers[b], base, call.value.row, q, round.start);
        // Nobody waits for the last buffers.
        if (n + BUFFERS < rounds) arrive(empty(b));
        b = b + 1 < BUFFERS ? b + 1 : 0;
        round = round.next();
        if (round.start > 0) continue;
        if (busy) finish(call, image, query, head, chunk, sum);
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[c] = 0;
    }
}
