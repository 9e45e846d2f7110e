// reference: the gradient of the reference points, from the gradients of all locations.
//
//   grad_reference[b, q, l, 0:2] = sum over heads and points of grad_location
//   grad_reference[b, q, l, 2:4] = sum over heads and points of grad_location * offset / 2 / points
//
// Threads: one per (image, query, level), with a grid-stride loop. Sums are in the order of heads
// and points.
//
// Bound by: reading the gradients of the locations.
#include "common/level_table.cuh"

// Macros: VALUE LOCATION: element types; FUSED: numbers per reference point;
// INLINE_LEVELS: entries of the table of levels in the argument; 0 if it is in device memory;
// see CHECK_ARGS.
typedef Element<VALUE>::Wide Wide;

struct Pair {
    Wide x, y;
};

struct Args {
    const Pair *grad_points; // of each image, query, head and sample
    char *offsets, *grad_reference;
    i64 offset_stride[3], reference_stride[3]; // in bytes
    i64 batch, queries, heads, levels, samples;
    const LevelEntry *table; // null if the table is `level`
    LevelEntry level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_reference(const __grid_constant__ Args args) {
    typedef Element<LOCATION>::Stored Stored;
    const LevelEntry *table = INLINE_LEVELS > 0 ? args.level : args.table;
    const i64 total = args.batch * args.queries * args.levels;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
        const i64 l = index % args.levels, query = index / args.levels % args.queries;
        const i64 image = index / args.levels / args.queries;
        const i64 first = table[l].first_sample;
        const i64 end = l + 1 < args.levels ? table[l + 1].first_sample : args.samples;
        Wide sum[4] = {0, 0, 0, 0};
        for (i64 head = 0; head < args.heads; head++) {
            const i64 at = ((image * args.queries + query) * args.heads + head) * args.samples;
            const Stored *offsets = reinterpret_cast<const Stored *>(
                args.offsets + image * args.offset_stride[0] + query * args.offset_stride[1] +
                head * args.offset_stride[2]);
            for (i64 s = first; s < end; s++) {
                const Pair gradient = args.grad_points[at + s];
                sum[0] += gradient.x, sum[1] += gradient.y;
                if (FUSED == 4) {
                    // A sample without a gradient may have an offset that is not finite.
                    const Wide share = Wide(0.5) / Wide(end - first);
                    const Wide x = Wide(widen<LOCATION>(offsets[2 * s]));
                    const Wide y = Wide(widen<LOCATION>(offsets[2 * s + 1]));
                    if (gradient.x != 0) sum[2] += gradient.x * x * share;
                    if (gradient.y != 0) sum[3] += gradient.y * y * share;
                }
            }
        }
        Stored *to = reinterpret_cast<Stored *>(
            args.grad_reference + image * args.reference_stride[0] +
            query * args.reference_stride[1] + l * args.reference_stride[2]);
        for (int k = 0; k < FUSED; k++) {
            to[k] = narrow<LOCATION>(typename Element<LOCATION>::Wide(sum[k]));
        }
    }
}
