// value_atomic: the gradient of value with atomic additions, in any order.
//
//   msda_backward_value_atomic   adds to f32 (f64) sums in the workspace, which are zero before
//   msda_backward_value_round    rounds them to the type of value
//
// Threads: one per (image, query, head) and NUMBERS channels, with a grid-stride loop. Each thread
// locates all samples of its query and head itself.
//
// The last bits differ from run to run: sums in f32 depend on their order.
//
// Bound by: atomics in L2.
#include "backward/tiles.cuh"

// Macro besides those of tiles.cuh: NUMBERS, the channels of a thread: 1 or 4.
typedef Element<VALUE>::Stored Stored;

__device__ __forceinline__ Wide *sums_of(const Args &args, i64 image, i64 position, i64 head) {
    Wide *sums = reinterpret_cast<Wide *>(args.records);
    return sums + ((image * args.positions + position) * args.heads + head) * args.channels;
}

__device__ __forceinline__ void add(Wide *to, const Wide (&x)[NUMBERS]) {
#if __CUDA_ARCH__ >= 900
    constexpr bool FOUR = NUMBERS == 4 && VALUE != F64;
#else
    constexpr bool FOUR = false;
#endif
    if constexpr (FOUR) {
        asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(float(x[0])),
                     "f"(float(x[NUMBERS / 4])), "f"(float(x[NUMBERS / 2])),
                     "f"(float(x[NUMBERS - 1]))
                     : "memory");
    } else {
#pragma unroll
        for (int c = 0; c < NUMBERS; c++) atomicAdd(to + c, x[c]);
    }
}

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_value_atomic(const __grid_constant__ Args args) {
    __shared__ Levels levels;
    load_levels(args, levels);
    const i64 parts = args.channels / NUMBERS;
    const i64 total = i64(args.batch) * args.queries * args.heads * parts;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
        const i64 part = index % parts, head = index / parts % args.heads;
        const i64 row = index / parts / args.heads; // image and query
        const i64 query = row % args.queries, image = row / args.queries;
        const Stored *from =
            reinterpret_cast<const Stored *>(args.grad_output.at(image, query, head));
        Wide gradient[NUMBERS];
#pragma unroll
        for (int c = 0; c < NUMBERS; c++)
            gradient[c] = Wide(widen<VALUE>(from[part * NUMBERS + c]));
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
#pragma unroll 1
        for (int l = 0; l < LEVELS; l++) {
            const TileLevel level = levels.level[l];
            Wide reference[FUSED ? FUSED : 1];
            if (FUSED) {
                load_wide<LOCATION, FUSED ? FUSED : 1, REFERENCE_ALIGN>(
                    args.reference.at(image, query, l), reference);
            }
#pragma unroll 1
            for (int s = level.first_sample; s < level.first_sample + level.points; s++) {
                Wide xy[2], weight[1];
                load_wide<LOCATION, 2, LOCATION_ALIGN>(locations + i64(s) * (2 * size_of<LOCATION>),
                                                       xy);
                if (FUSED) {
                    const Wide *of_level = softmax_of(args, level, image * args.heads + head);
                    weight[0] = of_level[query * level.points + s - level.first_sample];
                    add_reference(reference, levels, l, xy[0], xy[1]);
                } else {
                    load_wide<WEIGHT, 1, WEIGHT_ALIGN>(weights + i64(s) * size_of<WEIGHT>, weight);
                }
                if (!place(xy[0], xy[1], level)) continue;
                for_each_tap(xy[0], xy[1], level, [&](const auto &tap) {
                    Wide x[NUMBERS];
#pragma unroll
                    for (int c = 0; c < NUMBERS; c++) x[c] = weight[0] * tap.share() * gradient[c];
                    const i64 position = level.origin + tap.row * level.pitch + tap.column;
                    add(sums_of(args, image, position, head) + part * NUMBERS, x);
                });
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_value_round(const __grid_constant__ Args args) {
    const i64 total = i64(args.batch) * args.positions * args.heads * args.channels;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
        const i64 channel = index % args.channels, head = index / args.channels % args.heads;
        const i64 row = index / args.channels / args.heads;
        char *to = args.grad_value.at(row / args.positions, row % args.positions, head);
        reinterpret_cast<Stored *>(to)[channel] =
            narrow<VALUE>(reinterpret_cast<const Wide *>(args.records)[index]);
    }
}
