// order: sorts the queries of each image along a Z-curve over the locations that they sample.
// Neighbours in this order read the same rows; streaming.cu visits queries in it (ORDERED).
//
//     0 1 | 4 5        64 x 64 cells of the unit square, numbered along the Z-curve;
//     2 3 | 6 7        a counting sort by cell
//     ----+----
//     8 9 | ..         block 0 of a cluster:  queries 0..n      block 1:  n..2n      ...
//                      in a cell, the queries of block 0 come first, then those of block 1, ...
//
// The location of a query is its reference point, or the mean of its first head's points on the
// first level (at most eight of them). Points off the map do not count, unless all are.
//
// Threads: a cluster of CLUSTER blocks per image (one block before sm_90).
//   1. Each block counts the cells of its queries in its own shared memory.
//   2. Each block computes the prefix sum of the counts of all blocks over its share of the cells,
//      and writes the results to the shared memory of every block.
//   3. Each block writes its queries to their places.
// The order of queries of one block and cell varies from run to run; no output depends on it.
//
// Bound by: latency, of atomics and cluster barriers.
// Best for: many queries in no spatial order, where it costs less than the cache misses it avoids.
#include "common/memory.cuh"
#include "common/warp.cuh"

// Macros: LOCATION (element type), THREADS, CLUSTER; POINTS, whose mean is taken; see CHECK_ARGS.
struct Args {
    const char *locations;
    i64 image_stride, query_stride; // in bytes
    int queries, batch;
    int *order; // the order of each image's queries, then the cells of all queries (u16)
};
CHECK_ARGS;

static_assert(THREADS % 32 == 0 && THREADS <= 1024, "whole warps of one block");
static_assert(CLUSTER >= 1 && CLUSTER <= 8, "blocks of a cluster that every GPU runs");
constexpr int GRID = 64, CELLS = GRID * GRID;
constexpr int CELLS_PER_BLOCK = CELLS / CLUSTER; // in step 2
constexpr int CELLS_PER_THREAD = CELLS_PER_BLOCK > THREADS ? CELLS_PER_BLOCK / THREADS : 1;
static_assert(CELLS % CLUSTER == 0 && CELLS_PER_BLOCK <= CELLS_PER_THREAD * THREADS, "every cell");
constexpr bool ALL_THREADS_HAVE_CELLS = CELLS_PER_BLOCK >= THREADS;

__device__ __forceinline__ u16 *cells_of(const Args &args, int image) {
    u16 *cells = reinterpret_cast<u16 *>(args.order + i64(args.batch) * args.queries);
    return cells + i64(image) * args.queries;
}

__device__ __forceinline__ int cell_of(const char *locations) {
    float x = 0, y = 0, all_x = 0, all_y = 0;
    int count = 0;
#pragma unroll
    for (int p = 0; p < POINTS; p++) {
        float xy[2];
        load_widened<LOCATION, 2, size_of<LOCATION>>(locations + p * (2 * size_of<LOCATION>), xy);
        all_x += xy[0], all_y += xy[1];
        // False for NaN.
        if (fabsf(xy[0] - 0.5f) <= 0.5f && fabsf(xy[1] - 0.5f) <= 0.5f)
            x += xy[0], y += xy[1], count++;
    }
    if (count == 0) x = all_x, y = all_y, count = POINTS;
    // NaN and infinity end in some cell.
    const float cells = float(GRID) / float(count);
    const int i = min(max(int(x * cells), 0), GRID - 1);
    const int j = min(max(int(y * cells), 0), GRID - 1);
    int cell = 0;
#pragma unroll
    for (int bit = 0; bit < 6; bit++) {
        cell |= (i >> bit & 1) << (2 * bit) | (j >> bit & 1) << (2 * bit + 1);
    }
    return cell;
}

// A barrier for all blocks of an image; afterwards each sees what the others wrote.
__device__ __forceinline__ void cluster_barrier() {
    __syncwarp();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
#else
    __syncthreads();
#endif
}

// The address of `mine`, in this block's shared memory, in the shared memory of block `rank`.
__device__ __forceinline__ u32 address_in(int rank, const int *mine) {
    u32 address = u32(__cvta_generic_to_shared(mine));
#if CLUSTER > 1
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

__device__ __forceinline__ int ld_cluster(u32 address) {
    int x;
#if CLUSTER > 1
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
#else
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(address) : "memory");
#endif
    return x;
}

__device__ __forceinline__ void st_cluster(u32 address, int x) {
#if CLUSTER > 1
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
#else
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_order(const __grid_constant__ Args args) {
    // Per cell: first the number of this block's queries, then the index, within the cells of one
    // block of step 2, at which its next query goes.
    __shared__ int count[CELLS];
    __shared__ int warp_sums[THREADS / 32];
    __shared__ int block_sums[CLUSTER]; // queries in the cells of each block of step 2
    const int rank = blockIdx.x, image = blockIdx.y;
    const int begin = int(i64(args.queries) * rank / CLUSTER);
    const int end = int(i64(args.queries) * (rank + 1) / CLUSTER);
    const char *locations = args.locations + image * args.image_stride;
    u16 *cells = cells_of(args, image);
    int *order = args.order + i64(image) * args.queries;

    for (int i = threadIdx.x; i < CELLS; i += THREADS) count[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += THREADS) {
        const int cell = cell_of(locations + q * args.query_stride);
        cells[q] = u16(cell);
        atomicAdd(&count[cell], 1);
    }
    cluster_barrier();

    // The prefix sum: over the blocks, the cells of a thread, the threads of a warp, the warps.
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int index[CELLS_PER_THREAD][CLUSTER], sum = 0;
#pragma unroll
    for (int i = 0; i < CELLS_PER_THREAD; i++) {
        const int cell = rank * CELLS_PER_BLOCK + threadIdx.x * CELLS_PER_THREAD + i;
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) {
            const bool has_cell = ALL_THREADS_HAVE_CELLS || threadIdx.x < CELLS_PER_BLOCK;
            index[i][k] = has_cell ? ld_cluster(address_in(k, &count[cell])) : 0;
        }
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) {
            const int n = index[i][k];
            index[i][k] = sum;
            sum += n;
        }
    }
    int before = int(sum_up_to_lane(u32(sum)));
    if (lane == 31) warp_sums[warp] = before;
    __syncthreads();
    for (int w = 0; w < warp; w++) before += warp_sums[w];
    if (threadIdx.x == THREADS - 1) {
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) st_cluster(address_in(k, &block_sums[rank]), before);
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < CELLS_PER_THREAD; i++) {
        const int cell = rank * CELLS_PER_BLOCK + threadIdx.x * CELLS_PER_THREAD + i;
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) {
            if (ALL_THREADS_HAVE_CELLS || threadIdx.x < CELLS_PER_BLOCK) {
                st_cluster(address_in(k, &count[cell]), before + index[i][k]);
            }
        }
    }
    cluster_barrier();

#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += THREADS) {
        const int cell = cells[q];
        int at = atomicAdd(&count[cell], 1);
        // The cells of the blocks before come first.
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) at += k < cell / CELLS_PER_BLOCK ? block_sums[k] : 0;
        order[at] = q;
    }
}
