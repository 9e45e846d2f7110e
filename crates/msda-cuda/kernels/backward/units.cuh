// Units: how value.cu divides the work among blocks and warps.
#pragma once
#include "backward/tiles.cuh"

// Macros of the host: see value.rs.
constexpr int WARPS = HOST_WARPS, THREADS = 32 * WARPS;
// Image rows of a unit of a warp, and of a block.
constexpr int ROWS = HOST_ROWS, HEAVY_ROWS = HOST_HEAVY_ROWS;
constexpr int HEAVY_FROM = HOST_HEAVY_FROM; // samples of a warp's unit from which levels are heavy

// How the levels of a plane are divided into bundles of units. A block takes a bundle at a time:
// one heavy unit, or a unit per warp.
struct Bundles {
    int first[LEVELS]; // the first bundle, by the order in which levels are visited
    bool heavy[LEVELS];
    bool ascending; // whether that order is ascending
    int count;      // of a plane
    __device__ __forceinline__ int level_at(int i) const { return ascending ? i : LEVELS - 1 - i; }
    __device__ __forceinline__ int end(int i) const {
        return i + 1 < LEVELS ? first[i + 1] : count;
    }
    // The bundles of the i-th level in the bands before a band.
    __device__ __forceinline__ u32 before_band(const Args &args, int i, int band) const {
        return u32(u64(end(i) - first[i]) * u32(band) >> args.band_bits);
    }

    // One thread calls this.
    __device__ __forceinline__ void divide(const Args &args, const Levels &levels) {
        i64 sum = 0;
        // From the level with the fewest cells, and the most samples per cell, to the largest.
        ascending = levels.level[0].cells() < levels.level[LEVELS - 1].cells();
        for (int i = 0; i < LEVELS; i++) {
            const int l = level_at(i);
            const TileLevel &level = levels.level[l];
            const i64 samples = i64(args.queries) * level.points * ROWS;
            heavy[l] = samples > i64(HEAVY_FROM) * level.cells();
            first[i] = int(sum);
            const int rows = heavy[l] ? HEAVY_ROWS : ROWS;
            const int units = level.strips() * ((level.height + rows - 1) / rows);
            sum += heavy[l] ? units : (units + WARPS - 1) / WARPS;
            // Only levels that overlap can have more.
            sum = min(sum, (i64(1) << 31) / (i64(args.batch) * args.heads));
        }
        count = int(sum);
    }
};
// A unit of work: image rows `first` to `end` of a strip of a plane.
struct Unit {
    const Args &args;
    const Levels &levels;
    i64 plane;
    int image, head;
    int l, strip, first, end;
    __device__ __forceinline__ const TileLevel &level() const { return levels.level[l]; }
    __device__ __forceinline__ int first_top() const { return max(first - 1, 0); }
    __device__ __forceinline__ int first_column() const { return strip * TILE_WIDTH; }
    __device__ __forceinline__ bool has_rows() const { return first < end; }
};

// A bundle of units, by its number over all planes. What blocks load should stay in L2:
//
//   one band       blocks compute two heads of an image at a time (one, if the number of heads is
//                  odd), level by level. They compute all heads of the last image at a time, so
//                  that heavy units are not among the last ones
//   several bands  two heads are too much. Blocks compute a band of the image at a time, in all
//                  heads, level by level: its samples are those of queries nearby
struct Bundle {
    int image, head, l;
    u32 index; // in the level
    bool heavy;

    __device__ __forceinline__ Bundle(const Args &args, const Bundles &bundles, u32 number) {
        const u32 count = u32(bundles.count), of_image = count * args.heads;
        image = number / of_image;
        u32 rest = number - image * of_image;
        const bool all_heads = args.band_bits > 0 || image + 1 == args.batch;
        const u32 heads = all_heads ? args.heads : args.heads % 2 == 0 ? 2 : 1;
        const u32 turn = rest / (count * heads); // of `heads` heads
        rest -= turn * (count * heads);
        // The band, the level and the bundles that it has in the band.
        int band = 0, visited = 0;
        u32 first, here;
#pragma unroll 1
        while (true) {
            first = bundles.before_band(args, visited, band);
            here = bundles.before_band(args, visited, band + 1) - first;
            if (rest < here * heads) break;
            rest -= here * heads;
            if (++visited == LEVELS) visited = 0, band++;
        }
        const u32 in_turn = rest / here;
        head = int(turn * heads + in_turn), index = first + rest - in_turn * here;
        l = bundles.level_at(visited), heavy = bundles.heavy[l];
    }
    // Unit u of the bundle: neighbouring strips. It may have no rows.
    __device__ __forceinline__ Unit unit_at(const Args &args, const Levels &levels, int u) const {
        const TileLevel &level = levels.level[l];
        const u32 unit = index * (heavy ? 1 : WARPS) + u;
        const int rows = heavy ? HEAVY_ROWS : ROWS;
        const int down = int(unit / u32(level.strips())), strip = int(unit) - down * level.strips();
        const u32 plane = u32(image) * args.heads + head;
        const int first = rows * down, end = min(first + rows, level.height);
        return Unit{args, levels, plane, image, head, l, strip, first, end};
    }
};
