// mbarriers in shared memory.
#pragma once
#include "common/types.cuh"

// Some threads arrive, others wait until all of them have, phase by phase.
struct Barrier {
    u64 state;
    __device__ __forceinline__ u32 address() const { return u32(__cvta_generic_to_shared(this)); }
    __device__ __forceinline__ void init(int threads) {
        asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(threads)
                     : "memory");
    }
    __device__ __forceinline__ void arrive() {
        asm volatile("{.reg .b64 token; mbarrier.arrive.shared.b64 token, [%0];}" ::"r"(address())
                     : "memory");
    }
    __device__ __forceinline__ void wait(int phase) const {
        u32 done = 0;
        while (!done) {
            asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; "
                         "selp.u32 %0, 1, 0, p;}"
                         : "=r"(done)
                         : "r"(address()), "r"(phase & 1)
                         : "memory");
        }
    }
};
