// From locations to weighted rows: what the row kernels share.
#pragma once
#include "taps.cuh"

// Knobs, as macros:
//   VALUE LOCATION WEIGHT   element types
//   D                       channels
//   LEVELS SAMPLES UNIFORM  levels; samples over all of them; points of each level, or 0 where they differ
//   VEC LANES               bytes a lane reads of a row; lanes a row takes
//   SIDES                   2: the left and the right taps are read by lanes of their own
//   SPLIT                   groups of lanes that share the samples of an item
//   HEADS BLOCK BLOCKS      heads and threads of a block; blocks a multiprocessor should hold
//   ROUND                   samples a lane locates at a time
//   ALIGN_L ALIGN_W         bytes that a lane's locations and weights are aligned to
//   STRIP                   queries (they are the pixels of the levels) in strips of so many rows; 0: as they come
//   LISTED                  queries in the order of a list
//   SORTED                  queries of a block in the order of the places they look at; for blocks that keep levels
//   TIGHT                   positions fit 16 bits
//   RING STEP               value has a ring of zeros; bytes from position to position, or 0: an argument
//   UNDER                   bytes from row to row of each level, or 0: arguments
//   RESIDENT                the first of the levels that a block keeps in shared memory; LEVELS: none (planar, VEC 16)
//   HALF                    the ROUND samples that a lane located are summed in f16 before they are added in f32
//   NEAREST BORDER CORNERS  options of the problem
//   FUSED                   0 plain, 2 or 4 numbers a reference point
constexpr int ITEM = LANES * SIDES * SPLIT;
constexpr int QUERIES = BLOCK / ITEM / HEADS;
constexpr int EVERY = ITEM * ROUND; // samples of a round
constexpr int ROUNDS = (SAMPLES + EVERY - 1) / EVERY;
constexpr bool EXACT = SAMPLES % EVERY == 0;
constexpr bool KEPT = RESIDENT < LEVELS;
// Whether the samples that a lane locates at a time are on one level, which is kept at hand.
constexpr bool OWN = UNIFORM > 0 && UNIFORM % ROUND == 0 && ROUNDS <= (KEPT && SPLIT == 1 ? 4 : 1);
// Whether it is known when compiled which samples are on levels that are kept; and the first of them.
constexpr bool PARTED = KEPT && OWN && SPLIT == 1;
constexpr int NEEDED = PARTED ? RESIDENT * UNIFORM : 0;
constexpr bool AHEAD = ROUND <= 2;
constexpr int NUMBERS = FUSED == 2 ? 2 : 4; // of a reference point
constexpr bool FILLED = ROW == LANES * VEC;
constexpr int UNDERS[] = {UNDER};

// A level: its size, the position of its first pixel, positions and bytes from row to row; its first sample; its first query
// and one over the pixels of a strip, where queries are pixels; its size once more, as it is computed with.
struct Level {
    int h, w, origin, pitch, under;
    int sample, query;
    float strip, rows, columns;
};

struct Args {
    Tensor value, locations, weights, reference, output;
    const int *order;
    int queries, heads, batch;
    // Where levels are in shared memory: images and tiles of a block, tiles of an image, positions kept and the first of them.
    int images, each, tiles, kept, first_kept;
    Level level[LEVELS];
};

// A located sample. Its four taps are the corners of a square of pixels that lies on the map, the first of which is at
// `position`; `x` and `y` say where between them. A tap off the map is never read: the square is moved onto the map,
// and a tap that was not there before has no weight.
struct __align__(16) Sample {
    int position;
    float x, y, weight;
};

// What the lanes of an item are handed of a sample, through shared memory that belongs to the warp: the weights of its four
// taps, left ones first, and its position.
struct __align__(16) Weights {
    float tap[4];
};
template <bool SMALL> struct Index { typedef int Type; };
template <> struct Index<true> { typedef u16 Type; };
typedef Index<TIGHT>::Type Position;
constexpr int POSITIONS = ROUND * int(sizeof(Position));
struct __align__((POSITIONS & -POSITIONS) > 16 ? 16 : (POSITIONS & -POSITIONS)) Positions {
    Position sample[ROUND];
};

// Where among a warp's samples that of lane `part` of an item is: those that are read together, and those that are written together,
// lie in different banks. Where the part is known when compiled, parts lie a little further apart, and where one is does not depend on the
// item. But what is read 8 bytes at a time is read twice where it lies in two rows of banks. For positions that is less than what is
// gained; for weights of one side it is more, and there, as where several parts are read together, items trade places instead.
constexpr int ITEMS = 32 / ITEM;
constexpr bool APART = SIDES == 1 && SPLIT == 1;
__device__ __forceinline__ constexpr int turn(int part) { return ITEM <= 4 ? part * (8 / ITEM) : part * ITEMS / 8; }
constexpr int SLOTS = 32 + (APART ? turn(ITEM - 1) : 0);
__device__ __forceinline__ int slot(int item, int part) {
    return part * ITEMS + (APART ? item + turn(part) : item ^ (turn(part) & (ITEMS - 1)));
}

// By slots, but positions where rounds are unrolled by lanes: there they lie in the order of an item's samples, and several are read at once.
struct Handed {
    Weights weights[ROUND][SLOTS];
    Positions positions[SLOTS];
};

constexpr int MANY = 16 / int(sizeof(Position)), TOGETHER = (EVERY & -EVERY) < MANY ? EVERY & -EVERY : MANY;
struct __align__(TOGETHER * int(sizeof(Position))) Several {
    Position sample[TOGETHER];
};

// Cells of the image in which a block that sorts its queries counts them: columns of strips; and the most queries of a thread.
constexpr int STRIPS = 8, COLUMNS = 64, CELLS = STRIPS * COLUMNS, SORTS = 4;

// What a block's warps hand on, in pieces of 16 bytes. Before that, the counters are there.
constexpr int PIECES = BLOCK / 32 * (int(sizeof(Handed)) / 16), COUNTERS = SORTED ? CELLS / 4 : 0;
constexpr int HANDED = PIECES > COUNTERS ? PIECES : COUNTERS;

// Tiles at the end of a block whose slices are for any of its warps.
constexpr int SPARE = 2;

// What one lane makes of it: where its taps are, and how much each counts (top and bottom, of one or two sides).
struct Taps {
    int position;
    float weight[2 / SIDES][2];
};

// The cell in which a query looks: of its first point or its reference point. What is not finite ends in some cell.
__device__ __forceinline__ int cell_of(const Args &args, int image, int query, int head) {
    float xy[2];
    const char *at = FUSED ? args.reference.address(image, query, 0) : args.locations.address(image, query, head);
    read<LOCATION, 2, size_of<LOCATION>>(at, xy);
    const int x = min(max(int(xy[0] * COLUMNS), 0), COLUMNS - 1), y = min(max(int(xy[1] * STRIPS), 0), STRIPS - 1);
    return y * COLUMNS + x;
}

// Lists the queries of a block, `count` from `first` on, cell by cell: at most SORTS a thread. Those of one cell come in any order:
// no output depends on it.
__device__ __forceinline__ void sort(const Args &args, int image, int head, int first, int count, int *cells, u16 *list) {
    int cell[SORTS], rank[SORTS];
#pragma unroll
    for (int i = 0; i < SORTS; i++) {
        const int at = i * BLOCK + threadIdx.x;
        cell[i] = at < count ? cell_of(args, image, first + at, head) : -1;
    }
    for (int i = threadIdx.x; i < CELLS; i += BLOCK) cells[i] = 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORTS; i++) rank[i] = cell[i] < 0 ? 0 : atomicAdd(&cells[cell[i]], 1);
    __syncthreads();
    if (threadIdx.x < 32) { // counts become first places
        constexpr int EVERY = CELLS / 32;
        int *own = cells + threadIdx.x * EVERY, sum = 0;
#pragma unroll
        for (int i = 0; i < EVERY; i++) sum += own[i];
        int before = sum;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, before, step);
            if (threadIdx.x >= step) before += other;
        }
        before -= sum;
#pragma unroll
        for (int i = 0; i < EVERY; i++) {
            const int n = own[i];
            own[i] = before, before += n;
        }
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SORTS; i++) {
        if (cell[i] >= 0) list[cells[cell[i]] + rank[i]] = u16(i * BLOCK + threadIdx.x);
    }
    __syncthreads();
}

// The query that is the q-th, or -1. `list` is that of the queries from `first` on, if there is one.
__device__ __forceinline__ int query_of(const Args &args, int image, int q, int first, const u16 *list) {
    if (q >= args.queries) return -1;
    if (SORTED) return first + list[q - first];
    if (LISTED) return args.order[i64(image) * args.queries + q];
    if (STRIP == 0) return q;
    int l = 0;
#pragma unroll
    for (int k = 1; k < LEVELS; k++) l = q >= args.level[k].query ? k : l;
    const Level &level = args.level[l];
    const int t = q - level.query, size = STRIP * level.w;
    int down = int((float(t) + 0.5f) * level.strip);
    down += t - down * size >= size ? 1 : t - down * size < 0 ? -1 : 0; // of many pixels a float knows less
    // Down the columns of a strip. The last one may be lower.
    const int rest = t - down * size, high = min(STRIP, level.h - down * STRIP);
    const int x = high == STRIP ? rest / (STRIP > 0 ? STRIP : 1) : rest / high;
    return level.query + (down * STRIP + rest - x * high) * level.w + x;
}

struct Softmax {
    float top, scale;
};

// The largest logit of an item and one over the sum, found by its lanes together.
__device__ __forceinline__ Softmax softmax_of(const char *logits, int part, bool active) {
    float top = __int_as_float(0xff800000);
    float x[1];
    for (int s = part; s < SAMPLES; s += ITEM) {
        if (active) read<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
        top = active && x[0] > top ? x[0] : top;
    }
#pragma unroll
    for (int step = 1; step < ITEM; step *= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, top, step);
        top = other > top ? other : top;
    }
    float sum = 0;
    for (int s = part; s < SAMPLES; s += ITEM) {
        if (active) read<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
        if (active) sum += expf(x[0] - top);
    }
#pragma unroll
    for (int step = 1; step < ITEM; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    return Softmax{top, 1.0f / sum};
}

// Moves an interval of two pixels that begins at `low` onto the map.
__device__ __forceinline__ void move(float &low, float &part, float &weight, float side) {
    const bool before = low < 0, after = low + 2 > side;
    weight *= before ? part : after ? 1 - part : 1;
    part = before ? 0 : after ? 1 : part;
    low = fminf(fmaxf(low, 0.0f), side - 2);
}

// Where a sample falls, if it counts.
__device__ __forceinline__ Sample place(bool there, float x, float y, float weight, const Level &level) {
    // Comparisons with NaN are false: such a sample is not there.
    if (BORDER) there = there && fabsf(x) <= 3.402823466e38f && fabsf(y) <= 3.402823466e38f;
    x = pixel(x, level.columns);
    y = pixel(y, level.rows);
    Sample sample;
    if (NEAREST) {
        x = rintf(x), y = rintf(y);
        there = there && x >= 0 && y >= 0 && x < level.columns && y < level.rows;
        sample = Sample{int(y) * level.pitch + int(x), 0, 0, weight};
    } else {
        there = there && x > -1 && y > -1 && x < level.columns && y < level.rows;
        float left = floorf(x), top = floorf(y);
        sample = Sample{0, x - left, y - top, weight};
        if (!RING) {
            move(left, sample.x, sample.weight, level.columns);
            move(top, sample.y, sample.weight, level.rows);
        }
        sample.position = int(top) * level.pitch + int(left);
    }
    sample.position = level.origin + (there ? sample.position : 0);
    sample.weight = there ? sample.weight : 0;
    return sample;
}

__device__ __forceinline__ Weights weigh(const Sample &sample) {
    const float bottom = sample.weight * sample.y, top = sample.weight - bottom;
    const float right = top * sample.x, low = bottom * sample.x;
    return Weights{{top - right, bottom - low, right, low}};
}

__device__ __forceinline__ Taps take(const Weights &from, int position, int side) {
    Taps taps;
    taps.position = position;
    if (SIDES == 2) {
        const float2 w = reinterpret_cast<const float2 *>(from.tap)[side];
        taps.weight[0][0] = w.x, taps.weight[0][1] = w.y;
    } else {
        const float4 w = *reinterpret_cast<const float4 *>(from.tap);
        taps.weight[0][0] = w.x, taps.weight[0][1] = w.y;
        taps.weight[1 / SIDES][0] = w.z, taps.weight[1 / SIDES][1] = w.w;
    }
    return taps;
}

// From raw offset and logit to location and weight.
__device__ __forceinline__ void unfuse(const Args &args, int image, int query, int l, const Softmax &softmax, float &x,
                                       float &y, float &weight) {
    const Level &level = args.level[l];
    float ref[NUMBERS];
    read<LOCATION, NUMBERS, size_of<LOCATION>>(args.reference.address(image, query, l), ref);
    if (FUSED == 4) {
        const int end = l + 1 < LEVELS ? args.level[l + 1 < LEVELS ? l + 1 : 0].sample : SAMPLES;
        const float share = 0.5f / float(end - level.sample);
        x = ref[0] + x * (ref[NUMBERS - 2] * share);
        y = ref[1] + y * (ref[NUMBERS - 1] * share);
    } else {
        x = ref[0] + x * (1.0f / level.columns);
        y = ref[1] + y * (1.0f / level.rows);
    }
    weight = expf(weight - softmax.top) * softmax.scale;
}

// Locations and weights of the samples that fall to a lane, as they are stored.
struct Raw {
    static constexpr int pieces = EXACT ? 1 : ROUND, each = EXACT ? ROUND : 1; // one after another where there may be none
    Packed<LOCATION, 2 * each, EXACT ? ALIGN_L : size_of<LOCATION>> xy[pieces];
    Packed<WEIGHT, each, EXACT ? ALIGN_W : size_of<WEIGHT>> weight[pieces];

    // Those of the round that begins with sample s, of addresses that are those of the first round.
    __device__ __forceinline__ void fetch(bool active, const char *locations, const char *weights, int s, int part) {
#pragma unroll
        for (int i = 0; i < pieces; i++) {
            if (active && (EXACT || s + part * ROUND + i < SAMPLES)) {
                xy[i].load(locations + (s + i) * (2 * size_of<LOCATION>));
                weight[i].load(weights + (s + i) * size_of<WEIGHT>);
            }
        }
    }

    __device__ __forceinline__ void widen_to(float (&place)[2 * ROUND], float (&share)[ROUND]) const {
#pragma unroll
        for (int i = 0; i < pieces; i++) {
            float two[2 * each], one[each];
            xy[i].widen_to(two), weight[i].widen_to(one);
#pragma unroll
            for (int k = 0; k < each; k++) {
                place[2 * (i * each + k)] = two[2 * k], place[2 * (i * each + k) + 1] = two[2 * k + 1];
                share[i * each + k] = one[k];
            }
        }
    }
};

// Locates those samples, from sample s on, and hands them to the lanes of the item. `slot` is the lane's.
__device__ __forceinline__ void locate(const Args &args, const Raw &raw, bool active, int image, int query,
                                       const Softmax &softmax, int s, Handed &to, int slot, const Level &own) {
    Positions positions;
    float places[2 * ROUND], shares[ROUND];
    raw.widen_to(places, shares);
#pragma unroll
    for (int r = 0; r < ROUND; r++) {
        const int l = level_of(args, EXACT ? s + r : min(s + r, SAMPLES - 1));
        const Level &on = OWN ? own : args.level[l];
        const bool counts = active && (EXACT || s + r < SAMPLES);
        float x = places[2 * r], y = places[2 * r + 1], weight = shares[r];
        if (FUSED && counts) unfuse(args, image, query, l, softmax, x, y, weight);
        const Sample sample = place(counts, x, y, weight, on);
        to.weights[r][slot] = weigh(sample);
        positions.sample[r] = Position(sample.position);
    }
    to.positions[PARTED ? int(threadIdx.x % 32) : slot] = positions;
}

// The rows of one head: where its bytes of position 0 are, and bytes from position to position; and where those of the levels in shared memory are:
// of the first position that is kept, where it is known which samples are on such levels, else of position 0 as if it were kept too.
struct Rows {
    const char *base;
    int step;
    u32 shared;
};

__device__ __forceinline__ Vector<16> gather_shared(u32 at) {
    Vector<16> v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
                 : "r"(at));
    return v;
}

// Each time anew: the compiler keeps none of it.
__device__ __forceinline__ u64 read_shared(const void *at) {
    u64 x;
    asm volatile("ld.shared.u64 %0, [%1];" : "=l"(x) : "r"(u32(__cvta_generic_to_shared(at))));
    return x;
}

// Where a block that keeps levels is: what it needs of the image and head, and each of an item's lanes of its samples and their levels. It is
// read anew for every slice: registers are for rows that are on their way. Eight bytes at a time: what each lane of an item has one of, and items
// have in common, takes a wavefront or two so, and 16 bytes would take four.
struct __align__(16) Stay {
    u64 output;
    int image;
    // Slices, which are what warps take at a time: the next that is for anybody, the first of those, and the end of all.
    int next, until, end;
    u64 locations[ITEM], weights[ITEM]; // of the first query
    struct {
        int origin, pitch;
    } place[ITEM * (OWN ? ROUNDS : 1)];
    struct {
        float rows, columns;
    } size[ITEM * (OWN ? ROUNDS : 1)];

    __device__ __forceinline__ void put(const Args &args, int of, int head, int part) {
        locations[part] = u64(args.locations.at(of, 0, head) + part * ROUND * 2 * size_of<LOCATION>);
        weights[part] = u64(args.weights.at(of, 0, head) + part * ROUND * size_of<WEIGHT>);
        if (part == 0) output = u64(args.output.at(of, 0, head)), image = of;
    }
    __device__ __forceinline__ void put(int i, const Level &level) {
        place[i].origin = level.origin, place[i].pitch = level.pitch;
        size[i].rows = level.rows, size[i].columns = level.columns;
    }
    // Tiles from `tile` to `last`: their slices are divided beforehand, but those of the last tiles are for warps that are done with theirs: some get
    // ahead. Slices without a query are none.
    __device__ __forceinline__ void divide(const Args &args, int tile, int last) {
        until = next = max(last - SPARE, tile + 1) * (BLOCK / 32);
        end = min(last * (BLOCK / 32), (args.queries + ITEMS - 1) / ITEMS);
    }

    // Addresses of a query's samples that are the first of a lane.
    __device__ __forceinline__ void inputs(const Args &args, int query, int part, const char *&from, const char *&shares) const {
        from = offset(reinterpret_cast<const char *>(read_shared(&locations[part])), query, args.locations.row);
        shares = offset(reinterpret_cast<const char *>(read_shared(&weights[part])), query, args.weights.row);
    }
    __device__ __forceinline__ char *to(const Args &args, int query) const {
        return const_cast<char *>(offset(reinterpret_cast<const char *>(read_shared(&output)), query, args.output.row));
    }
    __device__ __forceinline__ void level(int i, Level &level) const {
        const u64 where = read_shared(&place[i]), sides = read_shared(&size[i]);
        level.origin = int(u32(where)), level.pitch = int(where >> 32);
        level.rows = __uint_as_float(u32(sides)), level.columns = __uint_as_float(u32(sides >> 32));
    }
    // The slice that a warp has after one, if there is one; all its lanes ask. What the answer depends on is the same for the warp, and the compiler can
    // see that.
    __device__ __forceinline__ bool follow(int &slice) {
        slice += BLOCK / 32;
        if (!__any_sync(0xffffffffu, slice >= until)) return true;
        if (threadIdx.x % 32 == 0) slice = atomicAdd(&next, 1);
        slice = __shfl_sync(0xffffffffu, slice, 0);
        return __any_sync(0xffffffffu, slice < end);
    }
};
constexpr int STAY = KEPT ? int(sizeof(Stay)) / 16 : 0;

// Bytes from row to row of a level: where they are known, and so is the level, nothing is computed or read.
__device__ __forceinline__ int under_of(const Args &args, int level) {
    if constexpr (UNDERS[0] == 0) {
        return args.level[level].under;
    } else {
        constexpr int COUNT = sizeof(UNDERS) / sizeof(int);
        int under = UNDERS[0];
#pragma unroll
        for (int l = 1; l < COUNT; l++) under = level >= l ? UNDERS[l] : under;
        return under;
    }
}

// Adds the taps of one sample.
template <int BYTES>
__device__ __forceinline__ void add(float (&sum)[EACH], Halves &halves, const Rows &rows, const Taps &taps, int level, int under) {
    const int step = STEP > 0 ? STEP : rows.step;
    const char *at = offset(rows.base, taps.position, step);
    if constexpr (NEAREST) {
        multiply_add<VALUE>(sum, gather<BYTES>(at), taps.weight[0][0]);
    } else {
        Vector<BYTES> v[2 / SIDES][2];
        bool kept = false;
        if constexpr (KEPT && BYTES == 16) {
            kept = level >= RESIDENT;
            const u32 there = rows.shared + u32(taps.position) * ROW;
#pragma unroll
            for (int i = 0; kept && i < 2 / SIDES; i++) {
                v[i][0] = gather_shared(there + i * ROW);
                v[i][1] = gather_shared(there + under + i * ROW);
            }
        }
#pragma unroll
        for (int i = 0; !kept && i < 2 / SIDES; i++) {
            v[i][0] = gather<BYTES>(at + i * step);
            v[i][1] = gather<BYTES>(at + under + i * step);
        }
#pragma unroll
        for (int i = 0; i < 2 / SIDES; i++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if constexpr (HALF) {
                    multiply_add(halves, v[i][k], taps.weight[i][k]);
                } else {
                    multiply_add<VALUE>(sum, v[i][k], taps.weight[i][k]);
                }
            }
        }
    }
}

// Lanes of an item that summed the same channels, and how many of these each is left with: at least 4 bytes, where a row has them.
constexpr int SHARERS = ITEM / LANES;
constexpr int LEFT = EACH / SHARERS * size_of<VALUE> >= 4 ? EACH / SHARERS : EACH * size_of<VALUE> >= 4 ? 4 / size_of<VALUE> : EACH;

// Adds up what they summed. Returns the first of the channels that the lane is left with, or -1 where another lane has the same.
__device__ __forceinline__ int add_up(float (&sum)[EACH], int part, float (&left)[LEFT]) {
    int first = 0, n = EACH;
    bool again = false;
#pragma unroll
    for (int step = LANES; step < ITEM; step *= 2) {
        const bool upper = part & step;
        const bool halved = n > LEFT;
        n = halved ? n / 2 : n;
#pragma unroll
        for (int c = 0; c < EACH; c++) {
            if (c >= n) continue;
            const int other = halved ? c + n : c;
            const float sent = upper ? sum[c] : sum[other];
            sum[c] = (upper ? sum[other] : sum[c]) + __shfl_xor_sync(0xffffffffu, sent, step);
        }
        first += halved && upper ? n : 0, again = again || (!halved && upper);
    }
#pragma unroll
    for (int c = 0; c < LEFT; c++) left[c] = sum[c];
    return again ? -1 : first;
}

// The sum of one sample's taps as the definition has it: a tap off the map is not read and does not count. The other
// path multiplies by 0 what it need not have read, which is another thing where a value is not finite.
template <int N>
__device__ __forceinline__ void add_carefully(float (&sum)[N], const char *base, int step, float x, float y,
                                              float weight, const Level &level) {
    if (BORDER && !(fabsf(x) <= 3.402823466e38f && fabsf(y) <= 3.402823466e38f)) return;
    x = pixel(x, level.columns);
    y = pixel(y, level.rows);
    if (NEAREST) x = rintf(x), y = rintf(y);
    if (!(x > -1 && y > -1 && x < level.columns && y < level.rows)) return;
    const float left = floorf(x), top = floorf(y);
    const float u = x - left, v = y - top;
#pragma unroll
    for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
        const int i = int(left) + (k & 1), j = int(top) + (k >> 1);
        if (i < 0 || j < 0 || i >= level.w || j >= level.h) continue;
        const float share = NEAREST ? 1 : (k & 1 ? u : 1 - u) * (k >> 1 ? v : 1 - v);
        const char *at = offset(base, level.origin + j * level.pitch + i, step);
        multiply_add<VALUE>(sum, gather<N * size_of<VALUE>>(at), weight * share);
    }
}

// Some channels of an item, all of its samples.
template <int N>
__device__ __forceinline__ void sum_carefully(float (&sum)[N], const Args &args, int image, int query, int head, int start,
                                           const Softmax &softmax) {
    const char *locations = args.locations.address(image, query, head), *weights = args.weights.address(image, query, head);
    const char *base = args.value.address(image, 0, head) + start;
#pragma unroll
    for (int c = 0; c < N; c++) sum[c] = 0;
#pragma unroll 1
    for (int s = 0; s < SAMPLES; s++) {
        float xy[2], w[1];
        read<LOCATION, 2, size_of<LOCATION>>(locations + s * (2 * size_of<LOCATION>), xy);
        read<WEIGHT, 1, size_of<WEIGHT>>(weights + s * size_of<WEIGHT>, w);
        const int l = level_of(args, s);
        if (FUSED) unfuse(args, image, query, l, softmax, xy[0], xy[1], w[0]);
        add_carefully(sum, base, args.value.row, xy[0], xy[1], w[0], args.level[l]);
    }
}
