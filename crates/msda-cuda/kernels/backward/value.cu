// value: the gradient of value on tensor cores.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// A warp multiplies matrices for one tile: 32 pixels x samples times samples x CHUNK channels. The
// samples come from the sorted list of bin.cu. Each has at most four shares that are not 0, but the
// tensor core multiplies all 32 faster than other code would find the four.
//
//     shares (registers)                gradients (shared memory)      sums (registers)
//     sample  0 1 2 .. 15               channel  0 1 2 .. 31
//     pixel 0 . a . ..                  sample 0 . . .                 pixel 0 . . .
//     pixel 1 . b . ..            x     sample 1 . . .            =    pixel 1 . . .
//
// Shares are products of three numbers in f32. They are split into two numbers of the type of the
// gradients, and both are multiplied, so the products are exact to 16 bits or more (bf16: 16,
// f16: 22). f32 gradients are split too (tf32, three products: 21 bits). Sums are f32.
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
// A share of 0 times infinity is not a number. So if a sum is not finite, the tile is computed
// again as the definition says.
//
// Bound by: instructions and the tensor cores if samples are many; writing grad_value if few.
#include "backward/tiles.cuh"

// Macros besides those of tiles.cuh: CHUNK (channels of a warp: 8, 16 or 32), BLOCKS_PER_SM,
// SHARED_BYTES.
constexpr int WARPS = 4, THREADS = 32 * WARPS;
constexpr int ELEMENT = size_of<VALUE>;
constexpr int PARTS = CHUNK * ELEMENT / 16;            // pieces of 16 bytes per row
constexpr int COLUMN_TILES = CHUNK / 8;                // matrices of 8 channels
constexpr int CHANNELS_PER_PART = 16 / ELEMENT;
constexpr u32 SHARED_FROM = 1024;                      // records from which all warps share a tile
// f16 has no small numbers: shares are scaled up by this, and sums down.
constexpr float SCALE = VALUE == F16 ? 256.0f : 1.0f;

constexpr int SUM_BYTES = TILE_PIXELS * CHUNK * 4;
constexpr int EXACT_BYTES = TILE_PIXELS * 32 * 4;

struct __align__(16) WarpStage {
    union {
        uint4 rows[2][32 * PARTS];     // gradients of two steps
        float sums[1][SUM_BYTES / 4];  // later the sums
        float exact[EXACT_BYTES / 4];  // or the sums of write_exactly
    };
    float4 lines[2][32]; // weight * share of each of the four image rows of the tile
    float column[2][32]; // x in the tile
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

// Where piece `part` of a row is, so that neither copies nor matrix loads meet bank conflicts.
__device__ __forceinline__ int piece_of(int row, int part) {
    if constexpr (VALUE == F32) {
        constexpr int PAIRS = PARTS / 2;
        const int pair = (part >> 1) ^ (PAIRS == 4 ? row & 3 : PAIRS == 2 ? row >> 1 & 1 : 0);
        return row * PARTS + pair * 2 + (part & 1);
    } else {
        return row * PARTS + (part ^ (row / (8 / PARTS) % PARTS));
    }
}

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

__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (VALUE == BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else if constexpr (VALUE == F16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
}

// Two shares as two 16-bit numbers each: the rounded one, and the rest.
__device__ __forceinline__ void split2(float first, float second, u32 &high, u32 &low) {
    float high_first, high_second;
    high = narrow2<VALUE == F32 ? F16 : VALUE>(first, second);
    widen2<VALUE == F32 ? F16 : VALUE>(high, high_first, high_second);
    low = narrow2<VALUE == F32 ? F16 : VALUE>(first - high_first, second - high_second);
}

// A number as two tf32 numbers: rounded, and the rest. The tensor core ignores the low 13 bits. NaN
// stays NaN in the rest.
__device__ __forceinline__ void split(float x, u32 &high, u32 &low) {
    high = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    low = __float_as_uint(x - __uint_as_float(high));
}

// Tensor cores cut sums off instead of rounding them, so an error grows with each addition. f32:
// the sums of a step are added to others that are rounded. 16 bits: those of MAX_STEPS steps are.
constexpr bool ROUND_EACH_STEP = VALUE == F32;
constexpr u32 MAX_STEPS = 256;

constexpr int MATRICES = COLUMN_TILES > 1 ? 2 : 1; // of 8 channels, loaded at once

__device__ __forceinline__ void load_matrices(u32 (&b)[MATRICES][2], const uint4 *row) {
    const u32 address = u32(__cvta_generic_to_shared(row));
    if constexpr (MATRICES == 2) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0][0]), "=r"(b[0][1]), "=r"(b[MATRICES - 1][0]), "=r"(b[MATRICES - 1][1])
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b[0][0]), "=r"(b[0][1])
                     : "r"(address));
    }
}

typedef float Sums[2][COLUMN_TILES][4]; // [two image rows of the tile][8 channels]

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
        }
    }
}

// The share of a column of the tile.
__device__ __forceinline__ float share_of(float distance) { return __saturatef(1 - fabsf(distance)); }

// Adds partial sums.
__device__ __forceinline__ void add(Sums &to, const Sums &more) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[m][n][i] += more[m][n][i];
        }
    }
}

// Adds 32 staged samples, or `count` if those are fewer.
__device__ __forceinline__ void add_step(Sums &sums, const WarpStage &stage, int buffer, u32 count) {
    const int lane = threadIdx.x % 32;
    const float column = float(lane / 4); // the pixel column of this lane's shares
    const uint4 *rows = stage.rows[buffer];
    if constexpr (VALUE == F32) {
#pragma unroll
        for (int step = 0; step < 32; step += 8) { // samples step + lane % 4 and 4 more
            if (step >= count) break;
            u32 high[2][4], low[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int k = step + half * 4 + lane % 4;
                const float share = share_of(stage.column[buffer][k] - column);
                const float4 lines = stage.lines[buffer][k];
                const float line[4] = {lines.x, lines.y, lines.z, lines.w};
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    split(share * line[j], high[j / 2][half * 2 + j % 2], low[j / 2][half * 2 + j % 2]);
                }
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                u32 b_high[2], b_low[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int k = step + half * 4 + lane % 4, channel = n * 8 + lane / 4;
                    const uint4 *piece = rows + piece_of(k, channel / 4);
                    split(reinterpret_cast<const float *>(piece)[channel % 4], b_high[half], b_low[half]);
                }
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply(sums[m][n], low[m], b_high);
                    multiply(sums[m][n], high[m], b_low);
                    multiply(sums[m][n], high[m], b_high);
                }
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < 32; step += 16) {
            if (step >= count) break;
            u32 high[2][4], low[2][4];
#pragma unroll
            for (int half = 0; half < 2; half++) { // samples k and k + 1
                const int k = step + half * 8 + lane % 4 * 2;
                const float2 at = *reinterpret_cast<const float2 *>(&stage.column[buffer][k]);
                const float first = share_of(at.x - column), second = share_of(at.y - column);
                const float4 a = stage.lines[buffer][k], b = stage.lines[buffer][k + 1];
                split2(first * a.x, second * b.x, high[0][half * 2], low[0][half * 2]);
                split2(first * a.y, second * b.y, high[0][half * 2 + 1], low[0][half * 2 + 1]);
                split2(first * a.z, second * b.z, high[1][half * 2], low[1][half * 2]);
                split2(first * a.w, second * b.w, high[1][half * 2 + 1], low[1][half * 2 + 1]);
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n += MATRICES) {
                // Lanes 0 to 15 name the rows of the 16 samples, lanes 16 to 31 those of the next 8
                // channels. The matrices are transposed.
                u32 b[MATRICES][2];
                load_matrices(b, rows + piece_of(step + lane % 16, n + lane / 16 % MATRICES));
#pragma unroll
                for (int i = 0; i < MATRICES; i++) {
#pragma unroll
                    for (int m = 0; m < 2; m++) {
                        multiply(sums[m][n + i], low[m], b[i]);
                        multiply(sums[m][n + i], high[m], b[i]);
                    }
                }
            }
        }
    }
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
        float4 lines = make_float4(0, 0, 0, 0);
        float column = 0;
        if (raw.query >= 0) {
            float xy[2], weight[1];
            raw.xy.widen_to(xy), raw.weight.widen_to(weight);
            if (FUSED) {
                float reference[FUSED ? FUSED : 1];
                raw.reference.widen_to(reference);
                add_reference(reference, level, xy[0], xy[1]);
                weight[0] = expf(weight[0] - raw.softmax.max) * raw.softmax.scale;
            }
            place(xy[0], xy[1], level);
            column = xy[0] - float(tile.x);
            const float line = xy[1] - float(tile.y), w = weight[0] * SCALE;
            lines.x = w * share_of(line), lines.y = w * share_of(line - 1);
            lines.z = w * share_of(line - 2), lines.w = w * share_of(line - 3);
        }
        stage.lines[buffer][lane] = lines, stage.column[buffer][lane] = column;
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
            add_step(part, stage, buffer, count - at);
            add(sums, part);
        } else {
            add_step(sums, stage, buffer, count - at);
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

// Writes a piece of a row.
__device__ __forceinline__ void write_piece(const Args &args, const Tile &tile, int image, int head,
                                            int pixel, int part, const float (&x)[CHANNELS_PER_PART]) {
    if (!tile.has(pixel)) return;
    Vector<16> v;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (VALUE == F32) {
            v.word[i] = __float_as_uint(x[i]);
        } else {
            v.word[i] = narrow2<VALUE>(x[i * CHANNELS_PER_PART / 4], x[i * CHANNELS_PER_PART / 4 + 1]);
        }
    }
    const char *row = address_mad(args.grad_value.at(image, 0, head), tile.position_of(pixel),
                                  int(args.grad_value.stride[1]));
    st_global<16>(const_cast<char *>(row) + blockIdx.y * (CHUNK * ELEMENT) + part * 16, v);
}

// Adds the sums of `warps` warps and writes the tile, by `threads` threads. False: a sum is not
// finite.
__device__ __forceinline__ bool write_tile(const Args &args, const Tile &tile, int image, int head,
                                           const float (*from)[SUM_BYTES / 4], int warps, int thread,
                                           int threads) {
    float zero = 0; // NaN if a sum is not finite
#pragma unroll 4
    for (int i = thread; i < TILE_PIXELS * PARTS; i += threads) {
        const int pixel = i / PARTS, part = i % PARTS;
        float x[CHANNELS_PER_PART];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_PART; c += 4) {
            float4 sum = make_float4(0, 0, 0, 0);
            for (int w = 0; w < warps; w++) {
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

// Computes the tile again, by the definition, with one warp.
__device__ __noinline__ void write_exactly(const Args &args, const Levels &levels, i64 plane,
                                           int index, float *sums) {
    const int image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
    const int lane = threadIdx.x % 32;
    const Tile tile = tile_at(levels, index);
    const Ranges ranges = ranges_of(args, levels, plane, index, tile);
    const bool in_row = lane < CHUNK;
    add_in_order(args, levels, ranges, tile, image, head, blockIdx.y * CHUNK + (in_row ? lane : 0),
                 in_row, sums);
    for (int i = lane; i < TILE_PIXELS * PARTS; i += 32) {
        const int pixel = i / PARTS, part = i % PARTS;
        float x[CHANNELS_PER_PART];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_PART; c++) {
            x[c] = sums[pixel * 32 + part * CHANNELS_PER_PART + c];
        }
        write_piece(args, tile, image, head, pixel, part, x);
    }
    __syncwarp();
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
            if (together) __syncthreads();
            put_sums(together ? stages.sums[warp] : stage.sums[0], sums);
            bool finite;
            if (together) {
                __syncthreads();
                finite = write_tile(args, tile, image, head, stages.sums, WARPS, threadIdx.x, THREADS);
                finite = !__syncthreads_or(!finite);
            } else {
                __syncwarp();
                finite = write_tile(args, tile, image, head, stage.sums, 1, threadIdx.x % 32, 32);
                finite = __all_sync(0xffffffffu, finite);
            }
            if (!finite && !(together && warp > 0)) {
                write_exactly(args, levels, plane, index, stages.of_warp[warp].exact);
            }
            if (together) __syncthreads();
            __syncwarp();
        }
    }
}
