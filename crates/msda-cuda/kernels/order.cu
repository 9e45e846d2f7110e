// order: the queries of each image along a Z-curve over the places they look at.
//
//     0 1 | 4 5        64 x 64 cells of the unit square, numbered so that neighbours have near numbers;
//     2 3 | 6 7        queries are counted, and dealt out, cell by cell
//     ----+----
//     8 9 | ..
//
// A query's place is the mean of its first head's points on its first level, or its reference point. Places are far apart in
// memory, so that all of the machine looks for them (msda_cells); dealing out is done by one block an image
// (msda_order). Queries of one cell come in any order: no output depends on it.
#include "prelude.cuh"

// Knobs: LOCATION, BLOCK; POINTS of the first level, 1 for a reference point.
struct Args {
    const char *locations;
    i64 image, row; // bytes
    int queries, batch;
    int *order;
};

constexpr int SIDE = 64, CELLS = SIDE * SIDE, EACH = CELLS / BLOCK;

// The cells of the queries lie behind their order.
__device__ __forceinline__ u16 *cells_of(const Args &args, int image) {
    return reinterpret_cast<u16 *>(args.order + i64(args.batch) * args.queries) + i64(image) * args.queries;
}

extern "C" __global__ void __launch_bounds__(256) msda_cells(const __grid_constant__ Args args) {
    const int q = blockIdx.x * 256 + threadIdx.x;
    if (q >= args.queries) return;
    const char *at = args.locations + i64(blockIdx.y) * args.image + q * args.row;
    float x = 0, y = 0;
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
        float xy[2];
        read<LOCATION, 2, size_of<LOCATION>>(at + p * (2 * size_of<LOCATION>), xy);
        x += xy[0], y += xy[1];
    }
    // What is not finite ends in some cell.
    const int i = min(max(int(x * (float(SIDE) / POINTS)), 0), SIDE - 1);
    const int j = min(max(int(y * (float(SIDE) / POINTS)), 0), SIDE - 1);
    int cell = 0;
#pragma unroll
    for (int bit = 0; bit < 6; bit++) cell |= (i >> bit & 1) << (2 * bit) | (j >> bit & 1) << (2 * bit + 1);
    cells_of(args, blockIdx.y)[q] = u16(cell);
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_order(const __grid_constant__ Args args) {
    __shared__ int count[CELLS];
    __shared__ int sums[BLOCK / 32];
    const u16 *cells = cells_of(args, blockIdx.x);
    int *order = args.order + i64(blockIdx.x) * args.queries;
    for (int i = threadIdx.x; i < CELLS; i += BLOCK) count[i] = 0;
    __syncthreads();
#pragma unroll 8
    for (int q = threadIdx.x; q < args.queries; q += BLOCK) atomicAdd(&count[cells[q]], 1);
    __syncthreads();

    // Counts become first places: EACH cells a thread, then over the threads of a warp, then over the warps.
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int own[EACH], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        own[i] = sum;
        sum += count[threadIdx.x * EACH + i];
    }
    int before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += sums[w];
#pragma unroll
    for (int i = 0; i < EACH; i++) count[threadIdx.x * EACH + i] = before - sum + own[i];
    __syncthreads();
#pragma unroll 8
    for (int q = threadIdx.x; q < args.queries; q += BLOCK) order[atomicAdd(&count[cells[q]], 1)] = q;
}
