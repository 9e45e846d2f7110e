// order: the queries of each image along a Z-curve over the places they look at.
//
//     0 1 | 4 5        64 x 64 cells of the unit square, numbered so that neighbours have near numbers;
//     2 3 | 6 7        queries are counted, and dealt out, cell by cell
//     ----+----
//     8 9 | ..         block 0 of a cluster:  queries 0..n      block 1:  n..2n      ...
//                      in a cell, those of block 0 come first, then those of block 1, ...
//
// A query's place is the mean of its first head's points on its first level, of at most eight, or its reference point. The blocks of a cluster
// share an image: each counts the cells of its queries in its own shared memory; each adds up the counts of a share of the cells over all
// blocks and tells every block where its queries of those cells go; each deals out its own. Queries of one block and cell come in any order:
// no output depends on it.
#include "prelude.cuh"

// Knobs: LOCATION, BLOCK; POINTS of the first level, 1 for a reference point; CLUSTER blocks an image.
struct Args {
    const char *locations;
    i64 image, row; // bytes
    int queries, batch;
    int *order;
};

constexpr int SIDE = 64, CELLS = SIDE * SIDE;
constexpr int SHARE = CELLS / CLUSTER;                 // cells that a block of a cluster adds up
constexpr int EACH = SHARE > BLOCK ? SHARE / BLOCK : 1; // of them, those of a thread
constexpr bool WHOLE = SHARE >= BLOCK;                 // every thread has some

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
    __syncwarp();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();
#endif
}

// The address of something of this block's shared memory in that of block `rank`.
__device__ __forceinline__ u32 in(int rank, const int *mine) {
    u32 at = u32(__cvta_generic_to_shared(mine));
#if CLUSTER > 1
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(at) : "r"(rank));
#endif
    return at;
}

__device__ __forceinline__ int get(u32 at) {
    int x;
#if CLUSTER > 1
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
#else
    asm volatile("ld.shared.s32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
#endif
    return x;
}

__device__ __forceinline__ void set(u32 at, int x) {
#if CLUSTER > 1
    asm volatile("st.shared::cluster.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
#else
    asm volatile("st.shared.s32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
#endif
}

extern "C" __global__ void __launch_bounds__(BLOCK) msda_order(const __grid_constant__ Args args) {
    __shared__ int count[CELLS];   // of this block's queries in each cell; then where among those of a share the next of them goes
    __shared__ int sums[BLOCK / 32];
    __shared__ int shares[CLUSTER]; // queries in each block's share of the cells
    const int rank = blockIdx.x, image = blockIdx.y;
    const int begin = int(i64(args.queries) * rank / CLUSTER), end = int(i64(args.queries) * (rank + 1) / CLUSTER);
    const char *locations = args.locations + image * args.image;
    u16 *cells = cells_of(args, image);
    int *order = args.order + i64(image) * args.queries;

    for (int i = threadIdx.x; i < CELLS; i += BLOCK) count[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += BLOCK) {
        const int cell = cell_of(locations + q * args.row);
        cells[q] = u16(cell);
        atomicAdd(&count[cell], 1);
    }
    meet();

    // Counts of the block's share of the cells, of all blocks, become first places within the share: over the blocks, over the cells of a
    // thread, over the threads of a warp, over the warps.
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int place[EACH][CLUSTER], sum = 0;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int cell = rank * SHARE + threadIdx.x * EACH + i;
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) place[i][k] = WHOLE || threadIdx.x < SHARE ? get(in(k, &count[cell])) : 0;
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) {
            const int n = place[i][k];
            place[i][k] = sum;
            sum += n;
        }
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
    if (threadIdx.x == BLOCK - 1) {
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) set(in(k, &shares[rank]), before);
    }
    before -= sum;
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        const int cell = rank * SHARE + threadIdx.x * EACH + i;
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) {
            if (WHOLE || threadIdx.x < SHARE) set(in(k, &count[cell]), before + place[i][k]);
        }
    }
    meet();

#pragma unroll 4
    for (int q = begin + threadIdx.x; q < end; q += BLOCK) {
        const int cell = cells[q];
        int at = atomicAdd(&count[cell], 1);
#pragma unroll
        for (int k = 0; k < CLUSTER; k++) at += k < cell / SHARE ? shares[k] : 0; // those in the shares before
        order[at] = q;
    }
}
