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
#include "common/types.cuh"

// Macros: VALUE LOCATION WEIGHT, RING, NEAREST BORDER CORNERS, FUSED: see common/args.cuh.
// INLINE_LEVELS: entries of the table of levels in the argument; 0: it is in device memory.
// See CHECK_ARGS.
typedef Element<VALUE>::Wide Wide;

struct Tensor {
    char *base;
    i64 stride[3]; // in bytes
    __device__ const char *at(i64 i, i64 j, i64 k) const {
        return base + i * stride[0] + j * stride[1] + k * stride[2];
    }
};

struct Level {
    i64 height, width, start, first_sample; // start: the first position
};

struct Args {
    Tensor value, locations, weights, reference, output;
    const i64 *shapes;  // (height, width) of each level; null if the table has them
    const i64 *starts;  // first position of each level; null if the table has them
    const Level *table; // null if the table is `level`
    i64 batch, queries, heads, channels, levels, positions, samples;
    Level level[INLINE_LEVELS > 0 ? INLINE_LEVELS : 1];
};
CHECK_ARGS;

template <int T> __device__ __forceinline__ Wide load(const char *from, i64 i) {
    return Wide(widen<T>(reinterpret_cast<const typename Element<T>::Stored *>(from)[i]));
}

__device__ __forceinline__ Wide pixel_coordinate(Wide t, i64 extent) {
    Wide x = CORNERS ? t * Wide(extent - 1) : t * Wide(extent) - Wide(0.5);
    if (BORDER) x = x <= 0 ? 0 : x >= Wide(extent - 1) ? Wide(extent - 1) : x;
    return x;
}

extern "C" __global__ void __launch_bounds__(256)
    msda_forward_generic(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.queries * args.heads * args.channels;
    const i64 samples = args.samples;
    const Level *table = INLINE_LEVELS > 0 ? args.level : args.table;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
        const i64 channel = index % args.channels;
        const i64 head = index / args.channels % args.heads;
        const i64 query = index / args.channels / args.heads % args.queries;
        const i64 image = index / args.channels / args.heads / args.queries;
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
        Wide max_logit = 0, scale = 1;
        if (FUSED) {
            max_logit = Wide(__int_as_float(0xff800000));
            for (i64 s = 0; s < samples; s++) {
                const Wide x = load<WEIGHT>(weights, s);
                max_logit = x > max_logit ? x : max_logit;
            }
            Wide sum = 0;
            for (i64 s = 0; s < samples; s++) sum += exp(load<WEIGHT>(weights, s) - max_logit);
            scale = 1 / sum;
        }
        Wide sum = 0;
        for (i64 l = 0; l < args.levels; l++) {
            const i64 h = args.shapes ? args.shapes[2 * l] : table[l].height;
            const i64 w = args.shapes ? args.shapes[2 * l + 1] : table[l].width;
            const i64 start = args.starts ? args.starts[l] : table[l].start;
            const i64 first = table[l].first_sample;
            const i64 end = l + 1 < args.levels ? table[l + 1].first_sample : samples;
            const i64 pitch = w + 2 * RING, limit = 1 << 24;
            const bool legal = h > 0 && w > 0 && h <= limit && w <= limit && start >= 0 &&
                               start <= args.positions &&
                               (h + 2 * RING) * pitch <= args.positions - start;
            if (!legal) continue;
            const i64 origin = start + RING * (pitch + 1);
            for (i64 s = first; s < end; s++) {
                Wide x = load<LOCATION>(locations, 2 * s), y = load<LOCATION>(locations, 2 * s + 1);
                Wide weight = load<WEIGHT>(weights, s);
                if (FUSED) {
                    const char *ref = args.reference.at(image, query, l);
                    Wide scale_x = 1 / Wide(w), scale_y = 1 / Wide(h);
                    if (FUSED == 4) {
                        scale_x = load<LOCATION>(ref, 2) * (Wide(0.5) / Wide(end - first));
                        scale_y = load<LOCATION>(ref, 3) * (Wide(0.5) / Wide(end - first));
                    }
                    x = load<LOCATION>(ref, 0) + x * scale_x;
                    y = load<LOCATION>(ref, 1) + y * scale_y;
                    weight = exp(weight - max_logit) * scale;
                }
                // x - x is 0 only if x is finite.
                if (!(x - x == 0 && y - y == 0)) continue;
                x = pixel_coordinate(x, w), y = pixel_coordinate(y, h);
                if (NEAREST) x = rint(x), y = rint(y);
                if (!(x > -1 && y > -1 && x < Wide(w) && y < Wide(h))) continue;
                const Wide left = floor(x), top = floor(y);
                for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
                    const i64 i = i64(left) + (k & 1), j = i64(top) + (k >> 1);
                    if (i < 0 || j < 0 || i >= w || j >= h) continue;
                    Wide share = 1;
                    if (!NEAREST) {
                        share = (k & 1 ? x - left : 1 - (x - left)) *
                                (k >> 1 ? y - top : 1 - (y - top));
                    }
                    const char *row = args.value.at(image, origin + j * pitch + i, head);
                    sum += weight * share * load<VALUE>(row, channel);
                }
            }
        }
        char *row = const_cast<char *>(args.output.at(image, query, head));
        reinterpret_cast<Element<VALUE>::Stored *>(row)[channel] = narrow<VALUE>(sum);
    }
}
