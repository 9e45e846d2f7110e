// order: the queries of each image along a Z-curve over the places they look at.
//
//     0 1 | 4 5        64 x 64 cells of the unit square, numbered so that neighbours have near numbers;
//     2 3 | 6 7        queries are counted, and dealt out, cell by cell
//     ----+----
//     8 9 | ..         block 0 of a cluster:  queries 0..n      block 1:  n..2n      ...
//                      in a cell, those of block 0 come first, then those of block 1, ...
//
// A query's place is the mean of its first head's points on its first level, or its reference point. The blocks of a cluster
// share an image: each counts the cells of its queries in its own shared memory, reads the counts of the others to know where its own
// belong, and deals them out. Queries of one block and cell come in any order: no output depends on it.
#include "prelude.cuh"

// Knobs: LOCATION, BLOCK; POINTS of the first level, 1 for a reference point; CLUSTER blocks an image.
struct Args {
    const char *locations;
    i64 image, row; // bytes
    int queries, batch;
    int *order;
};

constexpr int SIDE = 64, CELLS = SIDE * SIDE, EACH = CELLS / BLOCK;
static_assert(EACH == 4, "a thread reads the counts of its cells at once");

// The cells of the queries lie behind their order.
__device__ __forceinline__ u16 *cells_of(const Args &args, int image) {
    return reinterpret_cast<u16 *>(args.order + i64(args.batch) * args.queries) + i64(image) * args.queries;
}

__device__ __forceinline__ int cell_of(const char *at) {
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
    return cell;
}

// All blocks that share an image come here before one goes on, and see what the others wrote.
__device__ __forceinline__ void meet() {
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// What block `rank` has at the same place of its shared memory.
__device__ __forceinline__ int4 theirs(const int4 *mine, int rank) {
#if CLUSTER > 1
    int4 v;
    u32 at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(u32(__cvta_generic_to_shared(mine))), "r"(rank));
    asm volatile("ld.shared::cluster.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at) : "memory");
    return v;
#else
    return *mine;
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_order(const __grid_constant__ Args args) {
    __shared__ int4 counts[BLOCK];
    __shared__ int sums[BLOCK / 32];
    int *count = reinterpret_cast<int *>(counts);
    const int rank = blockIdx.x, image = blockIdx.y;
    const int begin = int(i64(args.queries) * rank / CLUSTER), end = int(i64(args.queries) * (rank + 1) / CLUSTER);
    const char *locations = args.locations + image * args.image;
    u16 *cells = cells_of(args, image);
    int *order = args.order + i64(image) * args.queries;

    counts[threadIdx.x] = make_int4(0, 0, 0, 0);
    __syncthreads();
#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += BLOCK) {
        const int cell = cell_of(locations + q * args.row);
        cells[q] = u16(cell);
        atomicAdd(&count[cell], 1);
    }
    meet();

    // How many there are in each of the thread's cells, and how many of them come before this block's.
    int own[EACH] = {}, all[EACH] = {};
#pragma unroll
    for (int k = 0; k < CLUSTER; k++) {
        const int4 n = theirs(&counts[threadIdx.x], k);
        all[0] += n.x, all[1] += n.y, all[2] += n.z, all[3] += n.w;
        if (k < rank) own[0] += n.x, own[1] += n.y, own[2] += n.z, own[3] += n.w;
    }
    meet(); // all have read

    // Counts become first places: over the cells of a thread, then over the threads of a warp, then over the warps.
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) own[i] += sum, sum += all[i];
    int before = sum;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, before, step);
        if (lane >= step) before += other;
    }
    if (lane == 31) sums[warp] = before;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += sums[w];
    before -= sum;
    counts[threadIdx.x] = make_int4(before + own[0], before + own[1], before + own[2], before + own[3]);
    __syncthreads();
#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += BLOCK) order[atomicAdd(&count[cells[q]], 1)] = q;
}
