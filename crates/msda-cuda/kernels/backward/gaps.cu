// gaps: zeros in the gradient of value at positions that are not pixels: between levels, in the
// ring around a level, and everywhere if there are no samples.
//
// Threads: a warp per 32 positions of an image, with a grid-stride loop. Each lane tests one
// position, then all lanes clear the positions that are not pixels, one after the other.
#include "backward/tiles.cuh"

// Macro besides those of tiles.cuh: CLEAR_ALL: pixels too.

// Whether every position is a pixel. False also where levels in another order leave no gap.
__device__ __forceinline__ bool no_gaps(const Args &args, const Levels &levels) {
    if (RING || CLEAR_ALL) return false;
    int end = 0; // all positions before it are pixels
    for (int l = 0; l < LEVELS; l++) {
        const TileLevel &level = levels.level[l];
        if (level.width > 0 && level.origin <= end)
            end = max(end, level.origin + level.height * level.width);
    }
    return end == args.positions;
}

__device__ __forceinline__ bool is_pixel(const Levels &levels, int position) {
    bool pixel = false;
#pragma unroll 1
    for (int l = 0; l < LEVELS && !CLEAR_ALL; l++) {
        const TileLevel &level = levels.level[l];
        const int offset = position - level.origin;
        if (level.width == 0 || offset < 0) continue;
        const int row = offset / level.pitch, column = offset - row * level.pitch;
        pixel = pixel || (row < level.height && column < level.width);
    }
    return pixel;
}

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_gaps(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    load_levels(args, levels);
    if (no_gaps(args, levels)) return;
    typedef typename Element<VALUE>::Stored Stored;
    const int lane = threadIdx.x % 32;
    const i64 per_image = (i64(args.positions) + 31) / 32;
#pragma unroll 1
    for (i64 i = (i64(blockIdx.x) * 256 + threadIdx.x) / 32; i < per_image * args.batch;
         i += i64(gridDim.x) * 8) {
        const i64 image = i / per_image;
        const int first = int(i - image * per_image) * 32, position = first + lane;
        const bool gap = position < args.positions && !is_pixel(levels, position);
        for (u32 rest = __ballot_sync(0xffffffffu, gap); rest != 0; rest &= rest - 1) {
            const int cleared = first + __ffs(rest) - 1;
            for (int head = 0; head < args.heads; head++) {
                char *row = args.grad_value.at(image, cleared, head);
                for (int c = lane; c < args.channels; c += 32)
                    reinterpret_cast<Stored *>(row)[c] = 0;
            }
        }
    }
}
