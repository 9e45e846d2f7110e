// value_few: the gradient of value for few queries, without a sorted list, on tensor cores.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// A block computes a run of consecutive tiles of a level. The samples of a plane and level are few,
// so all that the run needs fits shared memory:
//
//     rows    grad_output of all queries of the plane; 16 bits: in the order of copy_rows
//     kept    the samples that touch the run: place and weight
//     bits    per tile, one bit per sample: it touches the tile
//     softmax of all queries, in the fused form; up to 1664 queries have it where warps add
//             tiles afterwards
//
//             sample   0 1 2 3 4 5 ..
//             tile 7   0 0 1 0 0 1 ..   adds samples 2 and 5, in this order
//             tile 8   0 0 1 0 0 0 ..   adds sample 2
//
// Then each warp computes tiles of the run: see matrix.cuh. Atomics set the bits, in any order.
// They are read in the order of the samples, so the results have the same bits every time.
//
// Threads: to look at samples, POINTS points of a query per thread. To add, a tile per warp.
//
// Bound by: instructions; writing grad_value in f32.
// Best for: decoders. The time to look grows with queries * tiles.
#define SUM_LINES 4 // a tile
#define OWN_CHANNELS 1
#include "backward/matrix.cuh"
#include "common/softmax.cuh"

// Macros besides those of matrix.cuh: THREADS; RUN_TILES, the most tiles of a run; BLOCKS_PER_SM;
// POINTS, which divides the points of each level; LANE_WORDS, words of a tile's bits per lane;
// STAGE_BYTES, sizeof(WarpStage); LOGIT_ALIGN, alignment of all weights of a query.
constexpr int WARPS = THREADS / 32;
static_assert(THREADS % 32 == 0, "whole warps");
static_assert(UNIFORM_POINTS % POINTS == 0, "a thread's points belong to one query");
static_assert(LANE_WORDS >= 1 && LANE_WORDS <= 8, "samples of a plane and level: at most 8192");
constexpr int LISTED = 512; // samples that a warp lists at a time

typedef SoftmaxOf<float> Softmax;
static_assert(sizeof(Softmax) == HOST_SOFTMAX_BYTES,
              "host and kernel disagree about shared memory");

// A sample that touches the run: its place in pixels of the level.
struct Kept {
    float x, y, weight;
};

struct __align__(16) WarpStage {
    Shares shares;
    u16 list[LISTED]; // samples of the tile
};
static_assert(sizeof(WarpStage) == STAGE_BYTES, "host and kernel disagree about shared memory");

// What a block has in shared memory.
struct Stage {
    WarpStage *of_warp;
    uint4 *rows; // [query][PARTS]
    u32 *bits;   // [tile][words], a bit per sample
    int words;
    Softmax *softmax; // [query], if FUSED: in the memory of the warps, if that is enough
    Kept *kept;       // [sample]
    __device__ __forceinline__ Stage(const Args &args) {
        extern __shared__ __align__(128) uint4 shared[];
        of_warp = reinterpret_cast<WarpStage *>(shared);
        rows = reinterpret_cast<uint4 *>(of_warp + WARPS);
        static_assert(sizeof(WarpStage) % 128 == 0, "rows of 128 bytes are aligned");
        bits = reinterpret_cast<u32 *>(rows + args.queries * PARTS);
        words = args.sample_words;
        u32 *behind = bits + RUN_TILES * words;
        kept = reinterpret_cast<Kept *>(behind);
        softmax = reinterpret_cast<Softmax *>(of_warp);
        if (FUSED && args.queries > WARPS * int(sizeof(WarpStage) / sizeof(Softmax))) {
            softmax = reinterpret_cast<Softmax *>(behind);
            kept = reinterpret_cast<Kept *>(softmax + args.queries);
        }
    }
};

// FUSED: computes the softmax of all queries of a plane: a thread per query if it has few samples,
// else a warp.
__device__ __forceinline__ void store_softmax(const Args &args, const Stage &stage, int image,
                                              int head) {
    if constexpr (SAMPLES <= 32) {
#pragma unroll 4 // so that several loads are in flight
        for (int query = threadIdx.x; query < args.queries; query += THREADS) {
            Packed<WEIGHT, SAMPLES, LOGIT_ALIGN> packed;
            packed.load_cached(args.weights.at(image, query, head));
            float x[SAMPLES], sum = 0;
            packed.widen_to(x);
            float max = x[0];
#pragma unroll
            for (int s = 1; s < SAMPLES; s++) max = fmaxf(max, x[s]);
#pragma unroll
            for (int s = 0; s < SAMPLES; s++) sum += expf(x[s] - max);
            stage.softmax[query] = Softmax{max, reciprocal(sum)};
        }
    } else {
        for (int query = threadIdx.x / 32; query < args.queries; query += WARPS) {
            const char *logits = args.weights.at(image, query, head);
            const Softmax softmax = softmax_of<float, 32>(SAMPLES, [&](i64 s) {
                float x[1];
                load_wide<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
                return x[0];
            });
            if (threadIdx.x % 32 == 0) stage.softmax[query] = softmax;
        }
    }
}

// Copies the rows of all queries of a plane. In 16 bits two channels are a word. Piece n of a row
// in shared memory is matrix n of the product: it gets words n, PARTS + n, .. of the row. So lane j
// of four sums words PARTS * j to PARTS * j + PARTS - 1, which follow each other.
__device__ __forceinline__ void copy_rows(const Args &args, uint4 *rows, int image, int head) {
    constexpr int BYTES = VALUE == F32 ? 16 : 4, PER_ROW = CHUNK * ELEMENT / BYTES;
    constexpr int STEP = THREADS / PER_ROW; // rows that the block copies at once
    static_assert(STEP % 8 == 0, "a thread's piece is at the same place in all of its rows");
    const int i = threadIdx.x % PER_ROW, first = threadIdx.x / PER_ROW;
    const char *from =
        args.grad_output.at(image, first, head) + blockIdx.y * (CHUNK * ELEMENT) + i * BYTES;
    uint4 *piece = rows + piece_of(first, VALUE == F32 ? i : i % PARTS);
    char *to = reinterpret_cast<char *>(piece) + (VALUE == F32 ? 0 : i / PARTS * 4);
    const i64 step = i64(args.grad_output.stride[1]) * STEP;
    for (int row = first; row < args.queries; row += STEP) {
        if (WHOLE_CHUNKS) {
            cp_async<BYTES>(to, from);
        } else {
            copy_piece<BYTES>(u32(__cvta_generic_to_shared(to)), from, bytes_left(args, i * BYTES));
        }
        from += step, to += STEP * CHUNK * ELEMENT;
    }
}

// A divisor and its reciprocal.
struct Divisor {
    u32 n, reciprocal;
    __device__ __forceinline__ explicit Divisor(int n)
        : n(u32(n)), reciprocal(0xffffffffu / u32(n)) {}
    // Quotient and rest. The product is too small by less than 1.
    __device__ __forceinline__ int2 divide(int x) const {
        const u32 quotient = __umulhi(u32(x), reciprocal), rest = u32(x) - quotient * n;
        return rest < n ? make_int2(int(quotient), int(rest))
                        : make_int2(int(quotient + 1), int(rest - n));
    }
};

// How the levels are divided into runs.
struct Runs {
    int tiles[LEVELS], count[LEVELS]; // tiles of a run; runs of the level in a plane
};

static_assert(sizeof(Runs) == LEVELS * HOST_RUN_BYTES, "host and kernel disagree about runs");

// A thread divides the levels that it has read. Others may use them after a barrier.
__device__ __forceinline__ void divide_levels(const Levels &levels, Runs &runs) {
#pragma unroll 1
    for (int l = threadIdx.x; l < LEVELS; l += THREADS) {
        const int tiles = levels.level[l].tiles;
        runs.count[l] = (tiles + RUN_TILES - 1) / RUN_TILES;
        runs.tiles[l] = runs.count[l] > 0 ? (tiles + runs.count[l] - 1) / runs.count[l] : 0;
    }
}

// The level of a run, from the last to the first. `run` becomes its number in the level, over all
// planes. -1: there is no such run.
__device__ __forceinline__ int level_of_run(const Runs &runs, u32 planes, u32 &run) {
    int l = LEVELS - 1;
    for (; l >= 0 && run >= runs.count[l] * planes; l--) run -= runs.count[l] * planes;
    return l;
}

// Sets the bits of a sample in the tiles of the run that it touches. False: there are none.
__device__ __forceinline__ bool set_bits(const Stage &stage, const TileLevel &level, int first,
                                         int tiles, float x, float y, int sample) {
    const int left = int(floorf(x)), top = int(floorf(y));
    const int tile =
        max(top, 0) / TILE_HEIGHT * level.tiles_across + max(left, 0) / TILE_WIDTH - first;
    const bool right =
        !NEAREST && left >= 0 && left % TILE_WIDTH == TILE_WIDTH - 1 && left + 1 < level.width;
    const bool below =
        !NEAREST && top >= 0 && top % TILE_HEIGHT == TILE_HEIGHT - 1 && top + 1 < level.height;
    bool touches = false;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const int other = tile + (k & 1) + (k >> 1) * level.tiles_across;
        const bool set = ((k & 1) == 0 || right) && ((k >> 1) == 0 || below);
        if (set && u32(other) < u32(tiles)) {
            atomicOr(&stage.bits[other * stage.words + sample / 32], 1u << sample % 32);
            touches = true;
        }
    }
    return touches;
}

// The sum of x over the lanes up to this one, and over all lanes.
struct LaneSums {
    int up_to, all;
    __device__ __forceinline__ LaneSums(int x) {
        const int lane = threadIdx.x % 32;
        if (__all_sync(0xffffffffu, x < 4)) { // of two bits: usual, and faster
            const u32 ones = __ballot_sync(0xffffffffu, x & 1),
                      twos = __ballot_sync(0xffffffffu, x & 2);
            const u32 up_to_here = ~0u >> (31 - lane);
            up_to = __popc(ones & up_to_here) + 2 * __popc(twos & up_to_here);
            all = __popc(ones) + 2 * __popc(twos);
        } else {
            up_to = int(sum_up_to_lane(u32(x))), all = __shfl_sync(0xffffffffu, up_to, 31);
        }
    }
};

// The bits of a tile, in the registers of a warp.
struct TileBits {
    u32 word[LANE_WORDS];
    __device__ __forceinline__ TileBits(const Stage &stage, int t, int tiles) {
#pragma unroll
        for (int w = 0; w < LANE_WORDS; w++) {
            const int at = threadIdx.x % 32 * LANE_WORDS + w;
            word[w] = t < tiles && at < stage.words ? stage.bits[t * stage.words + at] : 0;
        }
    }
};

// The samples of a tile, for add_tile_again. It has a copy of the stage: with a reference, the
// stage itself would be in local memory instead of registers.
struct SamplesOfTile {
    Stage stage;
    TileBits bits;
    int points;

    // Calls f(sample of this lane, the lanes that have one) for each word of bits.
    template <typename F> __device__ __forceinline__ void for_each(F f) const {
        u32 any = 0;
#pragma unroll
        for (int w = 0; w < LANE_WORDS; w++) any |= bits.word[w];
#pragma unroll 1
        for (u32 owners = __ballot_sync(0xffffffffu, any != 0); owners != 0; owners &= owners - 1) {
            const int owner = __ffs(int(owners)) - 1;
#pragma unroll 1
            for (int w = 0; w < LANE_WORDS; w++) {
                const u32 word = __shfl_sync(0xffffffffu, bits.word[w], owner);
                if (word != 0) f((owner * LANE_WORDS + w) * 32 + threadIdx.x % 32, word);
            }
        }
    }
    __device__ __forceinline__ PlacedSample load(u32 sample) const {
        const Kept kept = stage.kept[sample];
        return PlacedSample{int(sample) / points, kept.x, kept.y, kept.weight, true};
    }
    // A number of grad_output: where copy_rows put it.
    __device__ __forceinline__ float gradient(int query, int channel) const {
        const int c = channel % CHUNK, word = c / 2;
        if constexpr (VALUE == F32) {
            return reinterpret_cast<const float *>(stage.rows + piece_of(query, c / 4))[c % 4];
        } else {
            const uint4 *piece = stage.rows + piece_of(query, word % PARTS);
            return widen<VALUE>(reinterpret_cast<const u16 *>(piece)[word / PARTS * 2 + c % 2]);
        }
    }
};

// Rows of gradients of queries: lane k has the query of sample k.
struct RowsOfQueries {
    const uint4 *rows;
    int query;
    __device__ __forceinline__ int place(int k) const { return __shfl_sync(0xffffffffu, query, k); }
    template <int EIGHTS> __device__ __forceinline__ u32 find(int step) const {
        constexpr int AT_ONCE = COLUMN_TILES < 4 / EIGHTS ? COLUMN_TILES : 4 / EIGHTS;
        const int lane = threadIdx.x % 32, row = place(step + lane % (8 * EIGHTS));
        return u32(__cvta_generic_to_shared(rows + piece_of(row, lane / (8 * EIGHTS) % AT_ONCE)));
    }
    __device__ __forceinline__ u32 later(u32 piece, int n) const { return piece ^ (n * 16); }
};

// Sums of the steps before the present one. Few tiles have more than one step, so they need not be
// in registers: volatile.
struct SumsBefore {
    volatile float sum[SUM_LINES / 2][COLUMN_TILES][4];
    // Adds the sums of a step to those before it, if there are any.
    __device__ __forceinline__ void add(const Sums &more, bool any) {
#pragma unroll
        for (int m = 0; m < SUM_LINES / 2; m++) {
#pragma unroll
            for (int i = 0; i < COLUMN_TILES * 4; i++) {
                volatile float &to = sum[m][i / 4][i % 4];
                to = (any ? to : 0) + more[m][i / 4][i % 4];
            }
        }
    }
    __device__ __forceinline__ void add_to(Sums &to) const {
#pragma unroll
        for (int m = 0; m < SUM_LINES / 2; m++) {
#pragma unroll
            for (int i = 0; i < COLUMN_TILES * 4; i++) to[m][i / 4][i % 4] += sum[m][i / 4][i % 4];
        }
    }
};

// Adds the samples of a tile to sums, or counts their terms. Returns whether all weights of the
// lane are finite. All lanes of a warp call this together.
template <Terms TERMS>
__device__ __forceinline__ bool add_kept(Sums &sums, const Stage &stage, WarpStage &own,
                                         const TileBits &bits, const Tile &tile, int points) {
    const int lane = threadIdx.x % 32;
    int mine = 0;
#pragma unroll
    for (int w = 0; w < LANE_WORDS; w++) mine += __popc(bits.word[w]);
    const LaneSums places(mine);
    const int count = places.all;
    bool finite = true;
    SumsBefore before;
    // Lists the samples of this lane. `at`: where its first one belongs.
    auto list = [&](int at, auto fits) {
#pragma unroll
        for (int w = 0; w < LANE_WORDS; w++) {
            const int first = (lane * LANE_WORDS + w) * 32;
            for (u32 word = bits.word[w]; word != 0; word &= word - 1, at++) {
                if (fits(at)) own.list[at] = u16(first + __ffs(int(word)) - 1);
            }
        }
    };
#pragma unroll 1
    for (int listed = 0; listed < count; listed += LISTED) {
        const int at = places.up_to - mine - listed;
        if (count <= LISTED) { // usual, and faster
            list(at, [](int) { return true; });
        } else {
            list(at, [](int at) { return u32(at) < LISTED; });
        }
        __syncwarp();
        const int here = min(count - listed, LISTED);
#pragma unroll 1
        for (int from = 0; from < here; from += 32) {
            const bool exists = from + lane < here;
            const int sample = own.list[exists ? from + lane : from];
            const Kept kept = stage.kept[sample];
            own.shares.put<TERMS>(kept.x - float(tile.x), kept.y - float(tile.y), kept.weight,
                                  exists);
            __syncwarp();
            const RowsOfQueries rows{stage.rows, sample / points};
            finite = finite && (!exists || fabsf(kept.weight) <= MAX_FLOAT);
            if (ROUND_EACH_STEP && listed + from > 0)
                before.add(sums, listed + from > 32), clear(sums);
            add_step<true, TERMS>(sums, own.shares, rows, u32(here - from));
            __syncwarp();
        }
    }
    if (ROUND_EACH_STEP && count > 32) before.add_to(sums);
    return finite;
}

// Stores the sums of a tile. `values`: the first byte of this lane at position 0. `left`: bytes of
// a row from there on. False: some are not finite.
__device__ __forceinline__ bool store_sums(const char *values, int left, int stride,
                                           const Tile &tile, const Sums &sums) {
    const int column = threadIdx.x % 32 / 4;
    const char *row = address_mad(values, tile.position + column, stride);
    const bool in_line = tile.x + column < tile.width;
    Finite finite;
#pragma unroll
    for (int line = 0; line < TILE_HEIGHT; line++, row = address_mad(row, tile.pitch, stride)) {
        store_line(const_cast<char *>(row), left, in_line && tile.y + line < tile.height, sums,
                   line, finite);
    }
    return finite.all();
}

// Computes a tile again that has sums that are not finite. All lanes of a warp call this together.
__device__ __forceinline__ void add_tile_again(const Args &args, const SamplesOfTile &samples,
                                               const Tile &tile, int image, int head) {
    WarpStage &own = samples.stage.of_warp[threadIdx.x / 32];
    const char *values =
        args.grad_value.at(image, 0, head) + blockIdx.y * (CHUNK * ELEMENT) + first_byte();
    const int stride = int(args.grad_value.stride[1]), left = bytes_left(args, first_byte());
    Sums sums;
    Marks<TILE_HEIGHT> marks;
    clear(sums);
    const bool weights_finite =
        add_kept<PLUS>(sums, samples.stage, own, samples.bits, tile, samples.points);
#pragma unroll
    for (int line = 0; line < TILE_HEIGHT; line++) marks.add<PLUS>(sums, line, line);
    clear(sums);
    add_kept<MINUS>(sums, samples.stage, own, samples.bits, tile, samples.points);
#pragma unroll
    for (int line = 0; line < TILE_HEIGHT; line++) marks.add<MINUS>(sums, line, line);
    clear(sums);
    add_kept<FINITE>(sums, samples.stage, own, samples.bits, tile, samples.points);
#pragma unroll
    for (int line = 0; line < TILE_HEIGHT; line++) marks.put(sums, line, line, true);
    const bool finite = store_sums(values, left, stride, tile, sums) && weights_finite;
    // All others are finite. Now the marks take their places.
#pragma unroll
    for (int line = 0; line < TILE_HEIGHT; line++) marks.put(sums, line, line, false);
    store_sums(values, left, stride, tile, sums);
    __syncwarp();
    if (__all_sync(0xffffffffu, finite)) return;
    const LaneChannel channel(args);
    write_in_order(args, samples, tile, 0, TILE_HEIGHT, image, head, channel.channel,
                   channel.in_row);
}

// Adds 1 to a counter in shared memory and returns its old value. The compiler makes an addition
// for all lanes of a warp out of atomicAdd, with many more instructions.
__device__ __forceinline__ int take_next(int *counter) {
    int taken;
    asm volatile("atom.shared.inc.u32 %0, [%1], 0x7fffffff;"
                 : "=r"(taken)
                 : "r"(u32(__cvta_generic_to_shared(counter)))
                 : "memory");
    return taken;
}

// Computes all runs of a block. `next`: the next tile of a run. Sets `not_finite` if some sums are
// not. AGAIN: some were not, and this time all results are right. All threads of the block call
// this together.
template <bool AGAIN>
__device__ __forceinline__ void add_runs(const Args &args, const Levels &levels, const Runs &runs,
                                         int &next, int &not_finite) {
    const Stage stage(args);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    WarpStage &own = stage.of_warp[warp];
#pragma unroll 1
    for (u32 work = blockIdx.x;; work += gridDim.x) {
        u32 run = work;
        const int l = level_of_run(runs, u32(args.batch) * args.heads, run);
        if (l < 0) break;
        const TileLevel &level = levels.level[l];
        const int plane = int(run / u32(runs.count[l]));
        const int first = (int(run) - plane * runs.count[l]) * runs.tiles[l];
        const int tiles = min(runs.tiles[l], level.tiles - first);
        const int image = plane / args.heads, head = plane - image * args.heads;
        const int points = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : level.points;
        const int pieces = points / POINTS; // of a query
        const int count = args.queries * pieces;
        // What a thread loads at once: the samples of a piece.
        struct Piece {
            Packed<LOCATION, 2 * POINTS, LOCATION_ALIGN> locations;
            Packed<WEIGHT, POINTS, WEIGHT_ALIGN> weights;
        };
        auto load = [&](int piece) {
            const int query = piece / pieces;
            const int sample = level.first_sample + (piece - query * pieces) * POINTS;
            Piece to;
            to.locations.load_cached(args.locations.at(image, query, head) +
                                     sample * (2 * size_of<LOCATION>));
            to.weights.load_cached(args.weights.at(image, query, head) + sample * size_of<WEIGHT>);
            return to;
        };
        Piece following;
        if (threadIdx.x < count) following = load(threadIdx.x);
        copy_rows(args, stage.rows, image, head);
        if constexpr (FUSED) store_softmax(args, stage, image, head);
        static_assert(RUN_TILES % 4 == 0, "bits are cleared 16 bytes at a time");
        for (int i = threadIdx.x * 4; i < tiles * stage.words; i += THREADS * 4) {
            *reinterpret_cast<uint4 *>(stage.bits + i) = make_uint4(0, 0, 0, 0);
        }
        if (threadIdx.x == 0) next = 0;
        __syncthreads();
#pragma unroll 1
        for (int piece = threadIdx.x; piece < count; piece += THREADS) {
            const int query = piece / pieces;
            float xy[2 * POINTS], weight[POINTS];
            following.locations.widen_to(xy), following.weights.widen_to(weight);
            if (piece + THREADS < count) following = load(piece + THREADS);
            float reference[FUSED ? FUSED : 1];
            if (FUSED) {
                load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                    args.reference.at(image, query, l), reference);
            }
#pragma unroll
            for (int i = 0; i < POINTS; i++) {
                float x = xy[2 * i], y = xy[2 * i + 1];
                if (FUSED) {
                    add_reference(reference, levels, l, x, y);
                    weight[i] = stage.softmax[query].weight_of(weight[i]);
                }
                if (!place(x, y, level)) continue;
                if (set_bits(stage, level, first, tiles, x, y, piece * POINTS + i)) {
                    stage.kept[piece * POINTS + i] = Kept{x, y, weight[i]};
                }
            }
        }
        cp_async_wait();
        __syncthreads();
        // Warps take tiles as they come, the next one before they compute one. That changes no
        // result.
        auto take = [&] { return lane == 0 ? take_next(&next) : 0; };
        auto taken_by_lane_0 = [&](int t) { return __shfl_sync(0xffffffffu, t, 0); };
        int t = taken_by_lane_0(take());
        TileBits bits(stage, t, tiles);
        const Divisor across(level.tiles_across);
        const char *values = keep(args.grad_value.at(image, 0, head) +
                                  blockIdx.y * (CHUNK * ELEMENT) + first_byte());
        const int stride = int(args.grad_value.stride[1]), left = bytes_left(args, first_byte());
#pragma unroll 1
        while (t < tiles) {
            const int taken = take();
            const int2 at = across.divide(first + t); // row and column of tiles
            const Tile tile = tile_at_place(level, l, at.x, at.y);
            Sums sums;
            if constexpr (AGAIN) {
                add_tile_again(args, SamplesOfTile{stage, bits, points}, tile, image, head);
            } else {
                clear(sums), add_kept<ALL>(sums, stage, own, bits, tile, points);
            }
            t = taken_by_lane_0(taken);
            bits = TileBits(stage, t, tiles);
            if constexpr (!AGAIN) {
                if (!store_sums(values, left, stride, tile, sums)) not_finite = 1;
            }
        }
        __syncthreads();
    }
}

__device__ __noinline__ void add_runs_again(const Args &args, const Levels &levels,
                                            const Runs &runs, int &next, int &not_finite) {
    add_runs<true>(args, levels, runs, next, not_finite);
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_backward_value_few(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    __shared__ Runs runs;
    __shared__ int next, not_finite;
    read_levels(args, levels);
    divide_levels(levels, runs);
    if (threadIdx.x == 0) not_finite = 0;
    __syncthreads();
    add_runs<false>(args, levels, runs, next, not_finite);
    if (not_finite) add_runs_again(args, levels, runs, next, not_finite);
}
