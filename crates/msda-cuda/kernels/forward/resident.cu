// resident: as streaming.cu, but a block keeps the coarse levels of one (image, head) in shared
// memory.
//
//   value of one head    [ level 0 ........... | level 1 ... | level 2 | level 3 ]
//                          through L1 and L2                   cp.async to shared memory
//
//   shared memory        [ staging | block state | resident levels | sorted queries ]
//                          SHARED_BYTES              as many as the arguments say
//
// Threads: lane groups as in streaming.cu, one head per block. A block processes many tiles of
// queries, of one image after another. A slice is the part of a tile that a warp processes at a
// time. Slices are divided evenly among the warps, except those of the last tiles, which any warp
// takes that is done: some warps get 10 % ahead of others.
//
// The copies to shared memory run while the samples on the other levels are summed. Addresses and
// level sizes are in shared memory and loaded again for each slice: registers are needed for loads
// in flight. Eight bytes at a time, because the lanes of a group load different words and the
// groups of a warp the same ones: that takes one or two wavefronts, 16 bytes would take four.
//
// Bound by: the L1 data path, which also serves shared memory.
// Best for: planar values with thousands of queries per image and head.
#include "common/group.cuh"
#include "common/walk.cuh"

// Tiles at the end of a block whose slices are for any of its warps.
constexpr int DYNAMIC_TILES = 2;

// Loads each time: the compiler keeps nothing of it in registers.
__device__ __forceinline__ u64 ld_shared_u64(const void *from) {
    u64 x;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(u32(__cvta_generic_to_shared(from))));
    return x;
}

__device__ __forceinline__ Vector<16> ld_shared(u32 address) {
    Vector<16> v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(address));
    return v;
}

// State of a block, in shared memory.
struct __align__(16) BlockState {
    u64 output; // of query 0
    int image;
    int next_slice; // the next slice that any warp may take
    int first_dynamic_slice, end_slice;
    u64 locations[GROUP_LANES], weights[GROUP_LANES]; // of query 0, for each lane of a group
    // Level of each lane of a group, for each pass.
    struct {
        int origin, pitch;
    } level_place[GROUP_LANES * (LANE_LEVEL ? PASSES : 1)];
    struct {
        float rows, columns;
    } level_size[GROUP_LANES * (LANE_LEVEL ? PASSES : 1)];

    __device__ __forceinline__ void set_image(const Args &args, int of, int head,
                                              int lane_in_group) {
        const int first = lane_in_group * SAMPLES_PER_LANE;
        locations[lane_in_group] =
            u64(args.locations.at(of, 0, head) + first * 2 * size_of<LOCATION>);
        weights[lane_in_group] = u64(args.weights.at(of, 0, head) + first * size_of<WEIGHT>);
        if (lane_in_group == 0) output = u64(args.output.at(of, 0, head)), image = of;
    }
    __device__ __forceinline__ void set_level(int i, const Level &level) {
        level_place[i].origin = level.origin, level_place[i].pitch = level.pitch;
        level_size[i].rows = level.rows, level_size[i].columns = level.columns;
    }
    // The slices of the tiles from `tile` to `end_tile`. Slices without a query are left out.
    __device__ __forceinline__ void set_slices(const Args &args, int tile, int end_tile) {
        first_dynamic_slice = next_slice = max(end_tile - DYNAMIC_TILES, tile + 1) * WARPS;
        end_slice = min(end_tile * WARPS, (args.queries + GROUPS_PER_WARP - 1) / GROUPS_PER_WARP);
    }
    // Moves a warp to its next slice; false: there is none. All lanes call this. The votes tell the
    // compiler that the answer is the same for the whole warp.
    __device__ __forceinline__ bool advance(int &slice) {
        slice += WARPS;
        if (!__any_sync(0xffffffffu, slice >= first_dynamic_slice)) return true;
        if (threadIdx.x % 32 == 0) slice = atomicAdd(&next_slice, 1);
        slice = __shfl_sync(0xffffffffu, slice, 0);
        return __any_sync(0xffffffffu, slice < end_slice);
    }
};

// SORTED: a block counts its queries by cell of the image: columns of strips. Its counters lie
// where samples are staged later.
constexpr int SORT_STRIPS = HOST_SORT_STRIPS, SORT_COLUMNS = HOST_SORT_COLUMNS;
constexpr int SORT_CELLS = SORT_STRIPS * SORT_COLUMNS;
constexpr int SORT_QUERIES_PER_THREAD = HOST_SORT_QUERIES_PER_THREAD; // at most

constexpr int STAGE_BYTES = WARPS * int(sizeof(WarpStage));
constexpr int COUNTER_BYTES = SORTED ? SORT_CELLS * 4 : 0;
constexpr int STATE_OFFSET = STAGE_BYTES > COUNTER_BYTES ? STAGE_BYTES : COUNTER_BYTES;
static_assert(STATE_OFFSET + sizeof(BlockState) == SHARED_BYTES,
              "host and kernel disagree about shared memory");

// The cell of a query, by its first point or its reference point. NaN ends in some cell.
__device__ __forceinline__ int cell_of(const Args &args, int image, int query, int head) {
    float xy[2];
    const char *from = FUSED ? args.reference.address(image, query, 0)
                             : args.locations.address(image, query, head);
    load_widened<LOCATION, 2, size_of<LOCATION>>(from, xy);
    const int x = min(max(int(xy[0] * SORT_COLUMNS), 0), SORT_COLUMNS - 1);
    const int y = min(max(int(xy[1] * SORT_STRIPS), 0), SORT_STRIPS - 1);
    return y * SORT_COLUMNS + x;
}

// Lists `count` queries from `first` on, cell by cell (a counting sort). The order within a cell
// varies from run to run; no output depends on it.
__device__ __forceinline__ void sort_queries(const Args &args, int image, int head, int first,
                                             int count, int *cells, u16 *list) {
    int cell[SORT_QUERIES_PER_THREAD], rank[SORT_QUERIES_PER_THREAD];
#pragma unroll
    for (int i = 0; i < SORT_QUERIES_PER_THREAD; i++) {
        const int n = i * THREADS + threadIdx.x;
        cell[i] = n < count ? cell_of(args, image, first + n, head) : -1;
    }
    for (int i = threadIdx.x; i < SORT_CELLS; i += THREADS) cells[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORT_QUERIES_PER_THREAD; i++) {
        rank[i] = cell[i] < 0 ? 0 : atomicAdd(&cells[cell[i]], 1);
    }
    __syncthreads();
    if (threadIdx.x < 32) { // an exclusive prefix sum: counts become first indices
        constexpr int CELLS_PER_LANE = SORT_CELLS / 32;
        int *own = cells + threadIdx.x * CELLS_PER_LANE, sum = 0;
#pragma unroll
        for (int i = 0; i < CELLS_PER_LANE; i++) sum += own[i];
        int before = int(sum_up_to_lane(u32(sum))) - sum;
#pragma unroll
        for (int i = 0; i < CELLS_PER_LANE; i++) {
            const int n = own[i];
            own[i] = before, before += n;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORT_QUERIES_PER_THREAD; i++) {
        if (cell[i] >= 0) list[cells[cell[i]] + rank[i]] = u16(i * THREADS + threadIdx.x);
    }
    __syncthreads();
}

// One image of the block's head.
struct ResidentSource {
    const BlockState &state;
    HeadRows rows;
    // The lane's bytes in shared memory: of the first resident position if residency is static,
    // else of position 0, as if it were resident too.
    u32 resident_rows;
    Level lane_level;
    bool levels_pending; // the resident levels are still being copied

    __device__ __forceinline__ int image() const { return state.image; }
    __device__ __forceinline__ void inputs(const Args &args, int query, int, int lane_in_group,
                                           const char *&locations, const char *&weights) const {
        locations = of_query(&state.locations[lane_in_group], query, args.locations);
        weights = of_query(&state.weights[lane_in_group], query, args.weights);
    }
    __device__ __forceinline__ char *output(const Args &args, int query, int) const {
        return const_cast<char *>(of_query(&state.output, query, args.output));
    }
    __device__ __forceinline__ static const char *of_query(const u64 *base, int query,
                                                           const Tensor &tensor) {
        const char *from = reinterpret_cast<const char *>(ld_shared_u64(base));
        return address_mad(from, query, tensor.row_stride);
    }
    __device__ __forceinline__ void load_taps(TapRows &to, int position, int level,
                                              int row_pitch) const {
        if (level < FIRST_RESIDENT) {
            ::load_taps(to, rows, position, row_pitch);
            return;
        }
        const u32 address = resident_rows + u32(position) * ROW_BYTES;
#pragma unroll
        for (int i = 0; i < 2 / TAP_COLUMNS; i++) {
            to[i][0] = ld_shared(address + i * ROW_BYTES);
            to[i][1] = ld_shared(address + row_pitch + i * ROW_BYTES);
        }
    }
    __device__ __forceinline__ void load_lane_level(int i) {
        if constexpr (LANE_LEVEL) {
            const u64 place = ld_shared_u64(&state.level_place[i]);
            const u64 size = ld_shared_u64(&state.level_size[i]);
            lane_level.origin = int(u32(place)), lane_level.pitch = int(place >> 32);
            lane_level.rows = __uint_as_float(u32(size));
            lane_level.columns = __uint_as_float(u32(size >> 32));
        }
    }
    // The level sizes are part of the argument.
    __device__ __forceinline__ void publish_levels(const Args &) const {}
    __device__ __forceinline__ bool pending() const { return levels_pending; }
    __device__ __forceinline__ void wait() {
        if (levels_pending) {
            cp_async_wait();
            __syncthreads();
            levels_pending = false;
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_forward_resident(const __grid_constant__ Args args) {
    WarpStage &stage = reinterpret_cast<WarpStage *>(shared)[threadIdx.x / 32];
    BlockState &state = reinterpret_cast<BlockState &>(shared[STATE_OFFSET / 16]);
    uint4 *resident = shared + SHARED_BYTES / 16;
    const Tiling &tiling = args.tiling;
    u16 *list = reinterpret_cast<u16 *>(resident + tiling.resident_positions * (ROW_BYTES / 16));
    const Lane lane;
    const int head = blockIdx.y;

#pragma unroll 1
    for (int i = threadIdx.x; LANE_LEVEL && i < GROUP_LANES * PASSES; i += THREADS) {
        const int s = min(i * SAMPLES_PER_LANE, SAMPLES - 1);
        Level level = args.level[level_of(args, s)];
        if (STATIC_RESIDENCY && s >= FIRST_RESIDENT_SAMPLE) {
            level.origin -= tiling.first_resident_position;
        }
        state.set_level(i, level);
    }
#pragma unroll 1
    for (int i = 0; i < tiling.images_per_block; i++) {
        const int image = blockIdx.z * tiling.images_per_block + i;
        // The tiles of all images of a block are numbered from 0; this finds those of image i.
        int tile = max(int(blockIdx.x) * tiling.tiles_per_block - i * tiling.tiles_per_image, 0);
        const int end =
            min(int(blockIdx.x + 1) * tiling.tiles_per_block - i * tiling.tiles_per_image,
                tiling.tiles_per_image);
        if (image >= args.batch || tile >= end) continue;
        __syncthreads(); // all warps are done with the levels of the image before
        const char *from = args.value.address(image, tiling.first_resident_position, head);
        for (int k = threadIdx.x; k < tiling.resident_positions * (ROW_BYTES / 16); k += THREADS) {
            cp_async(resident + k, from + k * 16);
        }
        if (threadIdx.x < GROUP_LANES) state.set_image(args, image, head, lane.in_group);
        if (threadIdx.x == 0) state.set_slices(args, tile, end);
        u32 resident_rows = u32(__cvta_generic_to_shared(resident)) +
                            u32(lane.tap_column * ROW_BYTES + lane.row_offset);
        if (!STATIC_RESIDENCY) resident_rows -= u32(tiling.first_resident_position) * ROW_BYTES;
        // Both addresses must stay whole: the compiler would add up their parts for every row.
        resident_rows = __shfl_sync(0xffffffffu, resident_rows, lane.index);
        const char *base = args.value.address(image, lane.tap_column, head) + lane.row_offset;
        asm volatile("" : "+l"(base));
        ResidentSource source{state, {base, args.value.row_stride}, resident_rows, {}, true};
        const int list_begin = tile * QUERIES_PER_TILE;
        if (SORTED) {
            const int count = min(end * QUERIES_PER_TILE, args.queries) - list_begin;
            sort_queries(args, image, head, list_begin, count, reinterpret_cast<int *>(shared),
                         list);
        } else {
            __syncthreads();
        }
        int slice = tile * WARPS + threadIdx.x / 32;
#pragma unroll 1
        do {
            const int q = slice * GROUPS_PER_WARP + lane.group();
            const int query = query_of(args, ORDERED ? state.image : 0, q, list_begin, list);
            process_group(args, lane, stage, source, query, head);
        } while (state.advance(slice));
    }
}
