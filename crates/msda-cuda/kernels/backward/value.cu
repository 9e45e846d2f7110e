// value: the gradient of value on tensor cores.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// The samples come from the sorted chunks of sort.cu. A sample touches two image rows: that of its
// top left tap and the next one. So a warp goes down a strip, one top row after the other, and has
// the sums of two image rows in registers; matrix.cuh explains how it adds.
//
//     top row r        sums of rows r and r + 1
//                      store row r; row r + 1 becomes the upper one
//     top row r + 1    sums of rows r + 1 and r + 2
//
// Threads: four warps per block. A unit of work is some rows of a strip. A block takes four
// neighbouring units, one per warp; or one unit that all warps share, if its level has many samples
// per cell or one of the four units has many. The warps of a shared unit take every fourth group of
// 32 samples of a top row, and their sums are added in the order of the warps, so the bits are the
// same in every run.
//
// The samples of a top row are one range of records per chunk. A warp reads all ranges of its unit
// first, a chunk per lane. For each top row it adds up their lengths, and then takes up to 32
// records per step, from one or more ranges.
//
// Pipeline of a warp: while the products of one step are computed, the warp loads the rows of
// gradients of the next step into shared memory, its locations and weights, and the records of the
// step after that.
//
// Bound by: the data path of L1 and shared memory if samples are many; writing grad_value if few.
#define SUM_LINES 2
#define OWN_CHANNELS 0
#include "backward/matrix.cuh"

// Macros besides those of matrix.cuh: BLOCKS_PER_SM, SHARED_BYTES.
constexpr int WARPS = HOST_WARPS, THREADS = 32 * WARPS;
// Image rows of a unit of a warp, and of a block.
constexpr int ROWS = HOST_ROWS, HEAVY_ROWS = HOST_HEAVY_ROWS;
constexpr int HEAVY_FROM = HOST_HEAVY_FROM; // samples of a warp's unit from which levels are heavy
constexpr u32 SHARED_FROM = 4096;       // records of a unit from which all warps share it
constexpr int MAX_STEPS = 256;          // 16 bits: sums of so many steps are added to others

// Records of a chunk: from `begin` to before `end`.
struct __align__(2 * sizeof(End)) Range {
    End begin, end;
    __device__ __forceinline__ u32 count() const { return u32(end) - u32(begin); }
};

struct __align__(128) WarpStage {
    union {
        uint4 rows[2][32 * PARTS];    // gradients of two steps
        float exact[EXACT_BYTES / 4]; // later the sums of write_exactly
    };
    Shares shares;
    Range ranges[ROWS + 1][32]; // of top rows of a unit, a chunk per lane; begin_row reuses them
    uint2 pieces[32];           // of a top row, see Steps::begin_row
};

struct Stages {
    WarpStage of_warp[WARPS];
    float line[2][WARPS][TILE_WIDTH * CHUNK]; // sums of an image row, of warps that share a unit
};
static_assert(sizeof(Stages) == SHARED_BYTES, "host and kernel disagree about shared memory");

// How levels are divided into what a block takes at a time: one heavy unit, or four units.
struct Units {
    int first[LEVELS]; // by the order in which levels are visited
    bool heavy[LEVELS];
    bool ascending; // whether that order is ascending
    int count; // of a plane
    __device__ __forceinline__ int level_at(int i) const { return ascending ? i : LEVELS - 1 - i; }
};
extern __shared__ __align__(128) uint4 shared[];

// Where four sums of a pixel are.
__device__ __forceinline__ int sums_of(int pixel, int four) {
    constexpr int FOURS = CHUNK / 4;
    return pixel * CHUNK + (four ^ (pixel / (8 / FOURS) % FOURS)) * 4;
}

// Copies 16 bytes of a row through L1: neighbouring records often belong to the same query.
__device__ __forceinline__ void copy_row(u32 to, const char *from) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

// A unit of work: image rows `first` to `end` of a strip of a plane.
struct Unit {
    const Args &args;
    const Levels &levels;
    i64 plane;
    int image, head;
    int l, strip, first, end;
    __device__ __forceinline__ const TileLevel &level() const { return levels.level[l]; }
    __device__ __forceinline__ int first_top() const { return max(first - 1, 0); }
};

// Loads the ranges of records of a unit. Returns how many records there are. All lanes of a warp
// call this together.
__device__ __forceinline__ u32 load_ranges(const Unit &unit, WarpStage &stage) {
    const Args &args = unit.args;
    const u32 lane = threadIdx.x % 32;
    const Ends ends(args, unit.level(), unit.plane, lane);
    const int first_top = unit.first_top();
    u32 sum = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i <= ROWS; i++) {
        if (first_top + i >= unit.end) break;
        const int2 bins = bins_of_cell(unit.level(), unit.levels.bin_shift, unit.strip, first_top + i);
        Range range{0, 0};
        if (lane < args.chunks) range = Range{End(ends.before(bins.x)), End(ends.before(bins.y))};
        stage.ranges[i][lane] = range;
        sum += range.count();
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return sum;
}

__device__ __forceinline__ u32 or_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(0xffffffffu, x);
#else
    return x; // value.cu needs tensor cores
#endif
}

// Takes up to 32 records of a top row at a time.
struct Steps {
    WarpStage &stage;
    const Record *records; // of the plane and level
    u32 chunk_first;       // the first sample of chunk `lane`
    u32 offset, stride;
    u32 lane;
    int top, end;    // top rows, from the first of the unit
    u32 at, row_end; // records of the row
    u32 piece_first; // see begin_row

    __device__ __forceinline__ Steps(const Unit &unit, WarpStage &stage) : stage(stage) {
        lane = keep(threadIdx.x % 32);
        records = unit.args.records + unit.plane * unit.args.records_per_plane +
                  first_record(unit.args, unit.level(), 0);
        chunk_first = lane * u32(unit.args.chunk_samples);
        top = -1, end = unit.end - unit.first_top(), at = row_end = 0;
        piece_first = 0;
    }
    // Numbers the records of a row. Piece i is the i-th range that is not empty: the distance from
    // the number of a record to its place, and the first sample of its chunk. Lane i gets how many
    // records come before it.
    __device__ __forceinline__ void begin_row() {
        const Range range = stage.ranges[top][lane];
        const u32 count = range.count();
        const u32 sum = sum_up_to_lane(count);
        row_end = __shfl_sync(0xffffffffu, sum, 31);
        const u32 present = __ballot_sync(0xffffffffu, count > 0);
        const u32 first = sum - count;
        __syncwarp();
        u32 *firsts = reinterpret_cast<u32 *>(stage.ranges[top]); // in place of the ranges
        if (count > 0) {
            const int piece = __popc(present & ((1u << lane) - 1));
            stage.pieces[piece] = make_uint2(chunk_first + range.begin - first, chunk_first);
            firsts[piece] = first;
        }
        __syncwarp();
        piece_first = lane < __popc(present) ? firsts[lane] : ~0u;
    }
    // The next step: finds its samples and returns how many there are in its row; 0: no more. Lanes
    // without a sample of their own take the last one. The sample is number `first` + `record` of
    // the level. The caller adds them later, so that the load of the record stays in flight.
    __device__ __forceinline__ u32 next(u32 &record, u32 &first) {
        while (at >= row_end) {
            if (++top >= end) return 0;
            begin_row();
            at = offset;
        }
        const u32 left = row_end - at, k = min(lane, left - 1);
        // Which of the next 32 records begin a range; and the ranges before.
        const u32 ahead = piece_first - at;
        const u32 begins = or_of_warp(ahead < 32 ? 1u << ahead : 0);
        const int before = __popc(__ballot_sync(0xffffffffu, piece_first < at));
        const int piece = before + __popc(begins & (~0u >> (31 - k))) - 1;
        const uint2 found = stage.pieces[piece];
        record = records[found.x + at + k], first = found.y;
        at += stride;
        return left;
    }
};

// A sample on its way through the pipeline.
struct Raw {
    Packed<LOCATION, 2, LOCATION_ALIGN> xy;
    Packed<WEIGHT, 1, WEIGHT_ALIGN> weight;
    Packed<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN> reference;
    Softmax softmax;
};

// Computes a unit and stores it. Returns the image rows whose sums are not finite, a bit per row.
// With `together`, all warps of the block call this.
__device__ __forceinline__ u32 add_unit(const Unit &unit, Steps &steps, Stages &stages, bool together,
                                        int &turn) {
    const Args &args = unit.args;
    const TileLevel &level = unit.level();
    const u32 lane = steps.lane, warp = threadIdx.x / 32;
    WarpStage &stage = stages.of_warp[warp];
    const char *locations = keep(args.locations.at(unit.image, 0, unit.head));
    const char *weights = keep(args.weights.at(unit.image, 0, unit.head));
    const char *gradients = keep(args.grad_output.at(unit.image, 0, unit.head) +
                                 blockIdx.y * (CHUNK * ELEMENT) + lane % PARTS * 16);
    char *values =
        args.grad_value.at(unit.image, 0, unit.head) + blockIdx.y * (CHUNK * ELEMENT) + first_byte();
    const int first_top = unit.first_top(), column = unit.strip * TILE_WIDTH;
    steps.offset = together ? warp * 32 : 0, steps.stride = together ? THREADS : 32;

    // Loads the location and weight of a sample, and copies its row of gradients to a buffer.
    const u32 own_piece =
        keep(u32(__cvta_generic_to_shared(&stage.rows[0][piece_of(lane / PARTS, lane % PARTS)])));
    auto load = [&](Raw &raw, u32 index, int buffer) {
        int sample;
        const int query = query_of_sample(index, level, sample);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int other = __shfl_sync(0xffffffffu, query, i * (32 / PARTS) + lane / PARTS);
            // 32 pieces further: piece_of swizzles all rows of this lane alike.
            copy_row(own_piece + buffer * (32 * PARTS * 16) + i * 512,
                     address_mad(gradients, other, int(args.grad_output.stride[1])));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        raw.xy.load_cached(address_mad(locations, query, int(args.locations.stride[1])) +
                           sample * (2 * size_of<LOCATION>));
        raw.weight.load_cached(address_mad(weights, query, int(args.weights.stride[1])) +
                               sample * size_of<WEIGHT>);
        if (FUSED) {
            raw.reference.load_cached(args.reference.at(unit.image, query, unit.l));
            raw.softmax = args.softmax[(i64(unit.image) * args.queries + query) * args.heads + unit.head];
        }
    };
    // Locates a sample and stages its shares in image rows `top` and `top + 1`.
    auto put = [&](const Raw &raw, int top, bool exists) {
        float xy[2], weight[1];
        raw.xy.widen_to(xy), raw.weight.widen_to(weight);
        if (FUSED) {
            float reference[FUSED ? FUSED : 1];
            raw.reference.widen_to(reference);
            add_reference(reference, unit.levels, unit.l, xy[0], xy[1]);
            weight[0] = expf(weight[0] - raw.softmax.max) * raw.softmax.scale;
        }
        place(xy[0], xy[1], level);
        // Bins that are shared hold samples of other top rows too.
        if (unit.levels.bin_shift > 0) exists = exists && max(int(floorf(xy[1])), 0) == top;
        stage.shares.put(xy[0] - float(column), xy[1] - float(top), exists ? weight[0] : 0);
    };
    Sums sums;
    clear(sums);
    // 16-bit types: sums of earlier steps. Volatile keeps them out of registers, because few units
    // need them.
    volatile float before[COLUMN_TILES * 4];
    int rounded = 0, steps_of_sums = 0; // rounded: of how many image rows `before` has sums
    auto round = [&] {
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            float &sum = sums[0][i / 4][i % 4];
            before[i] = (rounded > 0 ? before[i] : 0) + sum, sum = 0;
        }
        rounded = 2, steps_of_sums = 0;
    };
    // Stores the upper row of the sums.
    u32 not_finite = 0;
    auto store = [&](int row) {
        const int pixel = int(lane / 4);
        if (together) {
            float(&lines)[WARPS][TILE_WIDTH * CHUNK] = stages.line[turn % 2];
            auto at = [&](int w, int n) {
                const int channel = n * 8 + int(lane % 4 * 2);
                return reinterpret_cast<float2 *>(lines[w] + sums_of(pixel, channel / 4) + channel % 4);
            };
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                *at(warp, n) = make_float2(sums[0][n][0], sums[0][n][1]);
            }
            __syncthreads();
            // One warp adds them. The others go on, and write to the other half of the buffer.
            if (u32(turn++ % WARPS) != warp) return;
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                float2 sum = make_float2(0, 0);
                for (int w = 0; w < WARPS; w++) sum.x += at(w, n)->x, sum.y += at(w, n)->y;
                sums[0][n][0] = sum.x, sums[0][n][1] = sum.y;
            }
        }
        const char *to = address_mad(values, level.origin + row * level.pitch + column + pixel,
                                     int(args.grad_value.stride[1]));
        Finite finite;
        store_line(const_cast<char *>(to), column + pixel < level.width, sums, 0, finite);
        if (!__all_sync(0xffffffffu, finite.all())) not_finite |= 1u << (row - unit.first);
    };
    // Completes image row `top`: stores it. The lower row of the sums becomes the upper one.
    auto finish = [&](int top) {
        if (!ROUND_EACH_STEP && rounded > 0) {
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                sums[0][n][0] += before[4 * n], sums[0][n][1] += before[4 * n + 1];
                before[4 * n] = before[4 * n + 2], before[4 * n + 1] = before[4 * n + 3];
                before[4 * n + 2] = before[4 * n + 3] = 0;
            }
            rounded--;
        }
        if (top >= unit.first) store(top);
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
            sums[0][n][0] = sums[0][n][2], sums[0][n][1] = sums[0][n][3];
            sums[0][n][2] = sums[0][n][3] = 0;
        }
    };
    const u32 first_piece = keep(RowsInOrder::of(stage.rows[0], lane));
    Raw raw;
    u32 record = 0, first = 0; // see Steps::next
    int top = first_top; // of the sums
    u32 here = steps.next(record, first);
    int here_top = first_top + steps.top;
    if (here > 0) load(raw, first + record, 0);
    u32 following = here > 0 ? steps.next(record, first) : 0;
    int buffer = 0;
#pragma unroll 1
    while (top < unit.end) {
        if (here == 0 || top < here_top) {
            finish(top++);
            continue;
        }
        put(raw, top, lane < here);
        const int following_top = first_top + steps.top;
        u32 then = 0;
        if (following > 0) {
            // While the products are computed, those of the next step are loaded, and the records
            // of the one after it.
            load(raw, first + record, buffer ^ 1);
            then = steps.next(record, first);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncwarp();
        const RowsInOrder rows{stage.rows[buffer], first_piece + buffer * (32 * PARTS * 16)};
        auto add = [&](Sums &to) { add_step<false>(to, stage.shares, rows, here); };
        if constexpr (ROUND_EACH_STEP) {
            Sums part;
            clear(part);
            add(part);
            add_sums(sums, part);
        } else {
            add(sums);
            if (++steps_of_sums == MAX_STEPS) round();
        }
        __syncwarp();
        here = following, here_top = following_top, following = then, buffer ^= 1;
    }
    return not_finite;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_backward_value(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Units units;
    Stages &stages = *reinterpret_cast<Stages *>(shared);
    load_levels(args, levels);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        i64 count = 0;
        // From the level with the fewest cells, and the most samples per cell, to the largest.
        units.ascending = levels.level[0].cells() < levels.level[LEVELS - 1].cells();
        for (int i = 0; i < LEVELS; i++) {
            const int l = units.level_at(i);
            const TileLevel &level = levels.level[l];
            const i64 samples = i64(args.queries) * level.points * ROWS;
            units.heavy[l] = samples > i64(HEAVY_FROM) * level.cells();
            units.first[i] = int(count);
            const int rows = units.heavy[l] ? HEAVY_ROWS : ROWS;
            const int all = level.strips() * ((level.height + rows - 1) / rows);
            count += units.heavy[l] ? all : (all + WARPS - 1) / WARPS;
            // Only levels that overlap can have more units.
            count = min(count, (i64(1) << 31) / (i64(args.batch) * args.heads));
        }
        units.count = int(count);
    }
    __syncthreads();
    int turn = 0; // rows that all warps have stored together
    // Blocks compute two heads of an image at a time (one, if the number of heads is odd), level by
    // level: what they load stays in L2. They compute all heads of the last image at a time, so
    // that heavy units are not among the last ones.
    const u32 of_image = u32(units.count) * args.heads, total = of_image * args.batch;
#pragma unroll 1
    for (u32 work = blockIdx.x; work < total; work += gridDim.x) {
        const int image = work / of_image;
        u32 rest = work - image * of_image;
        const u32 heads = image + 1 == args.batch ? args.heads : args.heads % 2 == 0 ? 2 : 1;
        const u32 group = rest / (u32(units.count) * heads);
        rest -= group * (u32(units.count) * heads);
        int visited = 0;
        while (visited + 1 < LEVELS && rest >= u32(units.first[visited + 1]) * heads) visited++;
        const int first = units.first[visited];
        const u32 of_level = u32((visited + 1 < LEVELS ? units.first[visited + 1] : units.count) - first);
        rest -= u32(first) * heads;
        const u32 in_group = rest / of_level;
        const int head = int(group * heads + in_group);
        const int index = int(rest - in_group * of_level); // of the level
        const u32 plane = u32(image) * args.heads + head;
        const int l = units.level_at(visited);
        const TileLevel &level = levels.level[l];
        const bool heavy = units.heavy[l];
        const u32 first_unit = u32(index) * (heavy ? 1 : WARPS);
        const int rows = heavy ? HEAVY_ROWS : ROWS;
        // Unit u of the block: neighbouring strips. It may have no rows.
        auto unit_at = [&](int u) {
            const int down = int((first_unit + u) / u32(level.strips()));
            const int strip = int(first_unit + u) - down * level.strips();
            const int first = rows * down, end = min(first + rows, level.height);
            return Unit{args, levels, plane, image, head, l, strip, first, end};
        };
        WarpStage &stage = stages.of_warp[warp];
        bool together = heavy;
        if (!heavy) {
            const Unit own = unit_at(warp);
            together = __syncthreads_or(own.first < own.end && load_ranges(own, stage) > SHARED_FROM);
        }
#pragma unroll 1
        for (int u = together ? 0 : warp; u < (heavy ? 1 : together ? WARPS : warp + 1); u++) {
            const Unit unit = unit_at(u);
            if (unit.first >= unit.end) continue;
            if (together) load_ranges(unit, stage);
            Steps steps(unit, stage);
            u32 not_finite = add_unit(unit, steps, stages, together, turn);
            for (; not_finite != 0; not_finite &= not_finite - 1) {
                const int row = unit.first + __ffs(int(not_finite)) - 1;
                const int tile_row = row / TILE_HEIGHT;
                const Tile tile = tile_of_level(level, l, tile_row * level.tiles_across + unit.strip);
                const RecordsOfRows samples{args, levels, plane, image, head, l, unit.strip, row, 1};
                write_exactly(args, levels, samples, tile, row % TILE_HEIGHT, image, head,
                              stage.exact);
            }
        }
        __syncwarp();
    }
}
