// Matrices: products of shares and gradients on tensor cores, for value.cu and value_few.cu.
//
// A warp multiplies matrices for SUM_LINES image rows of 8 pixels: pixels x samples times samples x
// CHUNK channels. Each sample has at most four shares that are not 0, but the tensor core
// multiplies all faster than other code would find the four.
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
// A share of 0 times infinity is not a number. So if a sum is not finite, it is computed again. Two
// passes count the terms that are plus or minus infinity (NaN is both): products of zeros and ones,
// where only the pixels that a sample touches have a one. A third pass adds the terms that are
// finite. If that sum is not finite either, or a weight is not, the samples are added one after the
// other, as the definition says.
#pragma once
#include "backward/tiles.cuh"
#include "common/mma.cuh"

// Columns of the second matrix are channels, in any order. Lane j of four gets the sums of columns
// 2 j and 2 j + 1 of every matrix. They should be channels that follow each other, so that the lane
// stores up to 16 bytes at once:
//
//   f32, CHUNK 32        column 2 j + e of matrix n is channel 4 j + 16 e + n
//   f32, smaller         column 2 j + e of matrix n is channel COLUMN_TILES * (2 j + e) + n
//   16, OWN_CHANNELS     ldmatrix takes 8 numbers that follow each other in shared memory, so rows
//                        have another order there: see copy_rows in value_few.cu
//   16, otherwise        column c of matrix n is channel 8 n + c; lanes exchange words to store
//
// Macros besides those of tiles.cuh: CHUNK, the channels of a warp: 8, 16 or 32; WHOLE_CHUNKS: the
// channels are a multiple of CHUNK; STORE_BYTES, the alignment of rows of grad_value, 16 at most;
// SUM_LINES: 2 or 4; OWN_CHANNELS: see above.
constexpr int ELEMENT = size_of<VALUE>;
constexpr int PARTS = CHUNK * ELEMENT / 16; // pieces of 16 bytes per row
constexpr int COLUMN_TILES = CHUNK / 8;     // matrices of 8 channels
// f16 has no small numbers: shares are scaled up by this, and sums down.
constexpr float SCALE = VALUE == F16 ? 256.0f : 1.0f;
static_assert(CHUNK == 8 || CHUNK == 16 || CHUNK == 32,
              "matrices of 8 channels, a lane per channel");
static_assert(SUM_LINES == 2 || SUM_LINES == 4, "a matrix has two image rows");
static_assert(STORE_BYTES >= ELEMENT && STORE_BYTES <= 16, "whole channels per store");
static_assert(VALUE != F64, "tensor cores multiply f16, bf16 and tf32");
constexpr bool HAS_OWN_CHANNELS = VALUE == F32 || OWN_CHANNELS;

// What a pass does: it adds all terms, or those that are finite; or it counts those of plus or
// minus infinity. NaN counts as both.
enum Terms { ALL, FINITE, PLUS, MINUS };
__device__ constexpr bool is_count(Terms terms) { return terms == PLUS || terms == MINUS; }

// Bytes of a row from byte `offset` of this block's chunk on.
__device__ __forceinline__ int bytes_left(const Args &args, int offset) {
    return WHOLE_CHUNKS ? CHUNK * ELEMENT - offset
                        : (args.channels - int(blockIdx.y) * CHUNK) * ELEMENT - offset;
}

// Copies BYTES bytes of a row of gradients to shared memory, through L1. Only `left` of them are
// there; zeros take the place of the others.
template <int BYTES>
__device__ __forceinline__ void copy_piece(u32 to, const char *from, int left) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(BYTES),
                 "r"(min(max(left, 0), BYTES))
                 : "memory");
#endif
}

// Where piece `part` of a row is, so that neither copies nor matrix loads meet bank conflicts.
__device__ __forceinline__ int piece_of(int row, int part) {
    if constexpr (VALUE == F32) {
        return row * PARTS + (part ^ (PARTS == 8 ? row & 3 : PARTS == 4 ? row & 2 : 0));
    } else {
        return row * PARTS + (part ^ (row / (8 / PARTS) % PARTS));
    }
}

// Hides how x was computed. So the compiler keeps it in a register, instead of computing it again
// in each step.
__device__ __forceinline__ const char *keep(const char *x) {
    asm volatile("" : "+l"(x));
    return x;
}
__device__ __forceinline__ u32 keep(u32 x) {
    asm volatile("" : "+r"(x));
    return x;
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
// the sums of a step are added to others that are rounded. 16 bits: those of many steps are.
constexpr bool ROUND_EACH_STEP = VALUE == F32;

// Loads N matrices of 8 x 8 16-bit numbers, transposed. Lane i names row i % 8 of matrix i / 8.
template <int N> __device__ __forceinline__ void load_matrices(u32 (&b)[N], u32 address) {
    static_assert(N == 1 || N == 2 || N == 4, "what ldmatrix loads");
    if constexpr (N == 4) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(address));
    } else if constexpr (N == 2) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                     : "=r"(b[0]), "=r"(b[1])
                     : "r"(address));
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                     : "=r"(b[0])
                     : "r"(address));
    }
}

typedef float Sums[SUM_LINES / 2][COLUMN_TILES][4]; // [two image rows][8 channels]

__device__ __forceinline__ void clear(Sums &sums) {
#pragma unroll
    for (int m = 0; m < SUM_LINES / 2; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0;
        }
    }
}

// The share of a pixel at this distance from a sample, on one axis.
__device__ __forceinline__ float share_of(float distance) {
    return __saturatef(1 - fabsf(distance));
}

// Adds partial sums.
__device__ __forceinline__ void add_sums(Sums &to, const Sums &more) {
#pragma unroll
    for (int m = 0; m < SUM_LINES / 2; m++) {
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) to[m][n][i] += more[m][n][i];
        }
    }
}

// The number, or 0 if it is not finite. Two 16-bit numbers of a word likewise.
__device__ __forceinline__ float finite_or_0(float x) { return fabsf(x) <= MAX_FLOAT ? x : 0; }
__device__ __forceinline__ u32 finite_or_0(u32 word) {
    constexpr u32 EXPONENT = VALUE == BF16 ? 0x7f80 : 0x7c00;
    const u32 low = (word & EXPONENT) == EXPONENT ? 0 : word & 0xffff;
    const u32 high = (word >> 16 & EXPONENT) == EXPONENT ? 0 : word & 0xffff0000;
    return low | high;
}

// The number one: of 16 bits, or as tf32.
constexpr u32 ONE = VALUE == F32 ? 0x3f800000 : VALUE == BF16 ? 0x3f80 : 0x3c00;

// One if a gradient is plus or minus infinity, otherwise 0. NaN is both.
__device__ __forceinline__ u32 find_infinite(float gradient, bool plus) {
    return (plus ? gradient <= MAX_FLOAT : gradient >= -MAX_FLOAT) ? 0 : ONE;
}

// Which of the two gradients of a word are plus or minus infinity: ones. NaN is both.
__device__ __forceinline__ u32 find_infinite(u32 word, bool plus) {
    u32 found;
    if constexpr (VALUE == F16) {
        if (plus) {
            asm("set.gtu.f16x2.f16x2 %0, %1, %2;" : "=r"(found) : "r"(word), "r"(0x7bff7bff));
        } else {
            asm("set.ltu.f16x2.f16x2 %0, %1, %2;" : "=r"(found) : "r"(word), "r"(0xfbfffbff));
        }
    } else {
#if __CUDA_ARCH__ >= 900
        if (plus) {
            asm("set.gtu.bf16x2.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(word), "r"(0x7f7f7f7f));
        } else {
            asm("set.ltu.bf16x2.bf16x2 %0, %1, %2;" : "=r"(found) : "r"(word), "r"(0xff7fff7f));
        }
#else
        const float low = __uint_as_float(word << 16), high = __uint_as_float(word & 0xffff0000);
        found = find_infinite(low, plus) | find_infinite(high, plus) << 16;
#endif
    }
    return found;
}

// Shares of image rows.
struct __align__(SUM_LINES * 4) Lines {
    float share[SUM_LINES];
};
struct __align__(16) TwoLines {
    Lines of[2];
};

// The shares of up to 32 samples, in shared memory.
struct __align__(16) Shares {
    Lines lines[32];  // weight * share of each image row
    float column[32]; // x, from the first pixel column

    // Stores the shares of this lane's sample. (x, y): its distance from the first pixel. A
    // pass that counts: the signs of the shares, two bits per image row. 1: plus; 2: minus; 3: 0,
    // which makes NaN.
    template <Terms TERMS>
    __device__ __forceinline__ void put(float x, float y, float weight, bool exists) {
        Lines to;
        if constexpr (is_count(TERMS)) {
            const u32 sign = weight > 0 ? 1 : weight < 0 ? 2 : 3;
            u32 signs = 0;
#pragma unroll
            for (int j = 0; j < SUM_LINES; j++) signs |= tap_at(float(j), y, sign) << 2 * j;
            to.share[0] = __uint_as_float(exists ? signs : 0);
        } else {
            weight = !exists ? 0 : TERMS == FINITE ? finite_or_0(weight) : weight;
#pragma unroll
            for (int j = 0; j < SUM_LINES; j++)
                to.share[j] = weight * SCALE * share_of(y - float(j));
        }
        const int at = place_of(threadIdx.x % 32);
        lines[at] = to, column[at] = x;
    }
    // If a sample touches a pixel on one axis: its sign there, or 3 if its share is 0. Otherwise 0.
    static __device__ __forceinline__ u32 tap_at(float pixel, float at, u32 sign) {
        if (NEAREST) return pixel == at ? sign : 0;
        const float first = floorf(at);
        return pixel == first ? sign : pixel != first + 1 ? 0 : at == first ? 3 : sign;
    }
    // Where sample k is. f32: a lane reads samples j and j + 4 of eight together.
    static __device__ __forceinline__ int place_of(int k) {
        return VALUE == F32 ? (k & 24) | (k & 3) << 1 | (k >> 2 & 1) : k;
    }
    static __device__ __forceinline__ void multiply(float x, const Lines &from,
                                                    float (&share)[SUM_LINES]) {
        const float of_column = share_of(x - float(threadIdx.x % 32 / 4));
#pragma unroll
        for (int j = 0; j < SUM_LINES; j++) share[j] = of_column * from.share[j];
    }
    // The shares of the samples at places `at` and at + 1 in the pixel column of this lane, of its
    // image rows. `at` is even.
    __device__ __forceinline__ void read_two(int at, float (&first)[SUM_LINES],
                                             float (&second)[SUM_LINES]) const {
        const float2 x = *reinterpret_cast<const float2 *>(&column[at]);
        const TwoLines both = *reinterpret_cast<const TwoLines *>(&lines[at]);
        multiply(x.x, both.of[0], first), multiply(x.y, both.of[1], second);
    }
    // A pass that counts: the signs of the sample at a place, in the pixel column of this lane.
    __device__ __forceinline__ u32 signs(int at) const {
        const u32 of_lines = __float_as_uint(lines[at].share[0]);
        const u32 of_column = tap_at(float(threadIdx.x % 32 / 4), column[at], 1);
        const u32 taps = (of_lines | of_lines >> 1) & 0x55555555;
        return of_column == 0 ? 0 : of_column == 3 ? taps * 3 : of_lines;
    }
};

// Rows of gradients in shared memory that follow each other, one per sample.
struct RowsInOrder {
    const uint4 *rows;
    u32 first_piece; // see `of`: the piece of a lane

    static constexpr int AT_ONCE = COLUMN_TILES < 2 ? COLUMN_TILES : 2; // matrices of 8 channels
    // The address that this lane gives to ldmatrix for the first 16 rows.
    static __device__ __forceinline__ u32 of(const uint4 *rows, u32 lane) {
        return u32(__cvta_generic_to_shared(rows + piece_of(lane % 16, lane / 16 % AT_ONCE)));
    }
    __device__ __forceinline__ int place(int k) const { return k; }
    template <int EIGHTS> __device__ __forceinline__ u32 find(int step) const {
        return first_piece + step * (PARTS * 16);
    }
    // The same address for the n-th matrix of 8 channels: piece_of swizzles with XOR.
    __device__ __forceinline__ u32 later(u32 piece, int n) const { return piece ^ (n * 16); }
};

// 16-bit types: adds 8 * EIGHTS samples from sample `step` on. A pass that counts multiplies shares
// that are plus by gradients of its own sign, and those that are minus by gradients of the other.
template <int EIGHTS, Terms TERMS, typename R>
__device__ __forceinline__ void add_samples(Sums &sums, const Shares &shares, int step,
                                            const R &rows) {
    const int lane = threadIdx.x % 32;
    u32 high[SUM_LINES / 2][2 * EIGHTS], low[SUM_LINES / 2][2 * EIGHTS]; // or plus and minus
#pragma unroll
    for (int half = 0; half < EIGHTS; half++) {
        const int at = step + half * 8 + lane % 4 * 2;
        float first[SUM_LINES], second[SUM_LINES];
        u32 signs = 0;
        if constexpr (is_count(TERMS)) {
            signs = shares.signs(at) | shares.signs(at + 1) << 16;
        } else {
            shares.read_two(at, first, second);
        }
#pragma unroll
        for (int j = 0; j < SUM_LINES; j++) {
            const int i = half * 2 + j % 2;
            if constexpr (is_count(TERMS)) {
                high[j / 2][i] = (signs >> 2 * j & 0x10001) * ONE;
                low[j / 2][i] = (signs >> (2 * j + 1) & 0x10001) * ONE;
            } else {
                split2(first[j], second[j], high[j / 2][i], low[j / 2][i]);
            }
        }
    }
    // Lanes name the rows that are loaded as matrices of 8 samples and 8 channels, which are
    // transposed: first all samples, then the next 8 channels.
    constexpr int AT_ONCE = COLUMN_TILES < 4 / EIGHTS ? COLUMN_TILES : 4 / EIGHTS; // of 8 channels
    const u32 piece = rows.template find<EIGHTS>(step);
#pragma unroll
    for (int n = 0; n < COLUMN_TILES; n += AT_ONCE) {
        u32 b[AT_ONCE * EIGHTS];
        load_matrices(b, rows.later(piece, n));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            u32 with_high[EIGHTS], with_low[EIGHTS];
#pragma unroll
            for (int half = 0; half < EIGHTS; half++) {
                const u32 word = b[i * EIGHTS + half];
                if constexpr (is_count(TERMS)) {
                    with_high[half] = find_infinite(word, TERMS == PLUS);
                    with_low[half] = find_infinite(word, TERMS != PLUS);
                } else {
                    with_high[half] = with_low[half] = TERMS == FINITE ? finite_or_0(word) : word;
                }
            }
#pragma unroll
            for (int m = 0; m < SUM_LINES / 2; m++) {
                multiply(sums[m][n + i], low[m], with_low);
                multiply(sums[m][n + i], high[m], with_high);
            }
        }
    }
}

// f32: loads the channels of this lane's columns of a row.
__device__ __forceinline__ void load_channels(float (&to)[COLUMN_TILES], const uint4 *rows,
                                              int row) {
    const int column = threadIdx.x % 32 / 4, first = column * COLUMN_TILES;
    const int part = COLUMN_TILES == 4 ? column / 2 + column % 2 * 4 : first / 4;
    const float *from = reinterpret_cast<const float *>(rows + piece_of(row, part)) + first % 4;
    if constexpr (COLUMN_TILES == 4) {
        const float4 v = *reinterpret_cast<const float4 *>(from);
        to[0] = v.x, to[1 % COLUMN_TILES] = v.y, to[2 % COLUMN_TILES] = v.z,
        to[3 % COLUMN_TILES] = v.w;
    } else if constexpr (COLUMN_TILES == 2) {
        const float2 v = *reinterpret_cast<const float2 *>(from);
        to[0] = v.x, to[1 % COLUMN_TILES] = v.y;
    } else {
        to[0] = *from;
    }
}

// Adds 32 samples, or `count` if those are fewer. `rows` says where their rows are. FEW:
// 8 samples or fewer are usual. All lanes of a warp call this together.
template <bool FEW, Terms TERMS, typename R>
__device__ __forceinline__ void add_step(Sums &sums, const Shares &shares, const R &rows,
                                         u32 count) {
    const int lane = threadIdx.x % 32;
    if constexpr (VALUE == F32) {
#pragma unroll
        for (int step = 0; step < 32; step += 8) { // samples step + lane % 4 and 4 more
            if (step >= count) break;
            u32 high[SUM_LINES / 2][4], low[SUM_LINES / 2][4];
            float share[2][SUM_LINES], gradient[2][COLUMN_TILES];
            if constexpr (!is_count(TERMS))
                shares.read_two(step + lane % 4 * 2, share[0], share[1]);
#pragma unroll
            for (int half = 0; half < 2; half++) {
                load_channels(gradient[half], rows.rows, rows.place(step + half * 4 + lane % 4));
                const u32 signs = is_count(TERMS) ? shares.signs(step + lane % 4 * 2 + half) : 0;
#pragma unroll
                for (int j = 0; j < SUM_LINES; j++) {
                    const int i = half * 2 + j % 2;
                    if constexpr (is_count(TERMS)) {
                        high[j / 2][i] = (signs >> 2 * j & 1) * ONE;
                        low[j / 2][i] = (signs >> (2 * j + 1) & 1) * ONE;
                    } else {
                        split(share[half][j], high[j / 2][i], low[j / 2][i]);
                    }
                }
            }
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n++) {
                u32 b_high[2], b_low[2];
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const float g = gradient[half][n];
                    if constexpr (is_count(TERMS)) {
                        b_high[half] = find_infinite(g, TERMS == PLUS);
                        b_low[half] = find_infinite(g, TERMS != PLUS);
                    } else {
                        split(TERMS == FINITE ? finite_or_0(g) : g, b_high[half], b_low[half]);
                    }
                }
#pragma unroll
                for (int m = 0; m < SUM_LINES / 2; m++) {
                    if constexpr (is_count(TERMS)) {
                        multiply(sums[m][n], low[m], b_low);
                    } else {
                        multiply(sums[m][n], low[m], b_high);
                        multiply(sums[m][n], high[m], b_low);
                    }
                    multiply(sums[m][n], high[m], b_high);
                }
            }
        }
    } else {
#pragma unroll
        for (int step = 0; step < 32; step += 16) {
            if (step >= count) break;
            if (!FEW || count - step > 8) {
                add_samples<2, TERMS>(sums, shares, step, rows);
            } else {
                add_samples<1, TERMS>(sums, shares, step, rows);
            }
        }
    }
}

// A word of two numbers, times 0, plus `zero`: not 0 if one of them is not finite.
__device__ __forceinline__ u32 add_zero_times(u32 zero, u32 word) {
#if __CUDA_ARCH__ >= 800
    if constexpr (VALUE == BF16) {
        asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(zero) : "r"(word), "r"(0));
    } else {
        asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(zero) : "r"(word), "r"(0));
    }
#endif
    return zero;
}

// Finds sums that are not finite, or whose rounded value is not.
struct Finite {
    float zero = 0; // NaN if a sum is not finite
    u32 zeros = 0;  // the same of two numbers
    __device__ __forceinline__ bool all() const { return zero == 0 && (zeros & 0x7fff7fff) == 0; }
};

// The first byte of a row that this lane stores, see store_line.
__device__ __forceinline__ int first_byte() {
    const int quarter = threadIdx.x % 4;
    constexpr int BYTES = CHUNK * ELEMENT / 4 < 16 ? CHUNK * ELEMENT / 4 : 16;
    return HAS_OWN_CHANNELS || COLUMN_TILES == 1 ? quarter * BYTES
                                                 : quarter % 2 * 16 + quarter / 2 * 8;
}

// Stores BYTES bytes of a row, or as many as are left in it.
template <int BYTES>
__device__ __forceinline__ void store_piece(char *to, const Vector<BYTES> &v, int left) {
    constexpr int STEP = STORE_BYTES < BYTES ? STORE_BYTES : BYTES;
    if constexpr (WHOLE_CHUNKS && STEP == BYTES) {
        st_global<BYTES>(to, v);
    } else {
#pragma unroll
        for (int at = 0; at < BYTES; at += STEP) {
            Vector<STEP> part;
#pragma unroll
            for (int i = 0; i < Vector<STEP>::WORDS; i++) {
                part.word[i] = v.word[at / 4 + i] >> (STEP < 4 ? at % 4 * 8 : 0);
            }
            if (at < left) st_global<STEP>(to + at, part);
        }
    }
}

// Stores the sums of the pixel of a lane in image row `line` of the sums. `to` is the first byte of
// the lane, and `left` are the bytes of the row from there on.
__device__ __forceinline__ void store_line(char *to, int left, bool inside, const Sums &sums,
                                           int line, Finite &finite) {
    const int m = line / 2, i = line % 2 * 2;
    if constexpr (VALUE == F32) {
        constexpr int BYTES = 2 * COLUMN_TILES * 4 < 16 ? 2 * COLUMN_TILES * 4 : 16;
        u32 word[2 * COLUMN_TILES];
#pragma unroll
        for (int c = 0; c < 2 * COLUMN_TILES; c++) {
            const float sum = sums[m][c % COLUMN_TILES][i + c / COLUMN_TILES];
            finite.zero = fmaf(sum, 0.0f, finite.zero);
            word[c] = __float_as_uint(sum);
        }
#pragma unroll
        for (int c = 0; c < 2 * COLUMN_TILES; c += BYTES / 4) {
            Vector<BYTES> v;
#pragma unroll
            for (int k = 0; k < BYTES / 4; k++) v.word[k] = word[c + k];
            if (inside) store_piece<BYTES>(to + c * 16, v, left - c * 16);
        }
    } else {
        Vector<COLUMN_TILES * 4> all;
#pragma unroll
        for (int n = 0; n < COLUMN_TILES; n++) {
            all.word[n] =
                narrow2<VALUE>(sums[m][n][i] * (1 / SCALE), sums[m][n][i + 1] * (1 / SCALE));
            finite.zeros = add_zero_times(finite.zeros, all.word[n]);
        }
        if constexpr (HAS_OWN_CHANNELS || COLUMN_TILES == 1) {
            if (inside) store_piece<COLUMN_TILES * 4>(to, all, left);
        } else {
            // Two lanes exchange a word, so that each has 8 bytes of one matrix.
            const bool odd = threadIdx.x % 2;
#pragma unroll
            for (int n = 0; n < COLUMN_TILES; n += 2) {
                const u32 first = all.word[n], second = all.word[n + 1 < COLUMN_TILES ? n + 1 : n];
                const u32 other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
                const Vector<8> v{{odd ? other : first, odd ? second : other}};
                if (inside) store_piece<8>(to + n * 16, v, left - n * 16);
            }
        }
    }
}

// The channel of a lane that sums one: lane c has channel c of the chunk, if the row has it.
struct LaneChannel {
    bool in_row;
    int channel; // the first one of the chunk if it is not in the row
    __device__ __forceinline__ LaneChannel(const Args &args) {
        const int lane = threadIdx.x % 32;
        in_row = lane < CHUNK && lane * ELEMENT < bytes_left(args, 0);
        channel = int(blockIdx.y) * CHUNK + (in_row ? lane : 0);
    }
};

// Which sums of a lane have terms of plus or minus infinity: a bit per sum, for so many image rows.
template <int MARKED_ROWS> struct Marks {
    static constexpr int PER_LINE = 2 * COLUMN_TILES; // sums of an image row, at most 8
    static constexpr int WORDS = (MARKED_ROWS + 3) / 4;
    u32 plus[WORDS] = {}, minus[WORDS] = {};
    bool in_order = false; // a weight is not finite: samples must be added one after the other

    // Takes the counts of image row `line` of the sums as those of row `row`.
    template <Terms TERMS>
    __device__ __forceinline__ void add(const Sums &counts, int line, int row) {
        u32 found = 0;
#pragma unroll
        for (int i = 0; i < PER_LINE; i++)
            found |= u32(counts[line / 2][i / 2][line % 2 * 2 + i % 2] > 0) << i;
        u32(&to)[WORDS] = TERMS == PLUS ? plus : minus;
        // Indices known to the compiler keep the words in registers.
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if (row / 4 == w) to[w] |= found << row % 4 * 8;
    }
    // Puts infinity, NaN or, if `zeros`, 0 into the sums of image row `line` that are marked.
    __device__ __forceinline__ void put(Sums &sums, int line, int row, bool zeros) const {
        u32 up = 0, down = 0;
#pragma unroll
        for (int w = 0; w < WORDS; w++)
            if (row / 4 == w) up = plus[w] >> row % 4 * 8, down = minus[w] >> row % 4 * 8;
#pragma unroll
        for (int i = 0; i < PER_LINE; i++) {
            float &sum = sums[line / 2][i / 2][line % 2 * 2 + i % 2];
            const bool plus = up >> i & 1, minus = down >> i & 1;
            const float infinite = plus ? -minus_infinity() : minus_infinity();
            if (plus || minus) sum = zeros ? 0 : plus && minus ? infinite - infinite : infinite;
        }
    }
};
