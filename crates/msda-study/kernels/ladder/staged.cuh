// Taps staged through shared memory, from the threads that locate samples to those that sum them.
//
//   positions  [ 4 of sample 0 | 4 of sample 1 | ... ]      16 bytes per sample: threads of
//   weights    [ 4 of sample 0 | 4 of sample 1 | ... ]      neighbouring queries load neighbours
#pragma once
#include "ladder/ladder.cuh"

template <int N> struct StagedTaps {
    struct __align__(4 * TAPS) Positions {
        int tap[TAPS];
    };
    struct __align__(4 * TAPS) Weights {
        float tap[TAPS];
    };
    Positions positions[N];
    Weights weights[N];

    __device__ __forceinline__ void store(int i, const Taps &taps) {
        Positions p;
        Weights w;
#pragma unroll
        for (int k = 0; k < TAPS; k++) p.tap[k] = taps.position[k], w.tap[k] = taps.weight[k];
        positions[i] = p, weights[i] = w;
    }

    __device__ __forceinline__ Taps load(int i) const {
        const Positions p = positions[i];
        const Weights w = weights[i];
        Taps taps;
#pragma unroll
        for (int k = 0; k < TAPS; k++) taps.position[k] = p.tap[k], taps.weight[k] = w.tap[k];
        return taps;
    }
};
