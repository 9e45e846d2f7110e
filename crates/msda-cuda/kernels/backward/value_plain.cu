// value_plain: the gradient of value, for any type, number of channels and strides.
//
//   grad_value[pixel, channel] =
//       sum over samples of share[pixel, sample] * grad_output[sample, channel]
//
// Threads: a block computes 32 channels of a tile; lane c sums channel c of its 32 pixels. The
// block goes through the sorted chunks of sort.cu, 32 samples per warp: the lanes of a warp locate
// them, and then add one after the other to the warp's own sums in shared memory. At the end the
// sums of all warps are added, in the order of the warps.
//
// Bound by: latency of memory, and instructions; several times slower than value.cu.
// Best for: what value.cu does not take: f64, GPUs before sm_80.
#include "backward/tiles.cuh"

// Macro besides those of tiles.cuh: WARPS.
constexpr int THREADS = 32 * WARPS;
extern __shared__ double shared_memory[]; // WARPS * TILE_PIXELS * 32 numbers of type Wide

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_backward_value_plain(const __grid_constant__ Args args) {
    typedef typename Element<VALUE>::Stored Stored;
    __shared__ Levels levels;
    load_levels(args, levels);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    Wide(*all_sums)[TILE_PIXELS][32] = reinterpret_cast<Wide(*)[TILE_PIXELS][32]>(shared_memory);
    Wide(*sums)[32] = all_sums[warp];
    const i64 planes = i64(args.batch) * args.heads;
    const i64 chunks = (args.channels + 31) / 32;
    const i64 total = planes * chunks * levels.tiles;
#pragma unroll 1
    for (i64 work = blockIdx.x; work < total; work += gridDim.x) {
        const int index = int(work / (planes * chunks));
        const i64 rest = work - index * (planes * chunks);
        const i64 plane = rest / chunks;
        const int channel = int(rest - plane * chunks) * 32 + lane;
        const bool in_row = channel < args.channels;
        const int image = int(plane / args.heads), head = int(plane - i64(image) * args.heads);
        const Tile tile = tile_at(levels, index);
        const RecordsOfRows samples{
            args, levels, plane, image, head, tile.l, tile.x / TILE_WIDTH, tile.y, TILE_HEIGHT};
        for (int pixel = 0; pixel < TILE_PIXELS; pixel++) sums[pixel][lane] = 0;
        int turn = 0; // the warp that adds the next samples
        samples.for_each([&](u32 record, u32 lanes) {
            const bool is_own = turn == warp;
            turn = turn + 1 < WARPS ? turn + 1 : 0;
            if (!is_own) return;
            PlacedSample own{0, 0, 0, 0, false};
            if (lanes >> lane & 1) own = samples.load(record);
            for_each_term(samples, own, tile, tile.y, TILE_HEIGHT, in_row ? channel : 0,
                          [&](int pixel, Wide term) { sums[pixel][lane] += term; });
        });
        __syncthreads();
        for (int pixel = warp; pixel < TILE_PIXELS; pixel += WARPS) {
            if (!in_row || !tile.has(pixel)) continue;
            Wide sum = 0;
            for (int w = 0; w < WARPS; w++) sum += all_sums[w][pixel][lane];
            char *row = args.grad_value.at(image, tile.position_of(pixel), head);
            reinterpret_cast<Stored *>(row)[channel] = narrow<VALUE>(sum);
        }
        __syncthreads();
    }
}
