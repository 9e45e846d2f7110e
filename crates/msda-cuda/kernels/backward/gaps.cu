// gaps: zeros in the gradient of value at positions that are not pixels: between levels, in the
// ring around a level, and everywhere if there are no samples.
//
// Threads: a warp per position, image and head, with a grid-stride loop.
#include "backward/tiles.cuh"

// Macro besides those of tiles.cuh: CLEAR_ALL: pixels too.
extern "C" __global__ void __launch_bounds__(256)
    msda_backward_gaps(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    load_levels(args, levels);
    typedef typename Element<VALUE>::Stored Stored;
    const i64 total = i64(args.positions) * args.batch * args.heads, lane = threadIdx.x % 32;
#pragma unroll 1
    for (i64 i = (i64(blockIdx.x) * 256 + threadIdx.x) / 32; i < total; i += i64(gridDim.x) * 8) {
        const int position = int(i / args.heads % args.positions);
        bool pixel = false;
        for (int l = 0; l < LEVELS && !CLEAR_ALL; l++) {
            const TileLevel &level = levels.level[l];
            const int offset = position - level.origin;
            if (level.width == 0 || offset < 0) continue;
            const int row = offset / level.pitch, column = offset - row * level.pitch;
            pixel = pixel || (row < level.height && column < level.width);
        }
        if (pixel) continue;
        char *row = args.grad_value.at(i / args.heads / args.positions, position, i % args.heads);
        for (i64 c = lane; c < args.channels; c += 32) reinterpret_cast<Stored *>(row)[c] = 0;
    }
}
