// Two small kernels that test the compiler, the cache and the device. `ELEMENT` is the type of the
// numbers.
#include "selftest.cuh"
#include "selftest.cuh"

extern "C" __global__ void selftest_add(ELEMENT *to, const ELEMENT *from, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) to[i] += doubled(from[i]);
}

// Reverses the order of each 64 numbers through shared memory.
extern "C" __global__ void selftest_reverse(ELEMENT *to) {
    __shared__ ELEMENT row[64];
    int i = blockIdx.x * 64 + threadIdx.x;
    row[threadIdx.x] = to[i];
    __syncthreads();
    to[i] = row[63 - threadIdx.x];
}
