// distributed: several blocks keep a plane (image and head) in their shared memory, each some of
// the channels.
//
//   a cluster of 8 blocks                          a row of value
//
//     block 0   block 1   ...   block 7            [ part 0 | part 1 | ... | part 7 ]
//     part 0    part 1          part 7                 |        |              |
//     of every  of every        of every            block 0  block 1        block 7
//     position  position        position
//
//   ROW_CLUSTERS  clusters that share a row: each has as many bytes of it, and computes them
//   LOCAL 0   a block has some of the queries and loads each tap from all blocks of the cluster
//             (distributed shared memory)
//   LOCAL 1   a block has all queries and computes its own channels of them. Nothing is remote, so
//             it needs no cluster; but every block locates every sample
//   ASYNC     resident rows are copied by cp.async, else loaded and stored
//   STAGE 1   each lane of a group locates a sample and stages it for the others; 0: every lane
//             locates all samples
//
// Positions before `first_resident` did not fit and are loaded from global memory.
//
// The blocks of a cluster wait for each other twice: before the first load, and before they exit,
// because the shared memory of a block that has exited is gone.
//
// Bound by: remote loads of few bytes. Each lane of a group reads from another block.
// Best for: planes whose rows are read far more often than they are copied.
//
// Macros: PARTS (blocks per cluster, a power of two), ROW_CLUSTERS, LOCAL, ASYNC, STAGE, THREADS,
// BLOCKS_PER_SM.
#include "ladder/ladder.cuh"

constexpr int PART_BYTES = ROW_BYTES / (PARTS * ROW_CLUSTERS); // of a row, per block
constexpr int PART_LANES = PART_BYTES / VEC;
constexpr int CLUSTER_LANES = PARTS * PART_LANES; // that cover a cluster's bytes of a row
constexpr int GROUP_LANES = LOCAL ? PART_LANES : CLUSTER_LANES; // per query
constexpr int QUERIES_PER_TILE = THREADS / GROUP_LANES;
constexpr bool STAGED = STAGE && GROUP_LANES > 1 && 32 % GROUP_LANES == 0;
constexpr int SAMPLES_PER_PASS = STAGED ? GROUP_LANES : 1;

struct Args {
    Call call;
    int first_resident, resident; // positions
    int tiles;
};
CHECK_ARGS;

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// An address of this block's shared memory, in that of another block of the cluster.
__device__ __forceinline__ u32 address_in(u32 address, u32 block) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}

#if LOCAL
#define LD_RESIDENT "ld.shared"
#else
#define LD_RESIDENT "ld.shared::cluster"
#endif
#define LD_RESIDENT_IF(N) "{.reg .pred p; setp.ne.u32 p, %" #N ", 0; @p " LD_RESIDENT

// Loads if `resident`, else zeros. Volatile: it must not move before the barrier.
__device__ __forceinline__ Vector<VEC> load_resident(u32 from, bool resident) {
    Vector<VEC> v{};
    if constexpr (VEC == 16) {
        asm volatile(LD_RESIDENT_IF(5) ".v4.u32 {%0, %1, %2, %3}, [%4];}"
                     : "+r"(v.word[0]), "+r"(v.word[1]), "+r"(v.word[2]), "+r"(v.word[3])
                     : "r"(from), "r"(u32(resident)));
    } else if constexpr (VEC == 8) {
        asm volatile(LD_RESIDENT_IF(3) ".v2.u32 {%0, %1}, [%2];}"
                     : "+r"(v.word[0]), "+r"(v.word[1])
                     : "r"(from), "r"(u32(resident)));
    } else if constexpr (VEC == 4) {
        asm volatile(LD_RESIDENT_IF(2) ".u32 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(from), "r"(u32(resident)));
    } else {
        asm volatile(LD_RESIDENT_IF(2) ".u16 %0, [%1];}"
                     : "+r"(v.word[0])
                     : "r"(from), "r"(u32(resident)));
    }
    return v;
}

// Adds the taps of a sample. `resident`: the lane's bytes of the first resident position; `base`:
// those of position 0 in global memory.
__device__ __forceinline__ void add_sample(float (&sum)[CHANNELS_PER_LANE], const Args &args,
                                           u32 resident, const char *base, const Taps &taps) {
    Vector<VEC> v[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int position = taps.position[k];
        v[k] = load_resident(resident + (position - args.first_resident) * PART_BYTES,
                             position >= args.first_resident);
        if (position != NOWHERE && position < args.first_resident) {
            v[k] = ld_global<VEC>(address_mad(base, position, args.call.value.row_stride));
        }
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        multiply_add<VALUE>(sum, v[k], taps.position[k] != NOWHERE ? taps.weight[k] : 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    // Staged taps, then the resident positions.
    extern __shared__ __align__(16) char memory[];
    Taps *staged = reinterpret_cast<Taps *>(memory);
    char *resident_rows = memory + (STAGED ? THREADS * sizeof(Taps) : 0);
    const int head = blockIdx.y, image = blockIdx.z;
    // A cluster is PARTS neighbouring blocks, so this is also the block's rank in its cluster.
    const int part = blockIdx.x % PARTS, cluster = blockIdx.x / PARTS;
    // The cluster's first byte of a row, and its share of the queries.
    const int row_offset = cluster % ROW_CLUSTERS * (PARTS * PART_BYTES);
    const int share = cluster / ROW_CLUSTERS, shares = gridDim.x / (PARTS * ROW_CLUSTERS);

    const char *from =
        call.value.at(image, args.first_resident, head) + row_offset + part * PART_BYTES;
#pragma unroll 4
    for (int i = threadIdx.x; i < args.resident * PART_LANES; i += THREADS) {
        const int position = i / PART_LANES, chunk = i % PART_LANES;
        const char *row = address_mad(from, position, call.value.row_stride) + chunk * VEC;
        if constexpr (ASYNC) {
            copy_async<VEC>(resident_rows + i * VEC, row);
        } else {
            store<VEC>(resident_rows + i * VEC, ld_global<VEC>(row));
        }
    }
    if (ASYNC) cp_async_wait();
    if (LOCAL) {
        __syncthreads();
    } else {
        cluster_barrier();
    }

    const int group = threadIdx.x / GROUP_LANES, lane = threadIdx.x % GROUP_LANES;
    const int chunk = LOCAL ? part * PART_LANES + lane : lane; // of the cluster's bytes of a row
    u32 resident = __cvta_generic_to_shared(resident_rows) + chunk % PART_LANES * VEC;
    if (!LOCAL) resident = address_in(resident, chunk / PART_LANES);
    const char *base = opaque(call.value.at(image, 0, head) + row_offset + chunk * VEC);
    const int step = LOCAL ? shares : shares * PARTS;
    for (int tile = LOCAL ? share : share * PARTS + part; tile < args.tiles; tile += step) {
        const int query = tile * QUERIES_PER_TILE + group;
        // Threads past the last whole group or the last query only take part in __syncwarp.
        const bool active = group < QUERIES_PER_TILE && query < call.queries;
        float sum[CHANNELS_PER_LANE] = {};
        for (int first = 0; first < SAMPLES; first += SAMPLES_PER_PASS) {
            const int s = first + (STAGED ? lane : 0);
            Taps taps;
            if (active && s < SAMPLES) {
                // A sample is located once per query, so testing the edges costs little.
                taps = taps_of<false>(call.level[level_of(call, s)],
                                      load_sample(call, image, query, head, s));
            } else {
#pragma unroll
                for (int k = 0; k < TAPS; k++) taps.position[k] = NOWHERE, taps.weight[k] = 0;
            }
            if constexpr (STAGED) {
                staged[threadIdx.x] = taps;
                __syncwarp();
#pragma unroll
                for (int i = 0; i < SAMPLES_PER_PASS; i++) {
                    add_sample(sum, args, resident, base, staged[group * GROUP_LANES + i]);
                }
                __syncwarp();
            } else {
                add_sample(sum, args, resident, base, taps);
            }
        }
        if (active) {
            store_sums(call.output.at(image, query, head) + row_offset + chunk * VEC, sum);
        }
    }
    if (!LOCAL) cluster_barrier();
}
