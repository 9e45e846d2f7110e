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

// A barrier in shared memory: threads arrive, which does not stop them, and others wait until all have, phase by phase.
struct Barrier {
    u64 state;
    __device__ __forceinline__ u32 at() const { return u32(__cvta_generic_to_shared(this)); }
    __device__ __forceinline__ void begin(int threads) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(at()), "r"(threads) : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("{.reg .b64 token; mbarrier.arrive.shared.b64 token, [%0];}" ::"r"(at()) : "memory");
    }
    __device__ __forceinline__ void wait(int phase) const {
        u32 done = 0;
        while (!done) {
            asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                         : "=r"(done)
                         : "r"(at()), "r"(phase & 1)
                         : "memory");
        }
    }
};

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
    __shared__ Barrier full[BUFFERS], empty[BUFFERS];
    if (threadIdx.x < BUFFERS) full[threadIdx.x].begin(PRODUCERS * 32), empty[threadIdx.x].begin(CONSUMERS * 32);
    __syncthreads();
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z;
    // Rounds of this block, over all of its tiles.
    const int rounds = (args.tiles - int(blockIdx.x) + int(gridDim.x) - 1) / int(gridDim.x) * ROUNDS;
    Round round{int(blockIdx.x), 0};
    int b = 0, phase = 0; // the buffer, and how often all of them were used
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
            if (n >= BUFFERS) empty[b].wait(phase - 1);
            for_share(call, round, [&](int i, int q, int r) {
                buffers[b].put(r * PITCH + q, taps_of(call.level[level_of(call, round.start + r)], now[i]));
            });
            full[b].arrive();
            if (++b == BUFFERS) b = 0, phase++;
            round = round.next();
        }
        return;
    }
    const int thread = int(threadIdx.x) - PRODUCERS * 32, q = thread / LANES, chunk = thread % LANES * VEC;
    const char *base = once(call.value.at(image, 0, head) + chunk);
    float sum[EACH];
#pragma unroll
    for (int c = 0; c < EACH; c++) sum[c] = 0;
#pragma unroll 1
    for (int n = 0; n < rounds; n++) {
        const int query = round.tile * QUERIES + q;
        const bool busy = q < QUERIES && query < call.queries;
        full[b].wait(phase);
        if (busy) gather_round(sum, buffers[b], base, call.value.row, q, round.start);
        empty[b].arrive();
        if (++b == BUFFERS) b = 0, phase++;
        round = round.next();
        if (round.start > 0) continue;
        if (busy) finish(call, image, query, head, chunk, sum);
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[c] = 0;
    }
}
