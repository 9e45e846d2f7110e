// async_multilevel: every level of a plane passes through shared memory, copied by cp.async while
// the one before it is processed.
//
//   buffer 0   | level 0, tile 0 |        -        | level 0, tile 2 |  ...
//   buffer 1   |        -        | level 0, tile 1 |        -        |  ...
//              copied while ...    tile 0 is processed, and so on to the last level
//
//   a tile: image rows of a level, as many as fit a buffer. A sample belongs to the tile of the
//   upper row of its taps, so a tile has one row more than it has samples of.
//
//   a pixel in shared memory: its channels, then PAD unused elements
//
//   RESIDENT_LEVELS  of the last levels stay in shared memory behind the buffers: they are copied
//   once per block, and the block strides over the queries of its plane
//
// A block has some queries of one plane and keeps their sums in registers until the last tile. Per
// tile and query, each lane of a group locates one sample and tests whether it belongs to the tile;
// the group then loads the taps of those samples, one after another, 4 bytes per lane. The edges of
// the map are tested, so a ring is copied but never read.
//
// Bound by: instructions. Every sample is located once per tile of its level, and each block copies
// the whole plane.
// Best for: planes of few pixels with many queries.
//
// Macros: THREADS, QUERIES_PER_THREAD, PAD, BUFFER_BYTES (of one buffer), RESIDENT_LEVELS.
#include "ladder/ladder.cuh"

constexpr int PIXEL_BYTES = ROW_BYTES + PAD * size_of<VALUE>;
constexpr int GROUP_LANES = LANES_PER_ROW;
constexpr int GROUPS = THREADS / GROUP_LANES;
constexpr int QUERIES_PER_BLOCK = GROUPS * QUERIES_PER_THREAD;
constexpr int STREAMED_LEVELS = LEVELS - RESIDENT_LEVELS;
static_assert(VEC == 4 && PIXEL_BYTES % 4 == 0, "a copy has 4 bytes");
static_assert(32 % GROUP_LANES == 0, "a lane group is a part of a warp");

struct Args {
    Call call;
    int rows_per_tile[LEVELS]; // rows that tiles have samples of; 0: the level has no samples
    int offset[LEVELS];        // of a resident level in shared memory, in bytes
};
CHECK_ARGS;

// Image rows [top, top + rows_per_tile) of a level.
struct Tile {
    int level, top;

    __device__ __forceinline__ void skip_empty(const Args &args) {
        while (level < STREAMED_LEVELS && args.rows_per_tile[level] == 0) level++;
    }
    __device__ __forceinline__ bool exists() const { return level < STREAMED_LEVELS; }
    __device__ __forceinline__ Tile next(const Args &args) const {
        Tile tile{level, top + args.rows_per_tile[level]};
        if (tile.top >= args.call.level[level].height) {
            tile = Tile{level + 1, 0};
            tile.skip_empty(args);
        }
        return tile;
    }
};

// Starts to copy a tile, from its first pixel to its last, by all threads.
__device__ __forceinline__ void copy_tile(char *buffer, const Args &args, const char *plane,
                                          const Tile &tile) {
    const Level &level = args.call.level[tile.level];
    const int rows = min(args.rows_per_tile[tile.level] + 1, level.height - tile.top);
    const int pixels = (rows - 1) * level.pitch + level.width;
    const int first = level.origin + tile.top * level.pitch;
#pragma unroll 4
    for (int i = threadIdx.x; i < pixels * LANES_PER_ROW; i += THREADS) {
        const int pixel = i / LANES_PER_ROW, offset = i % LANES_PER_ROW * VEC;
        const char *row = address_mad(plane, first + pixel, args.call.value.row_stride);
        copy_async<VEC>(buffer + pixel * PIXEL_BYTES + offset, row + offset);
    }
}

// Calls `use(level)` for each resident level that has samples.
template <typename Use>
__device__ __forceinline__ void for_each_resident(const Args &args, Use use) {
#pragma unroll 1
    for (int l = STREAMED_LEVELS; l < LEVELS; l++) {
        if (args.rows_per_tile[l] > 0) use(l);
    }
}

// A sample as the lane that located it sends it to its group.
struct Sent {
    int taps; // pixel of the first tap in the tile, times 16, and a bit per tap that is on the map
    float x, y, weight;
};

// Locates a sample. False: it does not belong to the tile, or does not count.
__device__ __forceinline__ bool locate_in_tile(Sent &sent, const Args &args, const Tile &tile,
                                               const SampleInput &input) {
    const Level &level = args.call.level[tile.level];
    const Located at = locate(level, input);
    const int row = max(at.j, 0) - tile.top;
    if (!at.counts || row < 0 || row >= args.rows_per_tile[tile.level]) return false;
    u32 on_map = 0;
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const int i = at.i + (k & 1), j = at.j + (k >> 1);
        on_map |= u32(i >= 0 && j >= 0 && i < level.width && j < level.height) << k;
    }
    // The first tap may lie before the tile; then it is off the map.
    sent =
        Sent{((at.j - tile.top) * level.pitch + at.i) * 16 + int(on_map), at.x, at.y, input.weight};
    return true;
}

// Adds the taps of a sample.
__device__ __forceinline__ void add_sent(Sums &sum, const char *buffer, int pitch,
                                         const Sent &sent) {
    const char *first = buffer + (sent.taps >> 4) * PIXEL_BYTES;
    Vector<VEC> v[TAPS];
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        v[k].word[0] = 0;
        if (sent.taps >> k & 1) {
            v[k].word[0] =
                *reinterpret_cast<const u32 *>(first + ((k >> 1) * pitch + (k & 1)) * PIXEL_BYTES);
        }
    }
#pragma unroll
    for (int k = 0; k < TAPS; k++) {
        const float share =
            NEAREST ? 1 : (k >> 1 ? sent.y : 1 - sent.y) * (k & 1 ? sent.x : 1 - sent.x);
        // A tap off the map is left out: an infinite weight times 0 would be NaN.
        if (sent.taps >> k & 1) add_row(sum, v[k], sent.weight * share);
    }
}

// Adds the samples of a query that belong to a tile. All lanes of a warp call this together.
__device__ __forceinline__ void add_query(Sums &sum, const Args &args, const char *buffer,
                                          const Tile &tile, int image, int head, int query) {
    const Call &call = args.call;
    const int lane = threadIdx.x % 32, lane_in_group = lane % GROUP_LANES;
    const int group_begin = lane - lane_in_group;
    const int end = tile.level + 1 < LEVELS ? call.level[tile.level + 1].first_sample : SAMPLES;
    const int pitch = call.level[tile.level].pitch;
    for (int first = call.level[tile.level].first_sample; first < end; first += GROUP_LANES) {
        const int s = first + lane_in_group;
        Sent mine{};
        const bool hit = query < call.queries && s < end &&
                         locate_in_tile(mine, args, tile, load_sample(call, image, query, head, s));
        // The lanes of this group whose samples belong to the tile.
        u32 hits = __ballot_sync(0xffffffffu, hit) >> group_begin;
        if (GROUP_LANES < 32) hits &= (1u << GROUP_LANES % 32) - 1;
        while (__any_sync(0xffffffffu, hits != 0)) {
            // A group without hits receives a sample without taps.
            const int from = hits ? group_begin + __ffs(hits) - 1 : lane;
            Sent sent;
            sent.taps = __shfl_sync(0xffffffffu, mine.taps, from);
            sent.x = __shfl_sync(0xffffffffu, mine.x, from);
            sent.y = __shfl_sync(0xffffffffu, mine.y, from);
            sent.weight = __shfl_sync(0xffffffffu, mine.weight, from);
            if (hits) add_sent(sum, buffer + lane_in_group * VEC, pitch, sent);
            hits &= hits - 1;
        }
    }
}

// Computes QUERIES_PER_BLOCK queries from `first` on. When it ends, no thread uses the buffers.
__device__ __forceinline__ void compute(const Args &args, char *buffers, const char *plane,
                                        int image, int head, int first) {
    const Call &call = args.call;
    const int first_query = first + threadIdx.x / GROUP_LANES;
    Sums sum[QUERIES_PER_THREAD] = {};
    const auto add_tile = [&](const char *buffer, const Tile &tile) {
#pragma unroll
        for (int r = 0; r < QUERIES_PER_THREAD; r++) {
            add_query(sum[r], args, buffer, tile, image, head, first_query + r * GROUPS);
        }
    };
    Tile tile{0, 0};
    tile.skip_empty(args);
    if (tile.exists()) copy_tile(buffers, args, plane, tile);
    cp_async_commit();
    for (int buffer = 0; tile.exists(); buffer ^= 1) {
        const Tile next = tile.next(args);
        if (next.exists()) copy_tile(buffers + (buffer ^ 1) * BUFFER_BYTES, args, plane, next);
        // An empty group at the end: all but the last group are then the present tile.
        cp_async_commit();
        cp_async_wait_all_but_last();
        __syncthreads();
        add_tile(buffers + buffer * BUFFER_BYTES, tile);
        // The next iteration overwrites this buffer.
        __syncthreads();
        tile = next;
    }
    if (RESIDENT_LEVELS > 0) {
        cp_async_wait();
        __syncthreads();
        for_each_resident(args, [&](int l) { add_tile(buffers + args.offset[l], Tile{l, 0}); });
    }
    const int row_offset = threadIdx.x % GROUP_LANES * VEC;
#pragma unroll
    for (int r = 0; r < QUERIES_PER_THREAD; r++) {
        const int query = first_query + r * GROUPS;
        if (query < call.queries) {
            float total[CHANNELS_PER_LANE] = {};
            add_sums(total, sum[r]);
            store_sums(call.output.at(image, query, head) + row_offset, total);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(16) char buffers[];
    const int head = blockIdx.y, image = blockIdx.z;
    const char *plane = opaque(call.value.at(image, 0, head));
    for_each_resident(args,
                      [&](int l) { copy_tile(buffers + args.offset[l], args, plane, Tile{l, 0}); });
    cp_async_commit();
    const int step = gridDim.x * QUERIES_PER_BLOCK;
#pragma unroll 1
    for (int first = blockIdx.x * QUERIES_PER_BLOCK; first < call.queries; first += step) {
        compute(args, buffers, plane, image, head, first);
    }
}
