// Tensors of the call: base address and byte strides.
#pragma once
#include "common/memory.cuh"

// Strides in bytes: between images, between queries (or positions of value), between heads (or
// levels of the reference points). The elements of the last dimension are contiguous.
struct Tensor {
    char *base;
    i64 image_stride;
    int row_stride, head_stride;

    __device__ __forceinline__ char *at(int image, int row, int head) const {
        return base + image * image_stride + i64(row) * row_stride + i64(head) * head_stride;
    }
    // The same in fewer instructions. The compiler no longer sees that the address is in global
    // memory, so use it with ld_global and st_global.
    __device__ __forceinline__ char *address(int image, int row, int head) const {
        const char *of_row = address_mad(base + image * image_stride, row, row_stride);
        return const_cast<char *>(address_mad(of_row, head, head_stride));
    }
};

// The same with any strides.
struct Strided {
    char *base;
    i64 stride[3];
    __device__ __forceinline__ char *at(i64 i, i64 j, i64 k) const {
        return base + i * stride[0] + j * stride[1] + k * stride[2];
    }
};
