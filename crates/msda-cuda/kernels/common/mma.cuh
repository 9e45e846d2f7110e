// Products of matrices on tensor cores, from sm_80 on. The lanes of a warp share the matrices. With
// g = lane / 4 and j = lane % 4, a lane has these parts of matrices of 16-bit numbers:
//
//   a[0], a[1]   rows g and g + 8, numbers 2 j and 2 j + 1
//   a[2], a[3]   the same rows, numbers 2 j + 8 and 2 j + 9
//   b[0], b[1]   column g, numbers 2 j and 2 j + 1, then 2 j + 8 and 2 j + 9
//   sum[0..3]    row g, columns 2 j and 2 j + 1; then row g + 8
#pragma once
#include "common/types.cuh"

// Adds 16 rows x 16 numbers times 16 numbers x 8 columns. f32: 8 numbers.
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[4], const u32 (&b)[2]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (VALUE == BF16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else if constexpr (VALUE == F16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
            "{%8,%9}, {%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
#endif
}

// The same with 8 numbers of 16 bits.
__device__ __forceinline__ void multiply(float (&sum)[4], const u32 (&a)[2], const u32 (&b)[1]) {
#if __CUDA_ARCH__ >= 800
    if constexpr (VALUE == BF16) {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    } else {
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
            "{%0,%1,%2,%3};"
            : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
            : "r"(a[0]), "r"(a[1]), "r"(b[0]));
    }
#endif
}
