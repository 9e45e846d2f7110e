// tensor_core: the coarsest level as a product of matrices.
//
//   weights of 64 queries against                 rows of the level            sums of the queries
//   all positions of the level
//        position ->                                 channel ->
//   q  [ .  .  w  w  .  .  .  w ]               p  [ v v v v ]                 q  [ s s s s ]
//   u  [ w  w  .  .  .  .  .  . ]        x      o  [ v v v v ]        =        u  [ s s s s ]
//   e  [ .  .  w  w  .  .  .  . ]               s  [ v v v v ]                 e  [ s s s s ]
//
// Weights are added up in shared memory in f32. Of the four taps of a sample each is in another column-and-row parity, so
// four threads a query own a quarter of its positions each: no atomics, and the same order always. The product is one of
// 16-bit numbers with sums in f32: a weight, times a power of two that its query has, is taken as the sum of SPLIT such
// numbers, which is as exact as f32 is. The other levels are read as in direct.cu.
//
// A value that is not finite would spread to queries that do not look at it, 0 times infinity not being 0. Blocks that see
// one in the level, or such a weight, read that level like the others.
//
// Wins: where a level is so small that most of the matrix is not zero. At 240 positions and 8 samples 87 % of it is.
//
// Knobs: BLOCK (four threads a query), BLOCKS (of a multiprocessor, at least), SPLIT.
#include "ladder/ladder.cuh"

constexpr int QUERIES = BLOCK / 4;
constexpr int WARPS = BLOCK / 32;
constexpr int DOWN = QUERIES / 16;   // tiles of 16 queries
constexpr int BESIDE = WARPS / DOWN; // warps that share one, with every so many-th 8 channels
constexpr int TILES = (D / 8 + BESIDE - 1) / BESIDE;
constexpr int PADDED = ROW + 16; // from row to row in shared memory, so that no two of 8 rows begin at the same bank
static_assert(BESIDE * DOWN == WARPS && D % 8 == 0 && size_of<VALUE> == 2, "");

struct Args {
    Call call;
    int tiles;
    int coarse, points; // the level, and its samples
    int positions;      // of it, rounded up to 16
    int stride;         // from query to query among the weights, in numbers
};

// Two numbers as one word of two, and what that leaves.
__device__ __forceinline__ u32 take(float &low, float &high) {
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

__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    if constexpr (VALUE == F16) {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
}

// 16 rows of 8 channels, as the product wants them: a lane gives the address of a row.
__device__ __forceinline__ void read_rows(u32 (&b)[2], const char *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(b[0]), "=r"(b[1])
                 : "r"(u32(__cvta_generic_to_shared(row)))
                 : "memory");
}

// Whether a number of the two in a word is not finite.
__device__ __forceinline__ bool not_finite(u32 word) {
    constexpr u32 ONES = VALUE == F16 ? 0x7c00 : 0x7f80;
    return (word & ONES) == ONES || (word >> 16 & ONES) == ONES;
}

// Brings the rows of the level to shared memory, zeros after them; says whether one is not finite.
__device__ __forceinline__ bool bring(const Args &args, char *rows, int image, int head) {
    const Level &level = args.call.level[args.coarse];
    bool odd = false;
    for (int i = threadIdx.x; i < args.positions * LANES; i += BLOCK) {
        const int position = i / LANES, chunk = i % LANES;
        Vector<VEC> v{};
        if (position < level.h * level.w) {
            const int at = level.origin + position / level.w * level.pitch + position % level.w;
            v = gather<VEC>(args.call.value.at(image, at, head) + chunk * VEC);
        }
#pragma unroll
        for (int k = 0; k < Vector<VEC>::WORDS; k++) odd |= not_finite(v.word[k]);
        store<VEC>(rows + position * PADDED + chunk * VEC, v);
    }
    return odd;
}

// Adds a quarter of the weights of a query's samples on the level to its row; returns the sum of their sizes.
__device__ __forceinline__ float scatter(const Args &args, float *row, int image, int query, int head, int quarter) {
    const Level &level = args.call.level[args.coarse];
    float size = 0;
    for (int p = 0; p < args.points; p++) {
        const Given one = given(args.call, image, query, head, level.sample + p);
        const Spot at = spot(level, one);
        // The tap whose column and row have the parities of this quarter.
        const int right = (at.i ^ quarter) & 1, down = (at.j ^ (quarter >> 1)) & 1;
        const int x = at.i + right, y = at.j + down;
        if (!at.there || x < 0 || y < 0 || x >= level.w || y >= level.h) continue;
        if (NEAREST && (right || down)) continue;
        const float share = NEAREST ? 1 : (right ? at.x : 1 - at.x) * (down ? at.y : 1 - at.y);
        const float weight = one.weight * share;
        row[y * level.w + x] += weight;
        size += fabsf(weight);
    }
    return size;
}

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(16) char memory[];
    // By which a query's weights are multiplied, and its sums after; the weights; the rows.
    float *scale = reinterpret_cast<float *>(memory), *undo = scale + QUERIES, *weights = undo + QUERIES;
    char *rows = reinterpret_cast<char *>(weights + QUERIES * args.stride);
    const int head = blockIdx.y, image = blockIdx.z;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool odd = __syncthreads_or(bring(args, rows, image, head));

    for (int tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        const int first = tile * QUERIES;
        for (int i = threadIdx.x * 4; i < QUERIES * args.stride; i += BLOCK * 4) {
            *reinterpret_cast<float4 *>(weights + i) = make_float4(0, 0, 0, 0);
        }
        __syncthreads();
        const int item = threadIdx.x / 4, quarter = threadIdx.x % 4;
        float size = 0;
        if (first + item < call.queries) {
            size = scatter(args, weights + item * args.stride, image, first + item, head, quarter);
        }
        size += __shfl_xor_sync(0xffffffffu, size, 1);
        size += __shfl_xor_sync(0xffffffffu, size, 2);
        if (quarter == 0) {
            // bf16 has all the powers that f32 has. In f16 sizes become 2^14 and more, still numbers, so that what is small
            // beside the largest keeps its digits; the limits are such that both powers are numbers.
            const u32 exponent = min(max(__float_as_uint(size) >> 23, 15u), 253u);
            scale[item] = VALUE == F16 ? __uint_as_float((254 + 14 - exponent) << 23) : 1;
            undo[item] = VALUE == F16 ? __uint_as_float((exponent - 14) << 23) : 1;
        }
        const bool plain = __syncthreads_or(!(size <= 3.402823466e38f)) || odd;

        if (!plain) {
            // A lane has columns 2t and 2t + 1, and 8 after, of rows r and r + 8.
            const int r = warp % DOWN * 16 + lane / 4, t = lane % 4, side = warp / DOWN;
            const float *row = weights + r * args.stride + 2 * t;
            const float scales[2] = {scale[r], scale[r + 8]};
            float sum[TILES][4];
#pragma unroll
            for (int n = 0; n < TILES; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) sum[n][i] = 0;
            }
            for (int k = 0; k < args.positions; k += 16) {
                u32 a[SPLIT][4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float2 w = *reinterpret_cast<const float2 *>(row + (i & 1) * 8 * args.stride + k + (i >> 1) * 8);
                    float low = w.x * scales[i & 1], high = w.y * scales[i & 1];
#pragma unroll
                    for (int part = 0; part < SPLIT; part++) a[part][i] = take(low, high);
                }
#pragma unroll
                for (int n = 0; n < TILES; n++) {
                    const int c = (n * BESIDE + side) * 8;
                    if (c >= D) continue;
                    u32 b[2];
                    read_rows(b, rows + (k + lane % 16) * PADDED + c * size_of<VALUE>);
#pragma unroll
                    for (int part = SPLIT - 1; part >= 0; part--) multiply(sum[n], a[part], b);
                }
            }
            // Everybody has read the weights: the sums take their place.
            __syncthreads();
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                const int c = (n * BESIDE + side) * 8 + 2 * t;
                if (c >= D) continue;
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float back = undo[r + 8 * i];
                    float *at = weights + (r + 8 * i) * args.stride + c;
                    *reinterpret_cast<float2 *>(at) = make_float2(sum[n][2 * i] * back, sum[n][2 * i + 1] * back);
                }
            }
            __syncthreads();
        }

        // Samples of the other levels, or of all.
        const int before = call.level[args.coarse].sample, gap = plain ? 0 : args.points;
        for (int i = threadIdx.x; i < QUERIES * LANES; i += BLOCK) {
            const int item = i / LANES, chunk = i % LANES, query = first + item;
            if (query >= call.queries) break;
            float sum[EACH];
#pragma unroll
            for (int c = 0; c < EACH; c++) sum[c] = plain ? 0 : weights[item * args.stride + chunk * EACH + c];
            const char *base = once(call.value.at(image, 0, head) + chunk * VEC);
            for (int n = 0; n < SAMPLES - gap; n++) {
                const int s = n < before ? n : n + gap;
                add(sum, base, call.value.row, taps_of(call.level[level_of(call, s)], given(call, image, query, head, s)));
            }
            finish(call, image, query, head, chunk * VEC, sum);
        }
        __syncthreads();
    }
}
