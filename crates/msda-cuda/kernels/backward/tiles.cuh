// Tiles: what the kernels of the value gradient share.
//
//   plane     one image and head
//   tile      8 x 4 pixels of a level
//   strip     8 pixel columns of a level
//   cell      8 pixels: an image row of a strip
//   bin       samples of a plane whose top left tap is in the same cell; if that tap is outside the
//             map, the nearest pixel counts. Cell c has two bins: the samples of bin 2 c touch one
//             strip, those of bin 2 c + 1 also touch the next strip.
//
//               strip 0            strip 1
//               . . . . . . . o    . . . . . . . .     o: a sample of bin 2 c + 1 touches
//               . . . . . . . .    . . . . . . . .        strips 0 and 1, rows r and r + 1
//
//             The bins of an image row follow each other. So the samples of a chunk whose top left
//             tap is in row r and that touch a strip are one range of records: bin 2 c - 1 of its
//             left neighbour, and bins 2 c and 2 c + 1. In the last strip bin 2 c + 1 is empty, so
//             nothing runs over into the next row.
//   chunk     samples of a plane and level that follow each other; sort.cu sorts each by bins
//   record    index of a sample in its chunk. In a plane and level, the index of a sample is
//             query * points of the level + point. The records of a chunk follow each other,
//             sorted by bins.
//   ends      table per plane: for each chunk and bin, the records of the chunk up to the end of
//             the bin. So the samples of a cell are one range of records per chunk.
//
// Levels are numbered from the last to the first here: usually the last has the fewest cells and
// the most samples per cell, so its cells are computed first.
//
// Macros, set by the host twin src/kernels/backward/tiles.rs:
//   VALUE LOCATION WEIGHT   element types
//   RING NEAREST BORDER CORNERS FUSED   see common/args.cuh
//   LEVELS SAMPLES          levels; samples per query and head, over all levels
//   UNIFORM_POINTS          points per level, or 0 if levels differ
//   WIDE_ENDS               1: records and ends do not fit 16 bits
//   INLINE_LEVELS           entries of the table of levels in the argument; 0: in device memory
//   LOCATION_ALIGN WEIGHT_ALIGN REFERENCE_ALIGN   alignment in bytes of one sample's numbers
//   HOST_*                  constants that the host computes with
//   ARGS_BYTES ARGS_FIELDS  the argument of the host: see CHECK_ARGS
#pragma once
#include "common/memory.cuh"

typedef Element<VALUE>::Wide Wide;

constexpr int TILE_WIDTH = HOST_TILE_WIDTH, TILE_HEIGHT = HOST_TILE_HEIGHT, TILE_PIXELS = TILE_WIDTH * TILE_HEIGHT;

// A tensor with any strides, in bytes.
struct Strided {
    char *base;
    i64 stride[3];
    __device__ __forceinline__ char *at(i64 i, i64 j, i64 k) const {
        return base + i * stride[0] + j * stride[1] + k * stride[2];
    }
};

struct LevelSize {
    i64 height, width, start, first_sample; // start: the first position
};

// An entry of the table of ends; and a record: the index of a sample in its chunk.
#if WIDE_ENDS
typedef u32 End, Record;
#else
typedef u16 End, Record;
#endif

// The largest logit and 1 / sum of exp(logit - max).
struct Softmax {
    Wide max, scale;
};

struct Args {
    Strided locations, weights, reference, grad_output, grad_value;
    const i64 *shapes;      // (height, width) of each level; null if the table has them
    const i64 *starts;      // first position of each level; null if the table has them
    const LevelSize *table; // null if the table is `level`
    Record *records;        // per plane, level and chunk, sorted; sums in value_atomic.cu
    End *ends;              // see Ends
    const Softmax *softmax; // FUSED: per image, query and head
    i64 records_per_plane;
    int batch, queries, heads, channels;
    int positions, bin_capacity;
    int chunks;             // of a level: at most 32
    int chunk_samples;      // a multiple of 128
    int batch_samples;      // that a block of sort.cu sorts at a time: fewer than 2^16
    int sample_words;       // words with a bit per sample of a plane and level: value_few.cu
    LevelSize level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

// FUSED: what offsets are multiplied by, besides the size of the box.
struct OffsetScale {
    Wide x, y;
};

struct TileLevel {
    int height, width;
    int origin, pitch; // position of pixel (0, 0); positions from image row to image row
    int first_sample, points;
    int first_tile, tiles_across, tiles;
    int first_bin;
    __device__ __forceinline__ int strips() const { return tiles_across; }
    __device__ __forceinline__ int cells() const { return height * tiles_across; }
};

static_assert(sizeof(TileLevel) == HOST_LEVEL_BYTES, "host and kernel disagree about a level");

// Divisions are slow, but shared memory has no room for the quotients of very many levels.
constexpr bool KEEP_SCALES = FUSED && LEVELS <= 64;

// The levels of the call, in shared memory.
struct Levels {
    TileLevel level[LEVELS];
    OffsetScale scale[KEEP_SCALES ? LEVELS : 1];
    int tiles; // of all levels
    int bin_shift; // so many cells as a power of two share their bins; 0 unless cells are too many
};

// Each level begins at a multiple of so many bins.
constexpr int BIN_ALIGN = HOST_BIN_ALIGN;

// Bins of a level.
__device__ __forceinline__ int bins_of(const TileLevel &level, int shift) {
    return level.cells() == 0 ? 0 : 2 * (((level.cells() - 1) >> shift) + 1);
}

// Locations of one query are the sums of products that the compiler may or may not fuse. All
// kernels must place a sample on the same pixel, so the operations are spelled out.
__device__ __forceinline__ float multiply_add_once(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
__device__ __forceinline__ double multiply_add_once(double a, double b, double c) {
    return __fma_rn(a, b, c);
}
__device__ __forceinline__ float multiply_once(float a, float b) { return __fmul_rn(a, b); }
__device__ __forceinline__ double multiply_once(double a, double b) { return __dmul_rn(a, b); }
__device__ __forceinline__ float divide_once(float a, float b) { return __fdiv_rn(a, b); }
__device__ __forceinline__ double divide_once(double a, double b) { return __ddiv_rn(a, b); }

__device__ __forceinline__ OffsetScale scale_of(const TileLevel &level) {
    if (FUSED == 4) {
        const Wide share = divide_once(Wide(0.5), Wide(level.points));
        return OffsetScale{share, share};
    }
    return OffsetScale{divide_once(Wide(1), Wide(level.width)), divide_once(Wide(1), Wide(level.height))};
}

// Reads the table of levels, without the numbers of tiles and bins. A level that reaches past the
// end of value has no tiles. A thread reads a level; others may use it after a barrier.
__device__ __forceinline__ void read_levels(const Args &args, Levels &to) {
    const LevelSize *table = INLINE_LEVELS > 0 ? args.level : args.table;
    for (int l = threadIdx.x; l < LEVELS; l += blockDim.x) {
        const i64 height = args.shapes ? args.shapes[2 * l] : table[l].height;
        const i64 width = args.shapes ? args.shapes[2 * l + 1] : table[l].width;
        const i64 start = args.starts ? args.starts[l] : table[l].start;
        const i64 pitch = width + 2 * RING, limit = 1 << 24;
        const bool legal = height > 0 && width > 0 && height <= limit && width <= limit &&
                           start >= 0 && start <= args.positions &&
                           (height + 2 * RING) * pitch <= args.positions - start;
        TileLevel level;
        level.height = legal ? int(height) : 0, level.width = legal ? int(width) : 0;
        level.origin = int(start + RING * (pitch + 1)), level.pitch = int(pitch);
        level.first_sample = int(table[l].first_sample);
        const int next = l + 1 < LEVELS ? int(table[l + 1].first_sample) : SAMPLES;
        level.points = next - level.first_sample;
        if (KEEP_SCALES) to.scale[l] = scale_of(level);
        level.tiles_across = (level.width + TILE_WIDTH - 1) / TILE_WIDTH;
        level.tiles = level.tiles_across * ((level.height + TILE_HEIGHT - 1) / TILE_HEIGHT);
        to.level[l] = level;
    }
}

// Reads the table of levels and numbers tiles and bins. All threads call this together.
__device__ __forceinline__ void load_levels(const Args &args, Levels &to) {
    read_levels(args, to);
    __syncthreads();
    if (threadIdx.x == 0) {
        int tiles = 0, shift = -1;
        i64 bins = 0; // of levels that overlap there may be very many
        do {
            shift++, tiles = 0, bins = 0;
            for (int l = LEVELS - 1; l >= 0; l--) {
                TileLevel &level = to.level[l];
                level.first_tile = tiles, level.first_bin = int(bins);
                tiles += level.tiles;
                bins += (bins_of(level, shift) + BIN_ALIGN - 1) / BIN_ALIGN * BIN_ALIGN;
            }
        } while (bins > args.bin_capacity && shift < 30);
        to.tiles = tiles, to.bin_shift = shift;
    }
    __syncthreads();
}

// From a normalised coordinate to pixels, on an axis of `extent` pixels.
__device__ __forceinline__ Wide pixel_of(Wide t, int extent) {
    Wide x = CORNERS ? multiply_once(t, Wide(extent - 1))
                     : multiply_add_once(t, Wide(extent), Wide(-0.5));
    if (BORDER) x = x <= 0 ? 0 : x >= Wide(extent - 1) ? Wide(extent - 1) : x;
    return NEAREST ? rint(x) : x;
}

// FUSED: from an offset to a location on level l, given the reference point of the query.
__device__ __forceinline__ void add_reference(const Wide (&reference)[FUSED ? FUSED : 1],
                                              const Levels &levels, int l, Wide &x, Wide &y) {
    const OffsetScale scale = KEEP_SCALES ? levels.scale[KEEP_SCALES ? l : 0] : scale_of(levels.level[l]);
    Wide scale_x = scale.x, scale_y = scale.y;
    if (FUSED == 4) {
        scale_x = multiply_once(reference[FUSED - 2], scale_x);
        scale_y = multiply_once(reference[FUSED - 1], scale_y);
    }
    x = multiply_add_once(x, scale_x, reference[0]);
    y = multiply_add_once(y, scale_y, reference[FUSED ? 1 : 0]);
}

// Moves a location to pixels. False: the sample does not count.
__device__ __forceinline__ bool place(Wide &x, Wide &y, const TileLevel &level) {
    // x - x is 0 only if x is finite. Without BORDER, other numbers fail the tests below.
    const bool finite = !BORDER || (x - x == 0 && y - y == 0);
    x = pixel_of(x, level.width), y = pixel_of(y, level.height);
    return finite && x > -1 && y > -1 && x < Wide(level.width) && y < Wide(level.height);
}

// The bin of a sample at pixel (x, y) of a level, counted from the first of the level.
__device__ __forceinline__ int bin_of(const Levels &levels, const TileLevel &level, Wide x, Wide y) {
    const int left = int(floor(x)), row = max(int(floor(y)), 0);
    const int strip = max(left, 0) >> 3, last = min(left + 1, level.width - 1) >> 3;
    const int reach = NEAREST ? 0 : last - strip; // 1: it touches the next strip
    return 2 * ((row * level.strips() + strip) >> levels.bin_shift) + reach;
}
static_assert(TILE_WIDTH == 8, "shifts by 3");
static_assert(HOST_MAX_CHUNKS <= 32, "a lane takes a chunk");

// The sum of x over the lanes up to this one.
__device__ __forceinline__ u32 sum_up_to_lane(u32 x) {
    const u32 lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const u32 other = __shfl_up_sync(0xffffffffu, x, step);
        x += lane >= step ? other : 0;
    }
    return x;
}

// N numbers of type T as Wide.
template <int T, int N, int ALIGN>
__device__ __forceinline__ void load_wide(const char *from, Wide (&x)[N]) {
    if constexpr (VALUE == F64) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = Wide(widen<T>(reinterpret_cast<const typename Element<T>::Stored *>(from)[i]));
        }
    } else {
        Packed<T, N, ALIGN> packed;
        packed.load_cached(from);
        packed.widen_to(x);
    }
}

// A tile of a plane.
struct Tile {
    int l;                    // its level
    int x, y;                 // its first pixel
    int width, height;        // of the level
    int position, pitch;      // of its first pixel; from row to row
    __device__ __forceinline__ bool has(int pixel) const {
        return x + pixel % TILE_WIDTH < width && y + pixel / TILE_WIDTH < height;
    }
    __device__ __forceinline__ int position_of(int pixel) const {
        return position + pixel / TILE_WIDTH * pitch + pixel % TILE_WIDTH;
    }
};

// A tile of level l, by its row and column of tiles.
__device__ __forceinline__ Tile tile_at_place(const TileLevel &level, int l, int row, int column) {
    Tile tile;
    tile.l = l, tile.x = column * TILE_WIDTH, tile.y = row * TILE_HEIGHT;
    tile.width = level.width, tile.height = level.height;
    tile.position = level.origin + tile.y * level.pitch + tile.x, tile.pitch = level.pitch;
    return tile;
}

// The same by its number in the level.
__device__ __forceinline__ Tile tile_of_level(const TileLevel &level, int l, int in_level) {
    const int row = u32(in_level) / u32(level.tiles_across);
    return tile_at_place(level, l, row, in_level - row * level.tiles_across);
}

// A tile by its number over all levels.
__device__ __forceinline__ Tile tile_at(const Levels &levels, int index) {
    int l = LEVELS - 1;
    while (l > 0 && index >= levels.level[l - 1].first_tile) l--;
    return tile_of_level(levels.level[l], l, index - levels.level[l].first_tile);
}

// The ends of a chunk, for the bins of its level. 32 bytes of a chunk are followed by those of the
// next one: sort.cu stores whole sectors, and value.cu loads few lines for all chunks of a bin.
struct Ends {
    static constexpr int PER_SECTOR = 32 / sizeof(End);
    End *sectors; // of the chunk
    int chunks;
    __device__ __forceinline__ Ends(const Args &args, const TileLevel &level, i64 plane, int chunk) {
        const i64 first = plane * args.bin_capacity + level.first_bin;
        sectors = args.ends + first * args.chunks + chunk * PER_SECTOR, chunks = args.chunks;
    }
    __device__ __forceinline__ End &at(int bin) const {
        return sectors[i64(bin / PER_SECTOR) * (chunks * PER_SECTOR) + bin % PER_SECTOR];
    }
    // Records up to the bin, without its own.
    __device__ __forceinline__ u32 before(int bin) const { return bin > 0 ? at(bin - 1) : 0; }
};

// The bins of the samples whose top left tap is in an image row and that touch a strip: from, to.
// If bins are shared, they may hold other samples too.
__device__ __forceinline__ int2 bins_of_cell(const TileLevel &level, int shift, int strip, int row) {
    const int cell = row * level.strips() + strip;
    return shift == 0 ? make_int2(max(2 * cell - 1, 0), 2 * cell + 2)
                      : make_int2(2 * (max(cell - 1, 0) >> shift), 2 * (cell >> shift) + 2);
}

// The query of a sample of a level, and its number within the query.
__device__ __forceinline__ int query_of_sample(u32 index, const TileLevel &level, int &sample) {
    const u32 points = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : level.points;
    const u32 query = index / points;
    sample = level.first_sample + int(index - query * points);
    return int(query);
}

// The first record of a chunk, counted from the first of its plane.
__device__ __forceinline__ u32 first_record(const Args &args, const TileLevel &level, int chunk) {
    return u32(args.queries) * u32(level.first_sample) + u32(chunk) * u32(args.chunk_samples);
}

// A sample, not yet located.
struct Given {
    int query;
    Wide xy[2], weight; // FUSED: an offset and a logit
};

// Loads sample `index` of a level.
__device__ __forceinline__ Given load_sample(const Args &args, const TileLevel &level, int image,
                                                int head, u32 index) {
    Given to;
    int sample;
    Wide weight[1];
    to.query = query_of_sample(index, level, sample);
    load_wide<LOCATION, 2, LOCATION_ALIGN>(
        args.locations.at(image, to.query, head) + i64(sample) * (2 * size_of<LOCATION>), to.xy);
    load_wide<WEIGHT, 1, WEIGHT_ALIGN>(
        args.weights.at(image, to.query, head) + i64(sample) * size_of<WEIGHT>, weight);
    to.weight = weight[0];
    return to;
}

// The samples that touch some image rows of a strip, and some more if bins are shared.
struct RecordsOfRows {
    const Args &args;
    const Levels &levels;
    i64 plane;
    int image, head, l, strip, row, rows;

    // Calls f(place of this lane's record in the plane, how many lanes have one) for up to 32
    // records at a time, row by row, and in a row chunk by chunk. All lanes of a warp call this
    // together.
    template <typename F> __device__ __forceinline__ void for_each(F f) const {
        const TileLevel &level = levels.level[l];
        const u32 lane = threadIdx.x % 32; // a chunk per lane
        const Ends ends(args, level, plane, lane);
        int used = 0; // bins up to here
#pragma unroll 1
        for (int top = max(row - 1, 0); top < min(row + rows, level.height); top++) {
            const int2 bins = bins_of_cell(level, levels.bin_shift, strip, top);
            const int from = max(bins.x, used);
            u32 begin = 0, count = 0;
            if (lane < args.chunks && from < bins.y) {
                begin = ends.before(from), count = ends.before(bins.y) - begin;
            }
            used = max(used, bins.y);
            const u32 sum = sum_up_to_lane(count);
            const u32 all = __shfl_sync(0xffffffffu, sum, 31), before = sum - count;
            const u32 distance = first_record(args, level, lane) + begin - before;
#pragma unroll 1
            for (u32 at = 0; at < all; at += 32) {
                const u32 here = min(all - at, 32u), k = at + min(lane, here - 1);
                int chunk = 0; // the last one whose records begin at k or before
#pragma unroll
                for (int step = 16; step > 0; step /= 2) {
                    chunk += __shfl_sync(0xffffffffu, before, chunk + step) <= k ? step : 0;
                }
                f(__shfl_sync(0xffffffffu, distance, chunk) + k, here);
            }
        }
    }
    __device__ __forceinline__ Given load(u32 i) const {
        const TileLevel &level = levels.level[l];
        const u32 in_level = i - first_record(args, level, 0), size = u32(args.chunk_samples);
        const u32 first = in_level / size * size; // sample of the chunk
        return load_sample(args, level, image, head,
                           first + args.records[plane * args.records_per_plane + i]);
    }
};

// All samples of a level.
struct AllSamples {
    const Args &args;
    const TileLevel &level;
    int image, head;
    template <typename F> __device__ __forceinline__ void for_each(F f) const {
        const u32 all = u32(args.queries) * u32(level.points);
#pragma unroll 1
        for (u32 at = 0; at < all; at += 32) f(at + threadIdx.x % 32, min(all - at, 32u));
    }
    __device__ __forceinline__ Given load(u32 i) const {
        return load_sample(args, level, image, head, i);
    }
};

// Adds the samples of LINES image rows of a tile one after the other, as the definition says: lane
// c sums channel `channel` into sums[pixel * 32 + c]; pixels are counted from image row
// `first_line` of the tile. All lanes of a warp call this together. There may be samples that do
// not touch the tile.
template <int LINES, typename S>
__device__ __forceinline__ void add_in_order(const Args &args, const Levels &levels, const S &samples,
                                             const Tile &tile, int first_line, int image, int head,
                                             int channel, bool in_row, Wide *sums) {
    typedef typename Element<VALUE>::Stored Stored;
    const int lane = threadIdx.x % 32;
    const TileLevel &level = levels.level[tile.l];
    for (int pixel = 0; pixel < LINES * TILE_WIDTH; pixel++) sums[pixel * 32 + lane] = 0;
    samples.for_each([&](u32 record, u32 here) {
        Given own{0, {0, 0}, 0};
        bool counts = false;
        if (lane < here) {
            own = samples.load(record);
            if (FUSED) {
                Wide reference[FUSED ? FUSED : 1];
                load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                    args.reference.at(image, own.query, tile.l), reference);
                add_reference(reference, levels, tile.l, own.xy[0], own.xy[1]);
                const Softmax softmax =
                    args.softmax[(i64(image) * args.queries + own.query) * args.heads + head];
                own.weight = exp(own.weight - softmax.max) * softmax.scale;
            }
            counts = place(own.xy[0], own.xy[1], level);
        }
#pragma unroll 1
        for (u32 k = 0; k < here; k++) {
            const Wide x = __shfl_sync(0xffffffffu, own.xy[0], k);
            const Wide y = __shfl_sync(0xffffffffu, own.xy[1], k);
            const Wide w = __shfl_sync(0xffffffffu, own.weight, k);
            const int q = __shfl_sync(0xffffffffu, own.query, k);
            if (!__shfl_sync(0xffffffffu, int(counts), k) || !in_row) continue;
            const char *row = args.grad_output.at(image, q, head);
            const Wide gradient = Wide(widen<VALUE>(reinterpret_cast<const Stored *>(row)[channel]));
            const Wide left = floor(x), top = floor(y);
#pragma unroll
            for (int tap = 0; tap < (NEAREST ? 1 : 4); tap++) {
                const int i = int(left) + (tap & 1), j = int(top) + (tap >> 1);
                const int column = i - tile.x, line = j - tile.y - first_line;
                if (u32(column) >= TILE_WIDTH || u32(line) >= LINES) continue;
                if (i >= tile.width || j >= tile.height) continue;
                Wide share = 1;
                if (!NEAREST) {
                    share = (tap & 1 ? x - left : 1 - (x - left)) *
                            (tap >> 1 ? y - top : 1 - (y - top));
                }
                sums[(line * TILE_WIDTH + column) * 32 + lane] += w * share * gradient;
            }
        }
    });
    __syncwarp();
}
