// distributed_best: a cluster keeps a plane (image and head) in its shared memory, divided by image
// rows, so that a lane reads 16 bytes of a pixel wherever it lies.
//
//   a level            block 0   its first rows            the coarsest levels that fit:
//   of 92 rows         block 1   the next 12 rows          whole, in every block
//                      ...
//                      block 7   its last rows
//
//   queries            block r has the r-th part of them. If queries are ordered by rows, as pixels
//                      are, most of their taps lie in the block's own rows. A tile has queries of
//                      all of these rows, so that at any time some taps are remote and others not.
//
// A lane group has one query. Each of its lanes locates a sample, finds out where its four taps
// lie, and stages that; the inputs of the next pass are loaded meanwhile. Then all lanes load the
// taps: from their own block, from another block, or from global memory if the level does not fit.
//
// The blocks of a cluster wait for each other twice: before the first load, and before they exit,
// because the shared memory of a block that has exited is gone.
//
// Bound by: remote loads if samples are anywhere. README.md has what was tried for other samples.
// Best for: queries that are ordered by rows.
//
// Macros: PARTS (blocks per cluster), THREADS, ALL_RESIDENT (every level fits).
#include "ladder/ladder.cuh"

constexpr int GROUP_LANES = LANES_PER_ROW;
constexpr int GROUPS_PER_WARP = 32 / GROUP_LANES;
constexpr int SAMPLES_PER_PASS = GROUP_LANES;
constexpr int PASSES = (SAMPLES + SAMPLES_PER_PASS - 1) / SAMPLES_PER_PASS;
static_assert(VEC == 16, "addresses of rows are multiples of 16");
static_assert(32 % GROUP_LANES == 0, "a lane group is a part of a warp");

// Where a level lies in shared memory.
struct Division {
    int rows;      // image rows per block; 0: the level is not resident
    float inverse; // 1 / rows
    int slot;      // pixels before it
    int in_all;    // 1: every block has all rows
};

struct Args {
    Call call;
    int queries_per_block, tiles;
    Division division[LEVELS];
};
CHECK_ARGS;

// Where a tap lies: the address of its pixel in the cluster's shared memory, which is a multiple of
// 16; or its position times 16, plus this.
constexpr int GLOBAL = 1;

struct __align__(4 * TAPS) Places {
    int tap[TAPS];
};
struct __align__(4 * TAPS) Weights {
    float tap[TAPS];
};

// The samples of a pass of a warp: sample i of all groups, then sample i + 1. So groups load
// neighbours.
struct WarpStage {
    Places places[32];
    Weights weights[32];
};

__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

// An address of this block's shared memory, in that of another block of the cluster.
__device__ __forceinline__ u32 address_in(u32 address, u32 block) {
    u32 remote;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(block));
    return remote;
}

// Copies the block's rows of all levels to shared memory.
__device__ __forceinline__ void copy_rows(char *to, const Args &args, const char *plane, int part) {
#pragma unroll 1
    for (int l = 0; l < LEVELS; l++) {
        const Level &level = args.call.level[l];
        const Division &division = args.division[l];
        const int top = division.in_all ? 0 : part * division.rows;
        const int rows = min(division.rows, level.height - top);
        if (rows <= 0) continue;
        const int pixels = (rows - 1) * level.pitch + level.width;
        const int first = level.origin + top * level.pitch;
        uint4 *slot = reinterpret_cast<uint4 *>(to + division.slot * ROW_BYTES);
#pragma unroll 4
        for (int i = threadIdx.x; i < pixels * LANES_PER_ROW; i += THREADS) {
            const int pixel = first + i / LANES_PER_ROW, offset = i % LANES_PER_ROW * VEC;
            cp_async(slot + i, address_mad(plane, pixel, args.call.value.row_stride) + offset);
        }
    }
    cp_async_wait();
}

// Finds out where the taps of a sample lie, and their weights. `rows`: the block's rows in shared
// memory. A tap off the map is the row of zeros before them, so no load needs a test.
__device__ __forceinline__ void place(Places &places, Weights &weights, const Args &args, int l,
                                      const SampleInput &input, u32 rows, int part) {
    const Level &level = args.call.level[l];
    const Division &division = args.division[l];
    const Located at = locate(level, input);
#pragma unroll
    for (int j = 0; j < (NEAREST ? 1 : 2); j++) {
        const int row = at.j + j;
        const int in_rows = at.counts && row >= 0 && row < level.height;
        // Exact: rows are few, and half a row away from the next whole number of blocks.
        const int block = int((float(row) + 0.5f) * division.inverse);
        const int owner = division.in_all ? part : block;
        const int in_block = division.in_all ? row : row - block * division.rows;
        const u32 own = rows + (division.slot + in_block * level.pitch + at.i) * ROW_BYTES;
        const u32 from = owner == part ? own : address_in(own, owner);
        const int position = level.origin + row * level.pitch + at.i;
        const float of_row = NEAREST ? input.weight : input.weight * (j ? at.y : 1 - at.y);
#pragma unroll
        for (int i = 0; i < (NEAREST ? 1 : 2); i++) {
            const bool on_map = in_rows && at.i + i >= 0 && at.i + i < level.width;
            int tap = int(from) + i * ROW_BYTES;
            if (!ALL_RESIDENT && division.rows == 0) tap = (position + i) * 16 + GLOBAL;
            places.tap[2 * j + i] = on_map ? tap : int(rows) - ROW_BYTES;
            weights.tap[2 * j + i] = on_map ? of_row * (NEAREST ? 1 : i ? at.x : 1 - at.x) : 0;
        }
    }
}

// The lane's 16 bytes of a tap. Volatile: a load must not move before the barrier. The same
// instruction reads the own block and others: an address of the own block is one of the cluster.
__device__ __forceinline__ Vector<VEC> load_tap(int place, int row_offset, const char *plane,
                                                int pixel_stride) {
    Vector<VEC> v;
    if (!ALL_RESIDENT && (place & GLOBAL)) {
        v = ld_global<VEC>(address_mad(plane, place >> 4, pixel_stride) + row_offset);
    } else {
        asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                     : "r"(place + row_offset));
    }
    return v;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(128) char memory[];
    WarpStage &stage = reinterpret_cast<WarpStage *>(memory)[threadIdx.x / 32];
    char *zeros = memory + THREADS / 32 * sizeof(WarpStage), *resident = zeros + ROW_BYTES;
    const u32 rows = u32(__cvta_generic_to_shared(resident));
    const int head = blockIdx.y, image = blockIdx.z;
    // A cluster is PARTS neighbouring blocks, so this is also the block's rank in its cluster.
    const int part = blockIdx.x % PARTS, share = blockIdx.x / PARTS;
    const char *plane = opaque(call.value.at(image, 0, head));

    const int lane = threadIdx.x % GROUP_LANES, row_offset = lane * VEC;
    const int group = threadIdx.x % 32 / GROUP_LANES; // in the warp
    const int begin = part * args.queries_per_block;
    const int end = min(begin + args.queries_per_block, call.queries);
    const int shares = gridDim.x / PARTS;
    const auto query_of = [&](int tile) {
        return begin + (int(threadIdx.x / GROUP_LANES) * args.tiles + tile) * shares + share;
    };
    const auto load_input = [&](int query, int pass) {
        const int s = pass * SAMPLES_PER_PASS + lane;
        // A sample that is not finite does not count.
        SampleInput none{__int_as_float(0x7fffffff), 0, 0};
        if (query >= end || s >= SAMPLES) return none;
        return load_sample(call, image, query, head, s);
    };
    SampleInput input = load_input(query_of(0), 0);
    if (threadIdx.x < LANES_PER_ROW) {
        reinterpret_cast<uint4 *>(zeros)[threadIdx.x] = make_uint4(0, 0, 0, 0);
    }
    copy_rows(resident, args, plane, part);
    cluster_barrier();

    for (int tile = 0; tile < args.tiles; tile++) {
        const int query = query_of(tile);
        float sum[CHANNELS_PER_LANE] = {};
#pragma unroll 1
        for (int pass = 0; pass < PASSES; pass++) {
            const int l = level_of(call, min(pass * SAMPLES_PER_PASS + lane, SAMPLES - 1));
            Places places;
            Weights weights;
            place(places, weights, args, l, input, rows, part);
            __syncwarp();
            stage.places[lane * GROUPS_PER_WARP + group] = places;
            stage.weights[lane * GROUPS_PER_WARP + group] = weights;
            __syncwarp();
            const bool last = pass == PASSES - 1;
            input = load_input(last ? query_of(tile + 1) : query, last ? 0 : pass + 1);
#pragma unroll
            for (int i = 0; i < SAMPLES_PER_PASS; i++) {
                const Places from = stage.places[i * GROUPS_PER_WARP + group];
                const Weights by = stage.weights[i * GROUPS_PER_WARP + group];
                Vector<VEC> v[TAPS];
#pragma unroll
                for (int k = 0; k < TAPS; k++) {
                    v[k] = load_tap(from.tap[k], row_offset, plane, call.value.row_stride);
                }
#pragma unroll
                for (int k = 0; k < TAPS; k++) multiply_add<VALUE>(sum, v[k], by.tap[k]);
            }
        }
        if (query < end) {
            store_sums(call.output.at(image, query, head) + row_offset, sum);
        }
    }
    cluster_barrier();
}
