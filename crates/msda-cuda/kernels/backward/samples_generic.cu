// samples_generic: the gradients of locations and weights, or of offsets and logits, for any
// problem.
//
// Threads: a warp per (image, query, head), with a grid-stride loop; a lane takes every 32nd sample
// and goes through its channels alone. FUSED: the gradient of a logit needs the sum over all
// samples, so the samples are visited twice.
//
// Bound by: loads; neighbouring lanes read different rows.
// Best for: problems that samples.cu does not accept.
#include "common/generic.cuh"

// Macros: those of common/generic.cuh; WANT_LOCATIONS WANT_WEIGHTS WANT_POINTS: see samples.cu;
// See CHECK_ARGS.
struct Pair {
    Wide x, y;
};

struct Args {
    Strided value, locations, weights, reference, grad_output, grad_locations, grad_weights;
    const i64 *shapes;       // (height, width) of each level; null if the table has them
    const i64 *starts;       // first position of each level; null if the table has them
    const LevelEntry *table; // null if the table is `level`
    Wide *softmax;           // FUSED: the weights of all samples, per plane and level; may be null
    Pair *grad_points;       // FUSED: gradients of the locations of all samples, if they are wanted
    i64 batch, queries, heads, channels, levels, positions, samples;
    LevelEntry level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

template <int T> __device__ __forceinline__ void store(char *to, i64 i, Wide x) {
    reinterpret_cast<typename Element<T>::Stored *>(to)[i] =
        narrow<T>(typename Element<T>::Wide(x));
}

__device__ __forceinline__ i64 level_of(const Args &args, i64 s) {
    const LevelEntry *table = INLINE_LEVELS > 0 ? args.level : args.table;
    i64 l = 0;
    while (l + 1 < args.levels && s >= table[l + 1].first_sample) l++;
    return l;
}

// Where the weight of a sample is among those of all planes: per plane and level, in the order of
// tiles.cuh.
__device__ __forceinline__ i64 place_in_planes(const Args &args, i64 plane, i64 query, i64 s) {
    const LevelEntry *table = INLINE_LEVELS > 0 ? args.level : args.table;
    const i64 l = level_of(args, s), first = table[l].first_sample;
    const i64 end = l + 1 < args.levels ? i64(table[l + 1].first_sample) : args.samples;
    return (plane * args.samples + first) * args.queries + query * (end - first) + s - first;
}

// The gradients of a sample: of its weight, and of its location in normalised coordinates.
struct SampleGradient {
    Wide weight, x, y;
};

__device__ __forceinline__ SampleGradient gradient_of(const Args &args, const LevelSize &level,
                                                      const Sample &sample, i64 image, i64 head,
                                                      const char *grad_output) {
    SampleGradient to{0, 0, 0};
    if (!sample.counts) return to;
    for_each_tap(sample.x, sample.y, level, [&](const auto &tap) {
        const i64 position = level.origin() + tap.row * level.pitch() + tap.column;
        const char *row = args.value.at(image, position, head);
        Wide dot = 0;
        for (i64 c = 0; c < args.channels; c++) {
            dot += load<VALUE>(row, c) * load<VALUE>(grad_output, c);
        }
        if (NEAREST) {
            to.weight = dot;
            return;
        }
        to.weight += tap.share() * dot;
        to.x += (tap.right ? tap.share_y : -tap.share_y) * dot;
        to.y += (tap.below ? tap.share_x : -tap.share_x) * dot;
    });
    // A product with 0 would make NaN of infinity.
    to.x = NEAREST || sample.slope_x == 0 ? 0 : to.x * sample.weight * sample.slope_x;
    to.y = NEAREST || sample.slope_y == 0 ? 0 : to.y * sample.weight * sample.slope_y;
    return to;
}

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_samples_generic(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.queries * args.heads;
    const i64 samples = args.samples, lane = threadIdx.x % 32;
    for (i64 index = (blockIdx.x * i64(256) + threadIdx.x) / 32; index < total;
         index += i64(gridDim.x) * 8) {
        const i64 head = index % args.heads, query = index / args.heads % args.queries;
        const i64 image = index / args.heads / args.queries;
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
        const char *grad_output = args.grad_output.at(image, query, head);
        Softmax softmax{0, 1};
        if (FUSED) {
            softmax = softmax_of_all<32>(weights, samples);
            for (i64 s = lane; args.softmax && s < samples; s += 32) {
                const i64 plane = image * args.heads + head;
                args.softmax[place_in_planes(args, plane, query, s)] =
                    softmax.weight_of(load<WEIGHT>(weights, s));
            }
        }
        if (!WANT_LOCATIONS && !WANT_WEIGHTS && !WANT_POINTS) continue;
        Wide mean = 0;
#pragma unroll 1
        for (int visit = 0; visit < (FUSED && WANT_WEIGHTS ? 2 : 1); visit++) {
            for (i64 s = lane; s < samples; s += 32) {
                const i64 l = level_of(args, s);
                const LevelSize level(args, l, args.levels, samples);
                const char *reference = args.reference.at(image, query, l);
                const Sample sample(level, locations, weights, s, reference, softmax);
                SampleGradient to = gradient_of(args, level, sample, image, head, grad_output);
                if (visit == 1) {
                    store<WEIGHT>(args.grad_weights.at(image, query, head), s,
                                  sample.weight * (to.weight - mean));
                    continue;
                }
                if (FUSED) {
                    if (WANT_POINTS) args.grad_points[index * samples + s] = Pair{to.x, to.y};
                    to.x = sample.finite ? to.x * sample.scale_x : 0;
                    to.y = sample.finite ? to.y * sample.scale_y : 0;
                    mean += sample.weight * to.weight;
                } else if (WANT_WEIGHTS) {
                    store<WEIGHT>(args.grad_weights.at(image, query, head), s, to.weight);
                }
                if (WANT_LOCATIONS) {
                    char *row = args.grad_locations.at(image, query, head);
                    store<LOCATION>(row, 2 * s, to.x), store<LOCATION>(row, 2 * s + 1, to.y);
                }
            }
            if (visit == 0) mean = sum_over<32>(mean);
        }
    }
}
