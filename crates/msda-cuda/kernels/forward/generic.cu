// generic: multi-scale deformable attention, forward, for any problem.
//
//   output[b, q, h, :] = sum over samples s of weight[b, q, h, s] * bilinear(value[b, :, h, :], s)
//
// Threads: one per element of the output, with a grid-stride loop.
//
//     thread  0     1     2    ...   D-1  |  D    ...
//     output  (b, q, h, 0 .. D-1)         |  (b, q, h + 1, 0 .. )
//
// Each thread locates every sample itself and loads one element of each tap, so neighbouring
// threads load a row together. Any number of channels, levels and points, any strides and
// alignment, f64 too; all indices have 64 bits. The level sizes are part of the argument, or they
// are in device memory, as frameworks keep them: then the host need not wait for them, and a level
// that reaches past the end of value is skipped.
//
// Bound by: instructions. Every channel repeats the work of its sample.
// Best for: problems that no other kernel accepts.
#include "common/generic.cuh"

// Macros: those of common/generic.cuh; see CHECK_ARGS.
struct Args {
    Strided value, locations, weights, reference, output;
    const i64 *shapes;       // (height, width) of each level; null if the table has them
    const i64 *starts;       // first position of each level; null if the table has them
    const LevelEntry *table; // null if the table is `level`
    i64 batch, queries, heads, channels, levels, positions, samples;
    LevelEntry level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(256)
    msda_forward_generic(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.queries * args.heads * args.channels;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
        const i64 channel = index % args.channels;
        const i64 head = index / args.channels % args.heads;
        const i64 query = index / args.channels / args.heads % args.queries;
        const i64 image = index / args.channels / args.heads / args.queries;
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
        Softmax softmax{0, 1};
        if (FUSED) softmax = softmax_of_all<1>(weights, args.samples);
        Wide sum = 0;
        for (i64 l = 0; l < args.levels; l++) {
            const LevelSize level(args, l, args.levels, args.samples);
            if (!level.legal) continue;
            const char *reference = args.reference.at(image, query, l);
            for (i64 s = level.first_sample; s < level.end_sample; s++) {
                const Sample sample(level, locations, weights, s, reference, softmax);
                if (!sample.counts) continue;
                for_each_tap(sample.x, sample.y, level, [&](const auto &tap) {
                    const i64 position = level.origin() + tap.row * level.pitch() + tap.column;
                    const char *row = args.value.at(image, position, head);
                    sum += sample.weight * tap.share() * load<VALUE>(row, channel);
                });
            }
        }
        char *row = args.output.at(image, query, head);
        reinterpret_cast<Element<VALUE>::Stored *>(row)[channel] = narrow<VALUE>(sum);
    }
}
