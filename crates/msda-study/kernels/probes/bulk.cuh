// Asynchronous copies to shared memory: cp.async (sm_80), and since sm_90 those of the TMA, which
// counts the bytes that arrived on an mbarrier.
#pragma once
#include "common/memory.cuh"

__device__ __forceinline__ u32 shared_address(const void *at) {
    return u32(__cvta_generic_to_shared(at));
}

#if __CUDA_ARCH__ >= 800
// 16 bytes past L1, or 4 bytes through L1.
template <int BYTES> __device__ __forceinline__ void cp_async_bytes(u32 to, const char *from) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
    }
}

// Waits for this thread's copies. Other threads see them after the next barrier.
__device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
#endif

#if __CUDA_ARCH__ >= 900
// A tensor map, encoded by the driver.
struct alignas(64) TensorMap {
    u64 word[16];
};

// One thread initialises the barrier for `count` arrivals. A __syncthreads must follow.
__device__ __forceinline__ void barrier_init(u32 barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
    // Make it visible to the TMA.
    asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::
                     : "memory");
}

// Arrives and announces how many bytes the copies will bring.
__device__ __forceinline__ void barrier_expect(u32 barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

// Waits for the first phase: all arrivals and all bytes.
__device__ __forceinline__ void barrier_wait(u32 barrier) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 0;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_bulk(u32 to, const char *from, int bytes, u32 barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_window(u32 to, const TensorMap &map, int x, int y,
                                            u32 barrier) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}

__device__ __forceinline__ void copy_window(u32 to, const TensorMap &map, int x, int y, int z,
                                            u32 barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(&map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}
#endif
