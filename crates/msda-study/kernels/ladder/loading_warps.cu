// loading_warps: one or two warps of a block only load locations and weights, the others do the
// rest (loaders.cuh).
//
//   LOADERS                     warps that load
//   SAMPLES_PER_PASS BUFFERS    samples per query in a buffer; number of buffers
//
// Bound by: as base, the L1 data path: every lane reads each sample from shared memory and locates
// it.
// Best for: inputs that arrive late. The other warps never wait for locations; but rows cannot be
// loaded before they are known.
#include "ladder/loaders.cuh"

struct Args {
    Call call;
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS)
    msda_forward(const __grid_constant__ Args args) {
    __shared__ InputBuffers buffers;
    buffers.init();
    __syncthreads();
    const Call &call = args.call;
    const int image = blockIdx.z, head = blockIdx.y;
    const Tiles tiles{image, head, int(blockIdx.x) * QUERIES_PER_TILE, call.queries,
                      int(gridDim.x) * QUERIES_PER_TILE};
    Cursor cursor{0, 0};
    if (is_loader()) {
        load_tiles(buffers, cursor, call, tiles);
        return;
    }
    const int row_offset = (int(threadIdx.x) - LOADING_THREADS) % LANES_PER_ROW * VEC;
    const char *base = opaque(call.value.at(image, 0, head) + row_offset);
    sum_tiles(
        buffers, cursor, call, tiles,
        [&](float (&sum)[CHANNELS_PER_LANE], int, const Taps &taps) {
            add_taps(sum, base, call.value.row_stride, taps);
        },
        [&](int query, float (&sum)[CHANNELS_PER_LANE]) {
            store_output(call, image, query, head, row_offset, sum);
        });
}
