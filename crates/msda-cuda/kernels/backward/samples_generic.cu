// samples_generic: the gradients of locations and weights, or of offsets and logits, for any
// problem.
//
// Threads: a warp per (image, query, head), with a grid-stride loop; a lane takes every 32nd sample
// and goes through its channels alone. FUSED: the gradient of a logit needs the sum over all
// samples, so the samples are visited twice.
//
// Bound by: loads; neighbouring lanes read different rows.
// Best for: problems that samples.cu does not accept.
#include "common/types.cuh"

// Macros: VALUE LOCATION WEIGHT, RING, NEAREST BORDER CORNERS, FUSED: see common/args.cuh.
// INLINE_LEVELS: entries of the table of levels in the argument; 0 if the table is in device
// memory.
// WANT_LOCATIONS WANT_WEIGHTS WANT_POINTS: see samples.cu. See CHECK_ARGS.
typedef Element<VALUE>::Wide Wide;

struct Strided {
    char *base;
    i64 stride[3]; // in bytes
    __device__ char *at(i64 i, i64 j, i64 k) const {
        return base + i * stride[0] + j * stride[1] + k * stride[2];
    }
};

struct Level {
    i64 height, width, start, first_sample; // start: the first position
};

struct Softmax {
    Wide max, scale;
};

struct Pair {
    Wide x, y;
};

struct Args {
    Strided value, locations, weights, reference, grad_output, grad_locations, grad_weights;
    const i64 *shapes;  // (height, width) of each level; null if the table has them
    const i64 *starts;  // first position of each level; null if the table has them
    const Level *table; // null if the table is `level`
    Softmax *softmax;   // FUSED: of each image, query and head; may be null
    Pair *grad_points;  // FUSED: gradients of the locations of all samples, if they are wanted
    i64 batch, queries, heads, channels, levels, positions, samples;
    Level level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

template <int T> __device__ __forceinline__ Wide load(const char *from, i64 i) {
    return Wide(widen<T>(reinterpret_cast<const typename Element<T>::Stored *>(from)[i]));
}

template <int T> __device__ __forceinline__ void store(char *to, i64 i, Wide x) {
    reinterpret_cast<typename Element<T>::Stored *>(to)[i] =
        narrow<T>(typename Element<T>::Wide(x));
}

__device__ __forceinline__ Wide add_over_warp(Wide x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ __forceinline__ Wide max_over_warp(Wide x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        const Wide other = __shfl_xor_sync(0xffffffffu, x, step);
        x = other > x ? other : x;
    }
    return x;
}

// A coordinate in pixels. `slope`: its change per unit of the normalised coordinate; 0 if clamped.
__device__ __forceinline__ Wide pixel_coordinate(Wide t, i64 extent, Wide &slope) {
    slope = Wide(CORNERS ? extent - 1 : extent);
    Wide x = CORNERS ? t * Wide(extent - 1) : t * Wide(extent) - Wide(0.5);
    if (BORDER) {
        if (!(x > 0 && x < Wide(extent - 1))) slope = 0;
        x = x <= 0 ? 0 : x >= Wide(extent - 1) ? Wide(extent - 1) : x;
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(256)
    msda_backward_samples_generic(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.queries * args.heads;
    const i64 samples = args.samples, lane = threadIdx.x % 32;
    const Level *table = INLINE_LEVELS > 0 ? args.level : args.table;
    for (i64 index = (blockIdx.x * i64(256) + threadIdx.x) / 32; index < total;
         index += i64(gridDim.x) * 8) {
        const i64 head = index % args.heads, query = index / args.heads % args.queries;
        const i64 image = index / args.heads / args.queries;
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
        const char *gradient = args.grad_output.at(image, query, head);
        Wide max_logit = 0, scale = 1;
        if (FUSED) {
            max_logit = Wide(__int_as_float(0xff800000));
            for (i64 s = lane; s < samples; s += 32) {
                const Wide x = load<WEIGHT>(weights, s);
                max_logit = x > max_logit ? x : max_logit;
            }
            max_logit = max_over_warp(max_logit);
            Wide sum = 0;
            for (i64 s = lane; s < samples; s += 32) sum += exp(load<WEIGHT>(weights, s) - max_logit);
            scale = 1 / add_over_warp(sum);
            if (args.softmax && lane == 0) args.softmax[index] = Softmax{max_logit, scale};
        }
        if (!WANT_LOCATIONS && !WANT_WEIGHTS && !WANT_POINTS) continue;
        Wide mean = 0;
#pragma unroll 1
        for (int visit = 0; visit < (FUSED && WANT_WEIGHTS ? 2 : 1); visit++) {
            for (i64 s = lane; s < samples; s += 32) {
                i64 l = 0;
                while (l + 1 < args.levels && s >= table[l + 1].first_sample) l++;
                const i64 h = args.shapes ? args.shapes[2 * l] : table[l].height;
                const i64 w = args.shapes ? args.shapes[2 * l + 1] : table[l].width;
                const i64 start = args.starts ? args.starts[l] : table[l].start;
                const i64 end = l + 1 < args.levels ? table[l + 1].first_sample : samples;
                const i64 pitch = w + 2 * RING, limit = 1 << 24;
                const bool legal = h > 0 && w > 0 && h <= limit && w <= limit && start >= 0 &&
                                   start <= args.positions &&
                                   (h + 2 * RING) * pitch <= args.positions - start;
                const i64 origin = start + RING * (pitch + 1);
                Wide x = load<LOCATION>(locations, 2 * s), y = load<LOCATION>(locations, 2 * s + 1);
                Wide weight = load<WEIGHT>(weights, s), scale_x = 1, scale_y = 1;
                if (FUSED) {
                    const char *ref = args.reference.at(image, query, l);
                    scale_x = 1 / Wide(w), scale_y = 1 / Wide(h);
                    if (FUSED == 4) {
                        const Wide share = Wide(0.5) / Wide(end - table[l].first_sample);
                        scale_x = load<LOCATION>(ref, 2) * share;
                        scale_y = load<LOCATION>(ref, 3) * share;
                    }
                    x = load<LOCATION>(ref, 0) + x * scale_x;
                    y = load<LOCATION>(ref, 1) + y * scale_y;
                    weight = exp(weight - max_logit) * scale;
                }
                Wide grad_weight = 0, grad_x = 0, grad_y = 0, slope_x, slope_y;
                const bool finite = x - x == 0 && y - y == 0;
                x = pixel_coordinate(x, w, slope_x), y = pixel_coordinate(y, h, slope_y);
                if (NEAREST) x = rint(x), y = rint(y);
                if (legal && finite && x > -1 && y > -1 && x < Wide(w) && y < Wide(h)) {
                    const Wide left = floor(x), top = floor(y), dx = x - left, dy = y - top;
                    for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
                        const i64 i = i64(left) + (k & 1), j = i64(top) + (k >> 1);
                        if (i < 0 || j < 0 || i >= w || j >= h) continue;
                        const char *row = args.value.at(image, origin + j * pitch + i, head);
                        Wide dot = 0;
                        for (i64 c = 0; c < args.channels; c++) {
                            dot += load<VALUE>(row, c) * load<VALUE>(gradient, c);
                        }
                        if (NEAREST) {
                            grad_weight = dot;
                            continue;
                        }
                        const Wide share_x = k & 1 ? dx : 1 - dx, share_y = k >> 1 ? dy : 1 - dy;
                        grad_weight += share_x * share_y * dot;
                        grad_x += (k & 1 ? share_y : -share_y) * dot;
                        grad_y += (k >> 1 ? share_x : -share_x) * dot;
                    }
                    // A product with 0 would make NaN of infinity.
                    grad_x = NEAREST || slope_x == 0 ? 0 : grad_x * weight * slope_x;
                    grad_y = NEAREST || slope_y == 0 ? 0 : grad_y * weight * slope_y;
                }
                if (visit == 1) {
                    store<WEIGHT>(args.grad_weights.at(image, query, head), s,
                                  weight * (grad_weight - mean));
                    continue;
                }
                if (FUSED) {
                    if (WANT_POINTS) args.grad_points[index * samples + s] = Pair{grad_x, grad_y};
                    grad_x = finite ? grad_x * scale_x : 0, grad_y = finite ? grad_y * scale_y : 0;
                    mean += weight * grad_weight;
                } else if (WANT_WEIGHTS) {
                    store<WEIGHT>(args.grad_weights.at(image, query, head), s, grad_weight);
                }
                if (WANT_LOCATIONS) {
                    char *to = args.grad_locations.at(image, query, head);
                    store<LOCATION>(to, 2 * s, grad_x), store<LOCATION>(to, 2 * s + 1, grad_y);
                }
            }
            if (visit == 0) mean = add_over_warp(mean);
        }
    }
}
