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
#include "backward/units.cuh"

// Macros besides those of matrix.cuh: BLOCKS_PER_SM, SHARED_BYTES.
constexpr u32 SHARED_FROM = 4096; // records of a unit from which all warps share it
constexpr int MAX_STEPS = 256;    // 16 bits: sums of so many steps are added to others

// Records of a chunk: from `begin` to before `end`.
struct __align__(2 * sizeof(End)) Range {
    End begin, end;
    __device__ __forceinline__ u32 count() const { return u32(end) - u32(begin); }
};

struct __align__(128) WarpStage {
    uint4 rows[2][32 * PARTS]; // gradients of two steps
    Shares shares;
    Range ranges[ROWS + 1][32]; // of top rows of a unit, a chunk per lane; begin_row reuses them
    uint2 pieces[32];           // of a top row, see Steps::begin_row
};

struct Stages {
    WarpStage of_warp[WARPS];
    float line[2][WARPS][TILE_WIDTH * CHUNK]; // sums of an image row, of warps that share a unit
};
static_assert(sizeof(Stages) == SHARED_BYTES, "host and kernel disagree about shared memory");

extern __shared__ __align__(128) uint4 shared[];

// Where four sums of a pixel are.
__device__ __forceinline__ int sums_of(int pixel, int four) {
    constexpr int FOURS = CHUNK / 4;
    return pixel * CHUNK + (four ^ (pixel / (8 / FOURS) % FOURS)) * 4;
}

// Copies 16 bytes of a row through L1: neighbouring records often belong to the same query.
__device__ __forceinline__ void copy_row(u32 to, const char *from, int left) {
#if __CUDA_ARCH__ >= 800
    if (!WHOLE_CHUNKS) return copy_piece<16>(to, from, left);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#endif
}

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
        const int2 bins =
            bins_of_cell(unit.level(), unit.levels.bin_shift, unit.strip, first_top + i);
        Range range{0, 0};
        if (lane < args.chunks) range = Range{End(ends.before(bins.x)), End(ends.before(bins.y))};
        stage.ranges[i][lane] = range;
        sum += range.count();
    }
    return sum_over<32>(sum);
}

__device__ __forceinline__ u32 or_of_warp(u32 x) {
#if __CUDA_ARCH__ >= 800
    return __reduce_or_sync(0xffffffffu, x);
#else
    return x; // value.cu needs tensor cores
#endif
}

// A step of a warp: up to 32 samples of a top row. The sample of this lane is number
// `chunk_first` + `record` of the level; lanes without a sample of their own take the last one. The
// two are added late, so that the load of the record stays in flight.
struct Step {
    u32 left = 0; // samples of the top row, from this step on; 0: there is no step
    int top = 0;
    u32 record = 0, chunk_first = 0;
};

// Goes through the samples of a unit, top row by top row.
struct Steps {
    WarpStage &stage;
    const Record *records; // of the plane and level
    u32 lane;
    u32 chunk_first;    // the first sample of chunk `lane`
    u32 offset, stride; // of this warp's records in a row
    int first_top;
    int row, rows;   // top rows, from the first of the unit
    u32 at, row_end; // records of the row
    u32 piece_first; // see begin_row

    __device__ __forceinline__ Steps(const Unit &unit, WarpStage &stage, bool together)
        : stage(stage) {
        lane = keep(threadIdx.x % 32);
        records = unit.args.records + unit.plane * unit.args.records_per_plane +
                  first_record(unit.args, unit.level(), 0);
        chunk_first = lane * u32(unit.args.chunk_samples);
        offset = together ? threadIdx.x / 32 * 32 : 0, stride = together ? THREADS : 32;
        first_top = unit.first_top();
        row = -1, rows = unit.end - first_top, at = row_end = 0;
        piece_first = 0;
    }
    // Numbers the records of a row. Piece i is the i-th range that is not empty: the distance from
    // the number of a record to its place, and the first sample of its chunk. Lane i gets how many
    // records come before it.
    __device__ __forceinline__ void begin_row() {
        const Range range = stage.ranges[row][lane];
        const u32 count = range.count();
        const u32 sum = sum_up_to_lane(count);
        row_end = __shfl_sync(0xffffffffu, sum, 31);
        const u32 present = __ballot_sync(0xffffffffu, count > 0);
        const u32 first = sum - count;
        __syncwarp();
        u32 *firsts = reinterpret_cast<u32 *>(stage.ranges[row]); // in place of the ranges
        if (count > 0) {
            const int piece = __popc(present & ((1u << lane) - 1));
            stage.pieces[piece] = make_uint2(chunk_first + range.begin - first, chunk_first);
            firsts[piece] = first;
        }
        __syncwarp();
        piece_first = lane < __popc(present) ? firsts[lane] : ~0u;
    }
    __device__ __forceinline__ Step next() {
        Step step;
        while (at >= row_end) {
            if (++row >= rows) return step;
            begin_row();
            at = offset;
        }
        step.left = row_end - at, step.top = first_top + row;
        const u32 k = min(lane, step.left - 1);
        // Which of the next 32 records begin a range; and the ranges before.
        const u32 ahead = piece_first - at;
        const u32 begins = or_of_warp(ahead < 32 ? 1u << ahead : 0);
        const int before = __popc(__ballot_sync(0xffffffffu, piece_first < at));
        const int piece = before + __popc(begins & (~0u >> (31 - k))) - 1;
        const uint2 found = stage.pieces[piece];
        step.record = records[found.x + at + k], step.chunk_first = found.y;
        at += stride;
        return step;
    }
};

// A sample on its way through the pipeline.
struct Raw {
    Packed<LOCATION, 2, LOCATION_ALIGN> xy;
    Packed<FUSED ? F32 : WEIGHT, 1, FUSED ? 4 : WEIGHT_ALIGN> weight;
    Packed<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN> reference;
};

constexpr u32 BUFFER_BYTES = 32 * PARTS * 16; // rows of gradients of a step

// Loads the samples of a step.
struct Loader {
    const Unit &unit;
    u32 lane;
    // Of the plane; gradients: the piece of this lane; weights, if FUSED: of the plane and level.
    const char *locations, *weights, *gradients;
    u32 own_piece; // where the lane copies its pieces to

    __device__ __forceinline__ Loader(const Unit &unit, WarpStage &stage, u32 lane)
        : unit(unit), lane(lane) {
        const Args &args = unit.args;
        locations = keep(args.locations.at(unit.image, 0, unit.head));
        weights =
            keep(FUSED ? reinterpret_cast<const char *>(softmax_of(args, unit.level(), unit.plane))
                       : args.weights.at(unit.image, 0, unit.head));
        gradients = keep(args.grad_output.at(unit.image, 0, unit.head) +
                         blockIdx.y * (CHUNK * ELEMENT) + lane % PARTS * 16);
        const uint4 *piece = &stage.rows[0][piece_of(lane / PARTS, lane % PARTS)];
        own_piece = keep(u32(__cvta_generic_to_shared(piece)));
    }
    // Loads the location and weight of this lane's sample. Copies the rows of gradients of all
    // samples to a buffer; PARTS lanes copy a row.
    __device__ __forceinline__ void load(Raw &raw, const Step &step, int buffer) const {
        const Args &args = unit.args;
        const u32 index = step.chunk_first + step.record;
        int sample;
        const int query = query_of_sample(index, unit.level(), sample);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int other = __shfl_sync(0xffffffffu, query, i * (32 / PARTS) + lane / PARTS);
            // 32 pieces further: piece_of swizzles all rows of this lane alike.
            copy_row(own_piece + buffer * BUFFER_BYTES + i * 512,
                     address_mad(gradients, other, int(args.grad_output.stride[1])),
                     bytes_left(args, lane % PARTS * 16));
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        raw.xy.load_cached(address_mad(locations, query, int(args.locations.stride[1])) +
                           sample * (2 * size_of<LOCATION>));
        if (FUSED) {
            raw.weight.load_cached(weights + i64(index) * 4);
            raw.reference.load_cached(args.reference.at(unit.image, query, unit.l));
        } else {
            raw.weight.load_cached(address_mad(weights, query, int(args.weights.stride[1])) +
                                   sample * size_of<WEIGHT>);
        }
    }
};

// Locates a sample and stages its shares in image rows `top` and `top + 1`. Returns whether its
// weight is finite.
template <Terms TERMS>
__device__ __forceinline__ bool stage_shares(const Unit &unit, WarpStage &stage, const Raw &raw,
                                             int top, bool exists) {
    float xy[2], weight[1];
    raw.xy.widen_to(xy), raw.weight.widen_to(weight);
    if (FUSED) {
        float reference[FUSED ? FUSED : 1];
        raw.reference.widen_to(reference);
        add_reference(reference, unit.levels, unit.l, xy[0], xy[1]);
    }
    place(xy[0], xy[1], unit.level());
    // Bins that are shared hold samples of other top rows too.
    if (unit.levels.bin_shift > 0) exists = exists && max(int(floorf(xy[1])), 0) == top;
    stage.shares.put<TERMS>(xy[0] - float(unit.first_column()), xy[1] - float(top), weight[0],
                            exists);
    return !exists || fabsf(weight[0]) <= MAX_FLOAT;
}

// 16-bit types: sums of two image rows, of earlier steps. Volatile keeps them out of registers,
// because few units need them.
struct EarlierSums {
    volatile float sum[COLUMN_TILES * 4];
    int rows = 0;  // of how many image rows there are sums
    int steps = 0; // since sums were moved here

    // Counts a step. After MAX_STEPS, moves the sums here.
    __device__ __forceinline__ void count_step(Sums &sums) {
        if (++steps < MAX_STEPS) return;
#pragma unroll
        for (int i = 0; i < COLUMN_TILES * 4; i++) {
            float &from = sums[0][i / 4][i % 4];
            sum[i] = (rows > 0 ? sum[i] : 0) + from, from = 0;
        }
        rows = 2, steps = 0;
    }
    // Moves the upper row back. The lower one becomes the upper one.
    __device__ __forceinline__ void move_row_to(Sums &sums) {
        if (rows == 0) return;
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
            sums[0][n][0] += sum[4 * n], sums[0][n][1] += sum[4 * n + 1];
            sum[4 * n] = sum[4 * n + 2], sum[4 * n + 1] = sum[4 * n + 3];
            sum[4 * n + 2] = sum[4 * n + 3] = 0;
        }
        rows--;
    }
};

// Adds the upper rows of the sums of all warps. Returns whether this warp has the result: the warps
// take turns. The others go on, and write to the other half of the buffer.
__device__ __forceinline__ bool add_over_warps(Sums &sums, Stages &stages, int &turn) {
    const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float (&lines)[WARPS][TILE_WIDTH * CHUNK] = stages.line[turn % 2];
    auto at = [&](int w, int n) {
        const int pixel = int(lane / 4), channel = n * 8 + int(lane % 4 * 2);
        return reinterpret_cast<float2 *>(lines[w] + sums_of(pixel, channel / 4) + channel % 4);
    };
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        *at(warp, n) = make_float2(sums[0][n][0], sums[0][n][1]);
    }
    __syncthreads();
    if (u32(turn++ % WARPS) != warp) return false;
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        float2 sum = make_float2(0, 0);
        for (int w = 0; w < WARPS; w++) sum.x += at(w, n)->x, sum.y += at(w, n)->y;
        sums[0][n][0] = sum.x, sums[0][n][1] = sum.y;
    }
    return true;
}

// Stores the upper row of the sums as image row `row`. Returns whether all of them are finite.
__device__ __forceinline__ bool store_row(const Unit &unit, char *values, const Sums &sums,
                                          int row) {
    const int column = unit.first_column() + int(threadIdx.x % 32 / 4);
    const TileLevel &level = unit.level();
    const char *to = address_mad(values, level.origin + row * level.pitch + column,
                                 int(unit.args.grad_value.stride[1]));
    Finite finite;
    store_line(const_cast<char *>(to), bytes_left(unit.args, first_byte()), column < level.width,
               sums, 0, finite);
    return __all_sync(0xffffffffu, finite.all());
}

// The lower row of the sums becomes the upper one.
__device__ __forceinline__ void move_down(Sums &sums) {
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n++) {
        sums[0][n][0] = sums[0][n][2], sums[0][n][1] = sums[0][n][3];
        sums[0][n][2] = sums[0][n][3] = 0;
    }
}

typedef Marks<ROWS> UnitMarks;

// Computes a unit and stores it, or counts its terms. Returns the image rows whose sums are not
// finite, a bit per row. With `together`, all warps of the block call this. `marks`: of the rows
// that this warp stores.
template <Terms TERMS>
__device__ __forceinline__ u32 add_unit(const Unit &unit, Stages &stages, bool together, int &turn,
                                        UnitMarks &marks) {
    WarpStage &stage = stages.of_warp[threadIdx.x / 32];
    Steps steps(unit, stage, together);
    const Loader loader(unit, stage, steps.lane);
    char *values = unit.args.grad_value.at(unit.image, 0, unit.head) +
                   blockIdx.y * (CHUNK * ELEMENT) + first_byte();
    const u32 first_piece = keep(RowsInOrder::of(stage.rows[0], steps.lane));
    Sums sums; // of image rows `top` and `top + 1`
    clear(sums);
    EarlierSums earlier;
    u32 not_finite = 0;
    Raw raw; // samples of the current step, then of the next one
    int buffer = 0;
    Step current = steps.next(), next;
    if (current.left > 0) {
        loader.load(raw, current, buffer);
        next = steps.next();
    }
    int top = steps.first_top;
#pragma unroll 1
    while (top < unit.end) {
        if (current.left == 0 || top < current.top) { // image row `top` is complete
            if (!ROUND_EACH_STEP) earlier.move_row_to(sums);
            if (top >= unit.first && (!together || add_over_warps(sums, stages, turn))) {
                const int row = top - unit.first;
                if constexpr (is_count(TERMS)) {
                    marks.add<TERMS>(sums, 0, row);
                } else {
                    if (TERMS == FINITE) marks.put(sums, 0, row, true);
                    bool finite = store_row(unit, values, sums, top);
                    if constexpr (TERMS == FINITE) {
                        // All others are finite. Now the marks take their places.
                        marks.put(sums, 0, row, false);
                        store_row(unit, values, sums, top);
                        finite = finite && !marks.in_order;
                    }
                    if (!finite) not_finite |= 1u << row;
                }
            }
            move_down(sums);
            top++;
            continue;
        }
        const bool finite = stage_shares<TERMS>(unit, stage, raw, top, steps.lane < current.left);
        if (TERMS == PLUS && !finite) marks.in_order = true;
        Step after_next;
        if (next.left > 0) {
            loader.load(raw, next, buffer ^ 1);
            after_next = steps.next();
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncwarp();
        const RowsInOrder rows{stage.rows[buffer], first_piece + buffer * BUFFER_BYTES};
        if constexpr (ROUND_EACH_STEP) {
            Sums of_step;
            clear(of_step);
            add_step<false, TERMS>(of_step, stage.shares, rows, current.left);
            add_sums(sums, of_step);
        } else {
            add_step<false, TERMS>(sums, stage.shares, rows, current.left);
            earlier.count_step(sums);
        }
        __syncwarp();
        current = next, next = after_next, buffer ^= 1;
    }
    return not_finite;
}

// Calls f(samples, tile, first line, lines) for the tiles of image rows of a unit. `rows`: a bit
// per row. A warp that has all rows of the unit takes those of a tile at once. With `together`
// other warps have the rows beside it, so it takes one row at a time.
template <typename F>
__device__ __forceinline__ void for_each_tile(const Unit &unit, u32 rows, bool together, F f) {
    const TileLevel &level = unit.level();
#pragma unroll 1
    while (rows != 0) {
        const int row = unit.first + __ffs(int(rows)) - 1, line = row % TILE_HEIGHT;
        const int lines = together ? 1 : min(TILE_HEIGHT - line, unit.end - row);
        rows &= ~(((1u << lines) - 1) << (row - unit.first));
        const Tile tile =
            tile_of_level(level, unit.l, row / TILE_HEIGHT * level.tiles_across + unit.strip);
        const RecordsOfRows samples{unit.args, unit.levels, unit.plane, unit.image, unit.head,
                                    unit.l,    unit.strip,  row,        lines};
        f(samples, tile, line, lines);
    }
}

// Computes a unit again. With `together`, all warps of the block call this.
__device__ __forceinline__ void add_unit_again(const Unit &unit, Stages &stages, bool together,
                                               int &turn) {
    const int first_turn = turn; // the same warp stores a row in each pass
    UnitMarks marks;
    // Warps that share a unit also share the sums of an image row. A pass overwrites the ranges.
    auto begin_pass = [&]() {
        marks.in_order =
            together ? __syncthreads_or(marks.in_order) : __any_sync(0xffffffffu, marks.in_order);
        turn = first_turn;
        load_ranges(unit, stages.of_warp[threadIdx.x / 32]);
    };
    add_unit<PLUS>(unit, stages, together, turn, marks);
    begin_pass();
    add_unit<MINUS>(unit, stages, together, turn, marks);
    begin_pass();
    const u32 rows = add_unit<FINITE>(unit, stages, together, turn, marks);
    const LaneChannel own(unit.args);
    __syncwarp();
    for_each_tile(unit, rows, together,
                  [&](const auto &samples, const Tile &tile, int line, int lines) {
                      write_in_order(unit.args, samples, tile, line, lines, unit.image, unit.head,
                                     own.channel, own.in_row);
                  });
}

// Computes all units of a block. Sets `not_finite` if some sums are not. AGAIN: some were not, and
// this time all results are right. All threads of the block call this together.
template <bool AGAIN>
__device__ __forceinline__ void add_units(const Args &args, const Levels &levels,
                                          const Bundles &bundles, Stages &stages, int &not_finite) {
    const int warp = threadIdx.x / 32;
    WarpStage &stage = stages.of_warp[warp];
    int turn = 0; // rows that all warps have stored together
    const u32 total = u32(bundles.count) * args.heads * args.batch;
#pragma unroll 1
    for (u32 number = blockIdx.x; number < total; number += gridDim.x) {
        const Bundle bundle(args, bundles, number);
        bool together = bundle.heavy;
        if (!bundle.heavy) {
            const Unit own = bundle.unit_at(args, levels, warp);
            together = __syncthreads_or(own.has_rows() && load_ranges(own, stage) > SHARED_FROM);
        }
        const int end = bundle.heavy ? 1 : together ? WARPS : warp + 1;
#pragma unroll 1
        for (int u = together ? 0 : warp; u < end; u++) {
            const Unit unit = bundle.unit_at(args, levels, u);
            if (!unit.has_rows()) continue;
            if (together) load_ranges(unit, stage);
            if constexpr (AGAIN) {
                add_unit_again(unit, stages, together, turn);
            } else {
                UnitMarks none;
                if (add_unit<ALL>(unit, stages, together, turn, none) != 0) not_finite = 1;
            }
        }
        __syncwarp();
    }
}

__device__ __noinline__ void add_units_again(const Args &args, const Levels &levels,
                                             const Bundles &bundles, Stages &stages,
                                             int &not_finite) {
    add_units<true>(args, levels, bundles, stages, not_finite);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_backward_value(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Bundles bundles;
    __shared__ int not_finite; // some sums of the block are not
    Stages &stages = *reinterpret_cast<Stages *>(shared);
    load_levels(args, levels);
    if (threadIdx.x == 0) bundles.divide(args, levels), not_finite = 0;
    __syncthreads();
    add_units<false>(args, levels, bundles, stages, not_finite);
    __syncthreads();
    if (not_finite) add_units_again(args, levels, bundles, stages, not_finite);
}
