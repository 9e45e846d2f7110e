// generic: one thread an element of the output, and nothing assumed.
//
//     thread  0     1     2    ...   D-1  |  D    ...
//     output  (b, q, h, 0 .. D-1)         |  (b, q, h + 1, 0 .. )
//
// Every thread locates every sample by itself and reads one element of each tap, so that neighbours read a row together.
// Any number of channels, levels and points, any strides and alignment, 64-bit indices throughout, f64 too. The
// levels are read from device memory, as frameworks keep them: no one has to wait for their sizes. A level that does
// not lie within the value is left out.
//
// Wins: where no other kernel applies, or for a few outputs.
#include "prelude.cuh"

// Knobs: VALUE LOCATION WEIGHT, RING, NEAREST BORDER CORNERS, FUSED, as for the row kernels.
typedef Element<VALUE>::Wide Wide;

struct Tensor {
    char *base;
    i64 stride[3]; // in bytes
    __device__ const char *at(i64 i, i64 j, i64 k) const { return base + i * stride[0] + j * stride[1] + k * stride[2]; }
};

struct Args {
    Tensor value, locations, weights, reference, output;
    const i64 *shapes, *starts, *first; // (h, w) and first position of each level; its first sample, and one more
    i64 batch, queries, heads, channels, levels, positions;
};

template <int T> __device__ __forceinline__ Wide load(const char *at, i64 i) {
    return Wide(widen<T>(reinterpret_cast<const typename Element<T>::Stored *>(at)[i]));
}

__device__ __forceinline__ Wide pixel(Wide t, i64 side) {
    Wide c = CORNERS ? t * Wide(side - 1) : t * Wide(side) - Wide(0.5);
    if (BORDER) c = c <= 0 ? 0 : c >= Wide(side - 1) ? Wide(side - 1) : c;
    return c;
}

extern "C" __global__ void __launch_bounds__(256) msda_forward(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.queries * args.heads * args.channels;
    const i64 samples = args.first[args.levels];
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total; index += i64(gridDim.x) * 256) {
        const i64 channel = index % args.channels;
        const i64 head = index / args.channels % args.heads;
        const i64 query = index / args.channels / args.heads % args.queries;
        const i64 image = index / args.channels / args.heads / args.queries;
        const char *locations = args.locations.at(image, query, head);
        const char *weights = args.weights.at(image, query, head);
        Wide top = 0, scale = 1;
        if (FUSED) {
            top = Wide(__int_as_float(0xff800000));
            for (i64 s = 0; s < samples; s++) {
                const Wide x = load<WEIGHT>(weights, s);
                top = x > top ? x : top;
            }
            Wide sum = 0;
            for (i64 s = 0; s < samples; s++) sum += exp(load<WEIGHT>(weights, s) - top);
            scale = 1 / sum;
        }
        Wide sum = 0;
        for (i64 l = 0; l < args.levels; l++) {
            const i64 h = args.shapes[2 * l], w = args.shapes[2 * l + 1], start = args.starts[l];
            const i64 pitch = w + 2 * RING, limit = 1 << 24;
            const bool legal = h > 0 && w > 0 && h <= limit && w <= limit && start >= 0 && start <= args.positions &&
                               (h + 2 * RING) * pitch <= args.positions - start;
            if (!legal) continue;
            const i64 origin = start + RING * (pitch + 1);
            const i64 points = args.first[l + 1] - args.first[l];
            for (i64 s = args.first[l]; s < args.first[l + 1]; s++) {
                Wide x = load<LOCATION>(locations, 2 * s), y = load<LOCATION>(locations, 2 * s + 1);
                Wide weight = load<WEIGHT>(weights, s);
                if (FUSED) {
                    const char *ref = args.reference.at(image, query, l);
                    Wide sx = 1 / Wide(w), sy = 1 / Wide(h);
                    if (FUSED == 4) {
                        sx = load<LOCATION>(ref, 2) * (Wide(0.5) / Wide(points));
                        sy = load<LOCATION>(ref, 3) * (Wide(0.5) / Wide(points));
                    }
                    x = load<LOCATION>(ref, 0) + x * sx;
                    y = load<LOCATION>(ref, 1) + y * sy;
                    weight = exp(weight - top) * scale;
                }
                // x - x is 0 just where x is finite.
                if (!(x - x == 0 && y - y == 0)) continue;
                x = pixel(x, w), y = pixel(y, h);
                if (NEAREST) x = rint(x), y = rint(y);
                if (!(x > -1 && y > -1 && x < Wide(w) && y < Wide(h))) continue;
                const Wide left = floor(x), up = floor(y);
                for (int k = 0; k < (NEAREST ? 1 : 4); k++) {
                    const i64 i = i64(left) + (k & 1), j = i64(up) + (k >> 1);
                    if (i < 0 || j < 0 || i >= w || j >= h) continue;
                    Wide share = 1;
                    if (!NEAREST) share = (k & 1 ? x - left : 1 - (x - left)) * (k >> 1 ? y - up : 1 - (y - up));
                    sum += weight * share * load<VALUE>(args.value.at(image, origin + j * pitch + i, head), channel);
                }
            }
        }
        const char *at = args.output.at(image, query, head);
        reinterpret_cast<Element<VALUE>::Stored *>(const_cast<char *>(at))[channel] = narrow<VALUE>(sum);
    }
}
