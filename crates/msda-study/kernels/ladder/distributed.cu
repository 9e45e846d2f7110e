// distributed: a plane (image and head) is kept in the shared memory of several blocks, each with some of the channels.
//
//   a cluster of 8 blocks                          a row of value
//
//     block 0   block 1   ...   block 7            [ part 0 | part 1 | ... | part 7 ]
//     part 0    part 1          part 7                 |        |              |
//     of every  of every        of every            block 0  block 1        block 7
//     position  position        position
//
// Two kernels, by LOCAL:
//
//   0   a block has some of the queries, and reads each tap from all the blocks: a lane has some bytes of one part
//   1   a block has all queries, and computes its own channels of them. Nothing is remote, so it needs no cluster; but
//       every block locates every sample
//
// Positions before `first` did not fit and are read from device memory.
//
// Blocks of a cluster wait for each other twice: before anybody reads, and before anybody leaves, because the memory of a
// block that has left is gone.
//
// Wins: where rows come from far more often than a plane is loaded. Remote reads are slower than the first-level cache.
//
// Knobs: PARTS (a power of two), LOCAL, BLOCK, BLOCKS (of a multiprocessor).
#include "ladder/ladder.cuh"

constexpr int PART = ROW / PARTS;               // bytes of a row that a block has
constexpr int PIECES = PART / VEC;              // lanes that they take
constexpr int ITEM = LOCAL ? PIECES : LANES;    // lanes of a query
constexpr int QUERIES = BLOCK / ITEM;           // of a tile
constexpr bool HAND = ITEM > 1 && 32 % ITEM == 0; // lanes of a query locate a sample each and hand it to the others
constexpr int ROUND = HAND ? ITEM : 1;

struct Args {
    Call call;
    int first, kept; // positions
    int tiles;
};

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// The address of a block's own shared memory in that of another one of the cluster.
__device__ __forceinline__ u32 of_block(u32 at, u32 block) {
    u32 there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(block));
    return there;
}

#if LOCAL
#define LD_KEPT "ld.shared"
#else
#define LD_KEPT "ld.shared::cluster"
#endif

// Reads where it is `there`, zeros elsewhere. Volatile: not before the barrier.
__device__ __forceinline__ Vector<VEC> kept_at(u32 at, bool there) {
    Vector<VEC> v{};
    if constexpr (VEC == 16) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %5, 0; @p " LD_KEPT ".v4.u32 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
                     : "r"(at), "r"(u32(there)));
    } else if constexpr (VEC == 8) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %3, 0; @p " LD_KEPT ".v2.u32 {%0, %1}, [%2];}"
                     : "+r"(v.word[0]), "+r"(v.word[1])
                     : "r"(at), "r"(u32(there)));
    } else if constexpr (VEC == 4) {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p " LD_KEPT ".u32 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(at), "r"(u32(there)));
    } else {
        asm volatile("{.reg .pred p; setp.ne.u32 p, %2, 0; @p " LD_KEPT ".u16 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(at), "r"(u32(there)));
    }
    return v;
}

// Adds the taps of a sample. `kept` is where the lane's bytes of position `first` are, `base` where they are of position 0.
__device__ __forceinline__ void add_kept(float (&sum)[EACH], const Args &args, u32 kept, const char *base, const Taps &taps) {
    Vector<VEC> v[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int position = taps.position[k];
        v[k] = kept_at(kept + (position - args.first) * PART, position >= args.first);
        if (position != NOWHERE && position < args.first) v[k] = gather<VEC>(offset(base, position, args.call.value.row));
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        multiply_add<VALUE>(sum, v[k], taps.position[k] != NOWHERE ? taps.weight[k] : 0);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    // What lanes hand each other, then the positions.
    extern __shared__ __align__(16) char memory[];
    Taps *handed = reinterpret_cast<Taps *>(memory);
    char *parts = memory + (HAND ? BLOCK * sizeof(Taps) : 0);
    const int head = blockIdx.y, image = blockIdx.z;
    // Clusters are PARTS neighbours, so this is a block's rank in its cluster too.
    const int part = blockIdx.x % PARTS;

    const char *from = call.value.at(image, args.first, head) + part * PART;
#pragma unroll 4
    for (int i = threadIdx.x; i < args.kept * PIECES; i += BLOCK) {
        const int position = i / PIECES, piece = i % PIECES;
        store<VEC>(parts + i * VEC, gather<VEC>(offset(from, position, call.value.row) + piece * VEC));
    }
    if (LOCAL) {
        __syncthreads();
    } else {
        cluster_barrier();
    }

    const int item = threadIdx.x / ITEM, lane = threadIdx.x % ITEM;
    // Of the lane's bytes: in the row, and in the part of it that a block has.
    const int chunk = LOCAL ? part * PIECES + lane : lane;
    u32 kept = __cvta_generic_to_shared(parts) + chunk % PIECES * VEC;
    if (!LOCAL) kept = of_block(kept, chunk / PIECES);
    const char *base = once(call.value.at(image, 0, head) + chunk * VEC);
    const int step = LOCAL ? gridDim.x / PARTS : gridDim.x;
    for (int tile = LOCAL ? blockIdx.x / PARTS : blockIdx.x; tile < args.tiles; tile += step) {
        const int query = tile * QUERIES + item;
        // Threads beyond the last whole item, and beyond the last query, only keep the others company.
        const bool busy = item < QUERIES && query < call.queries;
        float sum[EACH] = {};
        for (int first = 0; first < SAMPLES; first += ROUND) {
            const int s = first + (HAND ? lane : 0);
            Taps taps;
            if (busy && s < SAMPLES) {
                // Samples are located once a query, so there is no need to trust a ring.
                taps = taps_of<false>(call.level[level_of(call, s)], given(call, image, query, head, s));
            } else {
#pragma unroll
                for (int k = 0; k < TAPS; k++) taps.position[k] = NOWHERE, taps.weight[k] = 0;
            }
            if constexpr (HAND) {
                handed[threadIdx.x] = taps;
                __syncwarp();
#pragma unroll
                for (int i = 0; i < ROUND; i++) add_kept(sum, args, kept, base, handed[item * ITEM + i]);
                __syncwarp();
            } else {
                add_kept(sum, args, kept, base, taps);
            }
        }
        if (busy) write(call.output.at(image, query, head) + chunk * VEC, sum);
    }
    if (!LOCAL) cluster_barrier();
}
