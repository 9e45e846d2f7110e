// value_plain: the gradient of value, for any type, number of channels and strides.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// Threads: a warp computes 32 channels of a tile; lane c sums channel c of its 32 pixels. The
// warp goes through the sorted chunks of sort.cu: its lanes locate 32 samples at a time, and then
// all lanes add one sample after the other.
//
// Bound by: latency of memory, and instructions; several times slower than value.cu.
// Best for: what value.cu does not take: f64, GPUs before sm_80.
#include "backward/tiles.cuh"

// Macro besides those of tiles.cuh: WARPS.
constexpr int THREADS = 32 * WARPS;

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_backward_value_plain(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    load_levels(args, levels);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const i64 planes = i64(args.batch) * args.heads;
    const i64 chunks = (args.channels + 31) / 32;
    const i64 total = planes * chunks * levels.tiles;
#pragma unroll 1
    for (i64 work = i64(blockIdx.x) * WARPS + warp; work < total; work += i64(gridDim.x) * WARPS) {
        const int index = int(work / (planes * chunks));
        const i64 rest = work - index * (planes * chunks);
        const i64 plane = rest / chunks;
        const int channel = int(rest - plane * chunks) * 32 + lane;
        const bool in_row = channel < args.channels;
        const int image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
        const Tile tile = tile_at(levels, index);
        const RecordsOfRows samples{
            args, levels, plane, image, head, tile.l, tile.x / TILE_WIDTH, tile.y, TILE_HEIGHT};
        write_in_order(args, samples, tile, 0, TILE_HEIGHT, image, head, in_row ? channel : 0,
                       in_row);
    }
}
