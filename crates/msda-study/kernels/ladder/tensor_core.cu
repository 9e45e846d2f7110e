// tensor_core: the coarsest level as a matrix product on tensor cores.
//
//   weights of 64 queries for                     rows of the level            sums of the queries
//   all positions of the level
//        position ->                                 channel ->
//   q  [ .  .  w  w  .  .  .  w ]               p  [ v v v v ]                 q  [ s s s s ]
//   u  [ w  w  .  .  .  .  .  . ]        x      o  [ v v v v ]        =        u  [ s s s s ]
//   e  [ .  .  w  w  .  .  .  . ]               s  [ v v v v ]                 e  [ s s s s ]
//
// The weights are added up in shared memory, in f32. The four taps of a sample differ in the parity
// of their column and row. So each of four threads per query owns the positions of one parity: no
// atomics, and always the same order. The product takes 16-bit numbers and sums in f32. A weight is
// scaled by a power of two per query and split into WEIGHT_TERMS such numbers, whose sum is as
// accurate as f32. The other levels are read as in direct.cu.
//
// A value that is not finite would spread to all queries, because 0 times infinity is NaN. A block
// that finds one in the level, or such a weight, reads that level like the others.
//
// Bound by: shared memory, which leaves few threads, and by zeros: at 240 positions and 8 samples
// 87 % of the matrix is zero.
// Best for: levels of very few positions with many points.
//
// Macros: THREADS (four per query), BLOCKS_PER_SM (at least), WEIGHT_TERMS.
#include "ladder/ladder.cuh"

constexpr int QUERIES_PER_TILE = THREADS / 4;
constexpr int WARPS = THREADS / 32;
constexpr int QUERY_TILES = QUERIES_PER_TILE / 16;        // matrix tiles of 16 queries
constexpr int WARPS_PER_QUERY_TILE = WARPS / QUERY_TILES; // they share out the tiles of 8 channels
constexpr int CHANNEL_TILES = (D / 8 + WARPS_PER_QUERY_TILE - 1) / WARPS_PER_QUERY_TILE; // per warp
constexpr int ROW_PITCH = ROW_BYTES + 16; // in shared memory: 8 rows begin at 8 different banks
static_assert(WARPS_PER_QUERY_TILE * QUERY_TILES == WARPS && D % 8 == 0 && size_of<VALUE> == 2,
              "16-bit values, channels in tiles of 8");

struct Args {
    Call call;
    int tiles;
    int coarse, points; // the level, and its samples per query
    int positions;      // of the level, rounded up to 16
    int stride;         // numbers from query to query in the weight matrix
};
CHECK_ARGS;

// Rounds two numbers to 16 bits, as one word, and subtracts what was taken.
__device__ __forceinline__ u32 take_term(float &low, float &high) {
    u32 word;
    if constexpr (VALUE == F16) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    }
    float a, b;
    widen2<VALUE>(word, a, b);
    low -= a, high -= b;
    return word;
}

__device__ __forceinline__ void mma(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (VALUE == F16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// Loads 16 rows of 8 channels as the product needs them. Each lane passes the address of a row.
__device__ __forceinline__ void ldmatrix(u32 (&b)[2], const char *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(u32(__cvta_generic_to_shared(row)))
                 : "memory");
}

// Whether one of the two numbers in a word is not finite.
__device__ __forceinline__ bool has_non_finite(u32 word) {
    constexpr u32 EXPONENT = VALUE == F16 ? 0x7c00 : 0x7f80;
    return (word & EXPONENT) == EXPONENT || (word >> 16 & EXPONENT) == EXPONENT;
}

// Copies the rows of the level to shared memory, followed by zeros. Returns whether a value is not
// finite.
__device__ __forceinline__ bool load_level(const Args &args, char *rows, int image, int head) {
    const Level &level = args.call.level[args.coarse];
    bool level_not_finite = false;
    for (int i = threadIdx.x; i < args.positions * LANES_PER_ROW; i += THREADS) {
        const int position = i / LANES_PER_ROW, chunk = i % LANES_PER_ROW;
        Vector<VEC> v{};
        if (position < level.height * level.width) {
            const int at =
                level.origin + position / level.width * level.pitch + position % level.width;
            v = ld_global<VEC>(args.call.value.at(image, at, head) + chunk * VEC);
        }
#pragma unroll
        for (int k = 0; k < Vector<VEC>::WORDS; k++) level_not_finite |= has_non_finite(v.word[k]);
        store<VEC>(rows + position * ROW_PITCH + chunk * VEC, v);
    }
    return level_not_finite;
}

// Adds the tap weights of a query, for the positions of one parity, to its row of the matrix.
// Returns the sum of their absolute values.
__device__ __forceinline__ float scatter_weights(const Args &args, float *row, int image, int query,
                                                 int head, int parity) {
    const Level &level = args.call.level[args.coarse];
    float size = 0;
    for (int p = 0; p < args.points; p++) {
        const SampleInput input =
            load_sample(args.call, image, query, head, level.first_sample + p);
        const Located at = locate(level, input);
        // The tap whose column and row have this parity.
        const int right = (at.i ^ parity) & 1, down = (at.j ^ (parity >> 1)) & 1;
        const int x = at.i + right, y = at.j + down;
        if (!at.counts || x < 0 || y < 0 || x >= level.width || y >= level.height) continue;
        if (NEAREST && (right || down)) continue;
        const float share = NEAREST ? 1 : (right ? at.x : 1 - at.x) * (down ? at.y : 1 - at.y);
        const float weight = input.weight * share;
        row[y * level.width + x] += weight;
        size += fabsf(weight);
    }
    return size;
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(16) char memory[];
    // Per query the scale of its weights and the inverse; the weight matrix; the rows.
    float *scale = reinterpret_cast<float *>(memory), *inverse_scale = scale + QUERIES_PER_TILE;
    float *weights = inverse_scale + QUERIES_PER_TILE;
    char *rows = reinterpret_cast<char *>(weights + QUERIES_PER_TILE * args.stride);
    const int head = blockIdx.y, image = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool level_not_finite = __syncthreads_or(load_level(args, rows, image, head));

    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        const int first = tile * QUERIES_PER_TILE;
        for (int i = threadIdx.x * 4; i < QUERIES_PER_TILE * args.stride; i += THREADS * 4) {
            *reinterpret_cast<float4 *>(weights + i) = make_float4(0, 0, 0, 0);
        }
        __syncthreads();
        const int query_in_tile = threadIdx.x / 4, parity = threadIdx.x % 4;
        float size = 0;
        if (first + query_in_tile < call.queries) {
            size = scatter_weights(args, weights + query_in_tile * args.stride, image,
                                   first + query_in_tile, head, parity);
        }
        size += __shfl_xor_sync(0xffffffffu, size, 1);
        size += __shfl_xor_sync(0xffffffffu, size, 2);
        if (parity == 0) {
            // f16 has few exponents: the scale moves the largest possible weight to 2^14, so that
            // small weights keep their digits. The limits keep both powers of two finite. bf16 has
            // the exponents of f32 and needs no scale.
            const u32 exponent = min(max(__float_as_uint(size) >> 23, 15u), 253u);
            scale[query_in_tile] = VALUE == F16 ? __uint_as_float((254 + 14 - exponent) << 23) : 1;
            inverse_scale[query_in_tile] =
                VALUE == F16 ? __uint_as_float((exponent - 14) << 23) : 1;
        }
        const bool read_level = __syncthreads_or(!(size <= MAX_FLOAT)) || level_not_finite;

        if (!read_level) {
            // A lane has columns 2t and 2t + 1, and the same 8 further, of rows r and r + 8.
            const int r = warp % QUERY_TILES * 16 + lane / 4, t = lane % 4;
            const int warp_in_tile = warp / QUERY_TILES;
            const float *row = weights + r * args.stride + 2 * t;
            const float scales[2] = {scale[r], scale[r + 8]};
            float sum[CHANNEL_TILES][4];
#pragma unroll
            for (int n = 0; n < CHANNEL_TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sum[n][i] = 0;
            }
            for (int k = 0; k < args.positions; k += 16) {
                u32 a[WEIGHT_TERMS][4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float *from = row + (i & 1) * 8 * args.stride + k + (i >> 1) * 8;
                    const float2 w = *reinterpret_cast<const float2 *>(from);
                    float low = w.x * scales[i & 1], high = w.y * scales[i & 1];
#pragma unroll
                    for (int n = 0; n < WEIGHT_TERMS; n++) a[n][i] = take_term(low, high);
                }
#pragma unroll
                for (int n = 0; n < CHANNEL_TILES; n++) {
                    const int c = (n * WARPS_PER_QUERY_TILE + warp_in_tile) * 8;
                    if (c >= D) continue;
                    u32 b[2];
                    ldmatrix(b, rows + (k + lane % 16) * ROW_PITCH + c * size_of<VALUE>);
#pragma unroll
                    for (int m = WEIGHT_TERMS - 1; m >= 0; m--) mma(sum[n], a[m], b);
                }
            }
            // All warps have read the weights: the sums overwrite them.
            __syncthreads();
#pragma unroll
            for (int n = 0; n < CHANNEL_TILES; n++) {
                const int c = (n * WARPS_PER_QUERY_TILE + warp_in_tile) * 8 + 2 * t;
                if (c >= D) continue;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float inverse = inverse_scale[r + 8 * i];
                    float *to = weights + (r + 8 * i) * args.stride + c;
                    *reinterpret_cast<float2 *>(to) =
                        make_float2(sum[n][2 * i] * inverse, sum[n][2 * i + 1] * inverse);
                }
            }
            __syncthreads();
        }

        // Samples on the other levels, or on all levels.
        const int before = call.level[args.coarse].first_sample;
        const int skipped = read_level ? 0 : args.points;
        for (int i = threadIdx.x; i < QUERIES_PER_TILE * LANES_PER_ROW; i += THREADS) {
            const int query_in_tile = i / LANES_PER_ROW, chunk = i % LANES_PER_ROW;
            const int query = first + query_in_tile;
            if (query >= call.queries) break;
            float sum[CHANNELS_PER_LANE];
#pragma unroll
            for (int c = 0; c < CHANNELS_PER_LANE; c++) {
                const int channel = chunk * CHANNELS_PER_LANE + c;
                sum[c] = read_level ? 0 : weights[query_in_tile * args.stride + channel];
            }
            const char *base = opaque(call.value.at(image, 0, head) + chunk * VEC);
            for (int n = 0; n < SAMPLES - skipped; n++) {
                const int s = n < before ? n : n + skipped;
                add_taps(sum, base, call.value.row_stride,
                         taps_of(call.level[level_of(call, s)],
                                 load_sample(call, image, query, head, s)));
            }
            store_output(call, image, query, head, chunk * VEC, sum);
        }
        __syncthreads();
    }
}
