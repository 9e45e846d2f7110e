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
#include "common/level_table.cuh"
#include "common/taps.cuh"
#include "common/tensor.cuh"
#include "common/warp.cuh"

static_assert(UNIFORM_POINTS == 0 || UNIFORM_POINTS * LEVELS == SAMPLES, "samples of all levels");
static_assert(INLINE_LEVELS == 0 || INLINE_LEVELS >= LEVELS, "the table has all levels");
static_assert(FUSED == 0 || FUSED == 2 || FUSED == 4, "numbers per reference point");
typedef Element<VALUE>::Wide Wide;

constexpr int TILE_WIDTH = HOST_TILE_WIDTH, TILE_HEIGHT = HOST_TILE_HEIGHT,
              TILE_PIXELS = TILE_WIDTH * TILE_HEIGHT;

// An entry of the table of ends; and a record: the index of a sample in its chunk.
#if WIDE_ENDS
typedef u32 End, Record;
#else
typedef u16 End, Record;
#endif

struct Args {
    Strided locations, weights, reference, grad_output, grad_value;
    const i64 *shapes;       // (height, width) of each level; null if the table has them
    const i64 *starts;       // first position of each level; null if the table has them
    const LevelEntry *table; // null if the table is `level`
    Record *records;         // per plane, level and chunk, sorted; sums in value_atomic.cu
    End *ends;               // see Ends
    const Wide *softmax;     // FUSED: see softmax_of
    i64 records_per_plane;
    int batch, queries, heads, channels;
    int positions, bin_capacity;
    int chunks;        // of a level: at most 32
    int chunk_samples; // a multiple of 128
    int batch_samples; // that a block of sort.cu sorts at a time: fewer than 2^16
    int sample_words;  // words with a bit per sample of a plane and level: value_few.cu
    int band_bits;     // an image has 2^band_bits bands, from top to bottom: units.cuh
    LevelEntry level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
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
struct __align__(16) Levels { // so that a wide load reads no more than it
    TileLevel level[LEVELS];
    OffsetScale scale[KEEP_SCALES ? LEVELS : 1];
    int tiles;     // of all levels
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
    return OffsetScale{divide_once(Wide(1), Wide(level.width)),
                       divide_once(Wide(1), Wide(level.height))};
}

// Reads the table of levels, without the numbers of tiles and bins. A level that reaches past the
// end of value has no tiles. A thread reads a level; others may use it after a barrier.
__device__ __forceinline__ void read_levels(const Args &args, Levels &to) {
    for (int l = threadIdx.x; l < LEVELS; l += blockDim.x) {
        const LevelSize from(args, l, LEVELS, SAMPLES);
        TileLevel level;
        level.height = from.legal ? int(from.height) : 0,
        level.width = from.legal ? int(from.width) : 0;
        level.origin = int(from.origin()), level.pitch = int(from.pitch());
        level.first_sample = int(from.first_sample), level.points = int(from.points());
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

// FUSED: the weights of a plane and level, by the index of the sample.
__device__ __forceinline__ const Wide *softmax_of(const Args &args, const TileLevel &level,
                                                  i64 plane) {
    return args.softmax + (plane * SAMPLES + level.first_sample) * args.queries;
}

// FUSED: from an offset to a location on level l, given the reference point of the query.
__device__ __forceinline__ void add_reference(const Wide (&reference)[FUSED ? FUSED : 1],
                                              const Levels &levels, int l, Wide &x, Wide &y) {
    const OffsetScale scale =
        KEEP_SCALES ? levels.scale[KEEP_SCALES ? l : 0] : scale_of(levels.level[l]);
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
__device__ __forceinline__ int bin_of(const Levels &levels, const TileLevel &level, Wide x,
                                      Wide y) {
    const int left = int(floor(x)), row = max(int(floor(y)), 0);
    const int strip = max(left, 0) >> 3, last = min(left + 1, level.width - 1) >> 3;
    const int reach = NEAREST ? 0 : last - strip; // 1: it touches the next strip
    return 2 * ((row * level.strips() + strip) >> levels.bin_shift) + reach;
}
static_assert(TILE_WIDTH == 8, "shifts by 3");
static_assert(HOST_MAX_CHUNKS <= 32, "a lane takes a chunk");

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
    int l;               // its level
    int x, y;            // its first pixel
    int width, height;   // of the level
    int position, pitch; // of its first pixel; from row to row
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
    __device__ __forceinline__ Ends(const Args &args, const TileLevel &level, i64 plane,
                                    int chunk) {
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
__device__ __forceinline__ int2 bins_of_cell(const TileLevel &level, int shift, int strip,
                                             int row) {
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

// A sample in pixels of its level.
struct PlacedSample {
    int query;
    Wide x, y, weight;
    bool counts;
};

// The samples that touch some image rows of a strip, and some more if bins are shared.
struct RecordsOfRows {
    const Args &args;
    const Levels &levels;
    i64 plane;
    int image, head, l, strip, row, rows;
    // Not read from `args` for each sample: a function that is not inlined waits long for
    // parameters.
    const char *gradients = args.grad_output.at(image, 0, head);
    i64 gradient_stride = args.grad_output.stride[1];

    // Calls f(place of this lane's record in the plane, the lanes that have one) for up to 32
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
                f(__shfl_sync(0xffffffffu, distance, chunk) + k, ~0u >> (32 - here));
            }
        }
    }
    __device__ __forceinline__ PlacedSample load(u32 i) const {
        const TileLevel &level = levels.level[l];
        const u32 in_level = i - first_record(args, level, 0), size = u32(args.chunk_samples);
        const u32 first = in_level / size * size; // sample of the chunk
        const u32 index = first + args.records[plane * args.records_per_plane + i];
        int sample;
        const int query = query_of_sample(index, level, sample);
        Wide xy[2], weight[1];
        load_wide<LOCATION, 2, LOCATION_ALIGN>(
            args.locations.at(image, query, head) + i64(sample) * (2 * size_of<LOCATION>), xy);
        if (FUSED) {
            weight[0] = softmax_of(args, level, plane)[index];
        } else {
            load_wide<WEIGHT, 1, WEIGHT_ALIGN>(
                args.weights.at(image, query, head) + i64(sample) * size_of<WEIGHT>, weight);
        }
        if (FUSED) {
            Wide reference[FUSED ? FUSED : 1];
            load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                args.reference.at(image, query, l), reference);
            add_reference(reference, levels, l, xy[0], xy[1]);
        }
        const bool counts = place(xy[0], xy[1], level);
        return PlacedSample{query, xy[0], xy[1], weight[0], counts};
    }
    // A number of grad_output.
    __device__ __forceinline__ Wide gradient(int query, int channel) const {
        const char *row = gradients + query * gradient_stride;
        return Wide(widen<VALUE>(reinterpret_cast<const Element<VALUE>::Stored *>(row)[channel]));
    }
};

// Whether a sample touches a tile in `lines` image rows from `first_row` on.
__device__ __forceinline__ bool touches(const PlacedSample &sample, const Tile &tile, int first_row,
                                        int lines) {
    const int left = int(floor(sample.x)), top = int(floor(sample.y));
    return sample.counts && left + 1 >= tile.x && left < tile.x + TILE_WIDTH &&
           top + 1 >= first_row && top < first_row + lines;
}

// Calls f(lane, its gradient in `channel`) for the lanes whose sample is `wanted`, one after the
// other. All lanes of a warp call this together.
template <typename S, typename F>
__device__ __forceinline__ void for_each_gradient(const S &samples, const PlacedSample &own,
                                                  bool wanted, int channel, F f) {
    constexpr int AT_ONCE = 8; // loads in flight
    u32 rest = __ballot_sync(0xffffffffu, wanted);
#pragma unroll 1
    while (rest != 0) {
        int from[AT_ONCE]; // lanes; -1: none
        Wide gradient[AT_ONCE];
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++, rest &= rest - 1) {
            from[u] = __ffs(int(rest)) - 1;
            // Without a branch: the next load would wait for the end of this one.
            const int query = __shfl_sync(0xffffffffu, own.query, from[u] < 0 ? from[0] : from[u]);
            gradient[u] = samples.gradient(query, channel);
        }
#pragma unroll
        for (int u = 0; u < AT_ONCE; u++) {
            if (from[u] >= 0) f(from[u], gradient[u]);
        }
    }
}

// Calls add(pixel, term) for the terms of the samples that the lanes of a warp have, sample after
// sample, in `lines` image rows of a tile from `first_row` on; pixels are counted from there. Lane
// c has channel `channel`. All lanes of a warp call this together.
template <typename S, typename F>
__device__ __forceinline__ void for_each_term(const S &samples, const PlacedSample &own,
                                              const Tile &tile, int first_row, int lines,
                                              int channel, F add) {
    const bool wanted = touches(own, tile, first_row, lines);
    for_each_gradient(samples, own, wanted, channel, [&](int from, Wide gradient) {
        const Wide x = __shfl_sync(0xffffffffu, own.x, from);
        const Wide y = __shfl_sync(0xffffffffu, own.y, from);
        const Wide w = __shfl_sync(0xffffffffu, own.weight, from);
        for_each_tap(x, y, tile, [&](const auto &tap) {
            const int column = tap.column - tile.x, line = tap.row - first_row;
            if (u32(column) >= TILE_WIDTH || u32(line) >= u32(lines)) return;
            add(line * TILE_WIDTH + column, w * tap.share() * gradient);
        });
    });
}

// Computes `lines` image rows of a tile by the definition: adds the samples one after the other.
// Lane c computes channel `channel`, and stores it if `in_row`. All lanes of a warp call this
// together. There may be samples that do not touch these rows.
template <typename S>
__device__ __forceinline__ void write_in_order(const Args &args, const S &samples, const Tile &tile,
                                               int first_line, int lines, int image, int head,
                                               int channel, bool in_row) {
    typedef typename Element<VALUE>::Stored Stored;
    const int lane = threadIdx.x % 32;
    Wide sums[TILE_PIXELS]; // in local memory
    for (int pixel = 0; pixel < TILE_PIXELS; pixel++) sums[pixel] = 0;
    samples.for_each([&](u32 record, u32 lanes) {
        PlacedSample own{0, 0, 0, 0, false};
        if (lanes >> lane & 1) own = samples.load(record);
        for_each_term(samples, own, tile, tile.y + first_line, lines, channel,
                      [&](int pixel, Wide term) { sums[pixel] += term; });
    });
    for (int i = 0; i < lines * TILE_WIDTH && in_row; i++) {
        const int pixel = first_line * TILE_WIDTH + i;
        if (!tile.has(pixel)) continue;
        char *row = args.grad_value.at(image, tile.position_of(pixel), head);
        reinterpret_cast<Stored *>(row)[channel] = narrow<VALUE>(sums[i]);
    }
    __syncwarp();
}
