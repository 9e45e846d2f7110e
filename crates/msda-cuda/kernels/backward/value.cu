// value: the gradient of value on tensor cores.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// A warp multiplies matrices for one tile: see matrix.cuh. The samples come from the sorted list of
// bin.cu.
//
// Threads: four warps per block. Two by two tiles per block, one per warp; or one tile that all
// warps share, if its level has many samples per tile or one of the four tiles has many. The warps
// of a shared tile take every fourth group of 32 samples, and their sums are added in the order of
// the warps, so the bits are the same in every run.
//
// Pipeline of a warp, 32 samples per step: while the products of one step are computed, locations,
// weights and rows of gradients of the next one are on their way (the rows to shared memory), and
// the records of the one after it.
//
// Bound by: instructions and the tensor cores if samples are many; writing grad_value if few.
#include "backward/matrix.cuh"

// Macros besides those of matrix.cuh: BLOCKS_PER_SM, SHARED_BYTES.
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr u32 SHARED_FROM = 1024; // records from which all warps share a tile
constexpr u32 MAX_STEPS = 256;    // 16 bits: sums of so many steps are added to others
constexpr int SUM_BYTES = TILE_PIXELS * CHUNK * 4;

struct __align__(16) WarpStage {
    union {
        uint4 rows[2][32 * PARTS];    // gradients of two steps
        float exact[EXACT_BYTES / 4]; // later the sums of write_exactly
    };
    Shares shares[2];
};

// The stages of the warps, and later their sums.
union Stages {
    WarpStage of_warp[WARPS];
    float sums[WARPS][SUM_BYTES / 4]; // of warps that share a tile
};
static_assert(sizeof(Stages) == SHARED_BYTES, "host and kernel disagree about shared memory");

// How tiles are divided into units of work: one tile, or two by two tiles of a level.
struct Units {
    int first[LEVELS];
    bool heavy[LEVELS]; // a unit is one tile
    int count;          // of a plane
};
extern __shared__ uint4 shared[];

// Where four sums of a pixel are.
__device__ __forceinline__ int sums_of(int pixel, int four) {
    constexpr int FOURS = CHUNK / 4;
    return pixel * CHUNK + (four ^ (pixel / (8 / FOURS) % FOURS)) * 4;
}

// Copies 16 bytes of a row through L1: neighbouring records often belong to the same query.
__device__ __forceinline__ void copy_row(uint4 *to, const char *from, bool exists) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;" ::"r"(
                     u32(__cvta_generic_to_shared(to))),
                 "l"(from), "r"(exists ? 16 : 0)
                 : "memory");
#endif
}

// A sample on its way through the pipeline.
struct Raw {
    int query; // -1: none
    Packed<LOCATION, 2, LOCATION_ALIGN> xy;
    Packed<WEIGHT, 1, WEIGHT_ALIGN> weight;
    Packed<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN> reference;
    Softmax softmax;
};

// Adds the records of a tile from `from` up to `count`: groups `first`, `first + groups`, ... of
// 32.
__device__ __forceinline__ void add_tile(Sums &sums, const Args &args, const TileLevel &level,
                                         const Ranges &ranges, const Tile &tile, int image, int head,
                                         WarpStage &stage, u32 from, u32 count, u32 first,
                                         u32 groups) {
    const int lane = threadIdx.x % 32;
    const char *locations = args.locations.at(image, 0, head);
    const char *weights = args.weights.at(image, 0, head);
    const char *gradients = args.grad_output.at(image, 0, head) + blockIdx.y * (CHUNK * ELEMENT);
    constexpr u32 NONE = ~0u; // strides between queries fit 31 bits
    const u32 stride = groups * 32;
    auto record_at = [&](u32 i) { return i < count ? ranges.at(i) : NONE; };
    // Loads the location and weight of a record, and copies its row of gradients to a buffer.
    auto load = [&](Raw &raw, u32 record, int buffer) {
        raw.query = -1;
        int sample = 0;
        if (record != NONE) raw.query = query_of_record(record, level, sample);
#pragma unroll
        for (int i = 0; i < PARTS; i++) {
            const int row = (i * 32 + lane) / PARTS;
            const int query = __shfl_sync(0xffffffffu, raw.query, row);
            copy_row(&stage.rows[buffer][piece_of(row, lane % PARTS)],
                     address_mad(gradients, max(query, 0), int(args.grad_output.stride[1])) +
                         lane % PARTS * 16,
                     query >= 0);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        if (raw.query < 0) return;
        raw.xy.load_cached(address_mad(locations, raw.query, int(args.locations.stride[1])) +
                           sample * (2 * size_of<LOCATION>));
        raw.weight.load_cached(address_mad(weights, raw.query, int(args.weights.stride[1])) +
                               sample * size_of<WEIGHT>);
        if (FUSED) {
            raw.reference.load_cached(args.reference.at(image, raw.query, tile.l));
            raw.softmax = args.softmax[(i64(image) * args.queries + raw.query) * args.heads + head];
        }
    };
    // Locates a sample and stages its shares.
    auto put = [&](const Raw &raw, int buffer) {
        float xy[2] = {0, 0}, weight[1] = {0};
        if (raw.query >= 0) {
            raw.xy.widen_to(xy), raw.weight.widen_to(weight);
            if (FUSED) {
                float reference[FUSED ? FUSED : 1];
                raw.reference.widen_to(reference);
                add_reference(reference, level, xy[0], xy[1]);
                weight[0] = expf(weight[0] - raw.softmax.max) * raw.softmax.scale;
            }
            place(xy[0], xy[1], level);
        }
        stage.shares[buffer].put(tile, raw.query >= 0, xy[0], xy[1], weight[0]);
    };
    auto add = [&](Sums &to, int buffer, u32 left) {
        add_step<false>(to, stage.shares[buffer], stage.rows[buffer], left, [](int k) { return k; });
    };
    u32 at = from + first * 32; // of the step whose products come next
    if (at >= count) return;
    Raw raw;
    u32 record = record_at(at + lane);
    load(raw, record, 0);
    record = record_at(at + stride + lane);
#pragma unroll 1
    for (int buffer = 0; at < count; at += stride, buffer ^= 1) {
        put(raw, buffer);
        if (at + stride < count) {
            // While the products are computed, those of the next step are loaded, and the records
            // of the one after it.
            load(raw, record, buffer ^ 1);
            record = record_at(at + 2 * stride + lane);
            asm volatile("cp.async.wait_group 1;" ::: "memory");
        } else {
            asm volatile("cp.async.wait_group 0;" ::: "memory");
        }
        __syncwarp();
        if constexpr (ROUND_EACH_STEP) {
            Sums part;
            clear(part);
            add(part, buffer, count - at);
            add_sums(sums, part);
        } else {
            add(sums, buffer, count - at);
        }
        __syncwarp();
    }
}

// Adds all records of a tile, or those that this warp has of a tile that all warps share.
__device__ __forceinline__ void add_records(Sums &sums, const Args &args, const TileLevel &level,
                                            const Ranges &ranges, const Tile &tile, int image,
                                            int head, WarpStage &stage, bool together) {
    const u32 count = ranges.count(), groups = together ? WARPS : 1;
    const u32 first = together ? threadIdx.x / 32 : 0;
    clear(sums);
    if constexpr (ROUND_EACH_STEP) {
        add_tile(sums, args, level, ranges, tile, image, head, stage, 0, count, first, groups);
    } else {
        // Volatile, so that the sums of the rounds before are in memory: few tiles need them.
        volatile float before[2 * COLUMN_TILES * 4];
        constexpr u32 ROUND = MAX_STEPS * THREADS;
#pragma unroll 1
        for (u32 from = 0;; from += ROUND) {
            const bool last = count - from <= ROUND;
            add_tile(sums, args, level, ranges, tile, image, head, stage, from,
                     last ? count : from + ROUND, first, groups);
            if (last && from == 0) break;
#pragma unroll
            for (int i = 0; i < 2 * COLUMN_TILES * 4; i++) {
                float &sum = sums[i / 4 / COLUMN_TILES][i / 4 % COLUMN_TILES][i % 4];
                if (from > 0) sum += before[i];
                before[i] = sum;
                if (!last) sum = 0;
            }
            if (last) break;
        }
    }
}

// The same number. The compiler does not know that, so it does not keep what it computed from it.
__device__ __forceinline__ int forget(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Puts the sums of a warp into shared memory.
__device__ __forceinline__ void put_sums(float *to, const Sums &sums) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int pixel = m * 16 + half * 8 + lane / 4, channel = n * 8 + lane % 4 * 2;
                float2 *at = reinterpret_cast<float2 *>(to + sums_of(pixel, channel / 4) + channel % 4);
                *at = make_float2(sums[m][n][half * 2] * (1 / SCALE),
                                  sums[m][n][half * 2 + 1] * (1 / SCALE));
            }
        }
    }
}

// Adds the sums of all warps and writes the tile. False: a sum is not finite.
__device__ __forceinline__ bool write_tile(const Args &args, const Tile &tile, int image, int head,
                                           const float (*from)[SUM_BYTES / 4]) {
    float zero = 0; // NaN if a sum is not finite
#pragma unroll 4
    for (int i = threadIdx.x; i < TILE_PIXELS * PARTS; i += THREADS) {
        const int pixel = i / PARTS, part = i % PARTS;
        float x[CHANNELS_PER_PART];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_PART; c += 4) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int w = 0; w < WARPS; w++) {
                const float4 more = *reinterpret_cast<const float4 *>(
                    from[w] + sums_of(pixel, part * (CHANNELS_PER_PART / 4) + c / 4));
                sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
            }
            x[c] = sum.x, x[c + 1] = sum.y, x[c + 2] = sum.z, x[c + 3] = sum.w;
        }
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_PART; c++) zero = fmaf(x[c], 0.0f, zero);
        write_piece(args, tile, image, head, pixel, part, x);
    }
    return zero == 0;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_backward_value(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Units units;
    Stages &stages = *reinterpret_cast<Stages *>(shared);
    load_levels(args, levels);
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        int count = 0;
        for (int l = LEVELS - 1; l >= 0; l--) {
            const TileLevel &level = levels.level[l];
            const int across = level.tiles_across;
            const int down = (level.height + TILE_HEIGHT - 1) / TILE_HEIGHT;
            // A quarter more than the samples: those that touch several tiles.
            const i64 records = i64(args.queries) * level.points * 5;
            units.heavy[l] = records > i64(4 * SHARED_FROM) * across * down;
            units.first[l] = count;
            count += units.heavy[l] ? across * down : (across + 1) / 2 * ((down + 1) / 2);
        }
        units.count = count;
    }
    __syncthreads();
    // Plane by plane, so that its gradients stay in L2.
    const u32 total = u32(units.count) * args.batch * args.heads;
#pragma unroll 1
    for (u32 work = blockIdx.x; work < total; work += gridDim.x) {
        const u32 plane = work / u32(units.count);
        const int unit = int(work - plane * units.count);
        const int image = plane / u32(args.heads), head = int(plane - image * u32(args.heads));
        int l = LEVELS - 1;
        while (l > 0 && unit >= units.first[l - 1]) l--;
        const TileLevel &level = levels.level[l];
        const bool heavy = units.heavy[l];
        const u32 in_level = u32(unit - units.first[l]);
        const u32 across = level.tiles_across, down = (level.height + TILE_HEIGHT - 1) / TILE_HEIGHT;
        const u32 line = heavy ? across : (across + 1) / 2; // units from unit row to unit row
        u32 row = in_level / line, column = in_level - row * line;
        if (!heavy) row *= 2, column *= 2;
        // Tile t of the unit.
        auto index_of = [&](int t) {
            return int(level.first_tile + (row + t / 2) * across + column + t % 2);
        };
        auto exists = [&](int t) { return column + t % 2 < across && row + t / 2 < down; };
        const bool has = !heavy && exists(warp);
        int index = index_of(has ? warp : 0);
        Tile tile = tile_at(levels, index);
        Ranges ranges = ranges_of(args, levels, plane, index, tile);
        // All warps share the tile, or each of the four tiles. Otherwise: one tile per warp.
        const bool together = __syncthreads_or(heavy || (has && ranges.count() > SHARED_FROM));
        if (!together && !has) continue;
        WarpStage &stage = stages.of_warp[warp];
#pragma unroll 1
        for (int t = 0; t < (together && !heavy ? WARPS : 1); t++) {
            if (together) {
                if (!exists(t)) continue;
                index = index_of(t), tile = tile_at(levels, index);
                ranges = ranges_of(args, levels, plane, index, tile);
            }
            Sums sums;
            add_records(sums, args, level, ranges, tile, image, head, stage, together);
            // What is known of the tile is computed again: registers are few in between.
            index = forget(index), tile = tile_at(levels, index);
            bool finite;
            if (together) {
                __syncthreads();
                put_sums(stages.sums[warp], sums);
                __syncthreads();
                finite = !__syncthreads_or(!write_tile(args, tile, image, head, stages.sums));
            } else {
                finite = __all_sync(0xffffffffu, store_sums(args, tile, image, head, sums));
            }
            if (!finite && !(together && warp > 0)) {
                const Tile again = tile_at(levels, index);
                write_exactly(args, levels, ranges_of(args, levels, plane, index, again), again,
                              image, head, stages.of_warp[warp].exact);
            }
            if (together) __syncthreads();
            __syncwarp();
        }
    }
}
