// texture: the texture unit loads and interpolates the four taps of a sample.
//
// A texel has four channels. So value is first copied, level by level, into maps of four channels
// each (texels.cuh).
//
//   msda_texels    one thread per pixel: the copy
//   msda_forward   a thread has a query and MAPS_PER_THREAD maps of its plane. It locates a sample
//                  once and fetches it from each map
//
// The interpolation weights of the unit are multiples of 1/256, and so is the accuracy.
//
// Bound by: the copy, and four channels per fetch.
// Best for: problems that are bound by arithmetic and accept errors of some thousandths.
//
// Macros: SHARE (maps per thread), THREADS.
#include "ladder/texels.cuh"

constexpr int MAPS_PER_THREAD = SHARE;
constexpr int THREADS_PER_QUERY = MAPS / MAPS_PER_THREAD;
constexpr int STORES_PER_THREAD = MAPS_PER_THREAD * 4 / CHANNELS_PER_LANE;
static_assert(MAPS % MAPS_PER_THREAD == 0 && MAPS_PER_THREAD * 4 % CHANNELS_PER_LANE == 0,
              "maps must divide evenly among threads and stores");

struct Args {
    Call call;
    Texture texture[LEVELS];
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_texels(const __grid_constant__ Args args) {
    copy_texels(args.call, args.texture[blockIdx.y]);
}

extern "C" __global__ void __launch_bounds__(THREADS)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const int head = blockIdx.y, image = blockIdx.z, plane = image * call.heads + head;
    // Neighbouring lanes have neighbouring queries and the same maps.
    const i64 index = i64(blockIdx.x) * THREADS + threadIdx.x;
    const int query = index % call.queries, map_group = index / call.queries;
    if (map_group >= THREADS_PER_QUERY) return;
    float sum[MAPS_PER_THREAD * 4];
#pragma unroll
    for (int c = 0; c < MAPS_PER_THREAD * 4; c++) sum[c] = 0;
#pragma unroll 2
    for (int s = 0; s < SAMPLES; s++) {
        const int l = level_of(call, s);
        const Level &level = call.level[l];
        const Texture &texture = args.texture[l];
        const SampleInput input = load_sample(call, image, query, head, s);
        const Located at = locate(level, input);
        if (!at.counts) continue;
        float4 texel[MAPS_PER_THREAD];
#pragma unroll
        for (int k = 0; k < MAPS_PER_THREAD; k++) {
            texel[k] = fetch(texture, level, plane, map_group * MAPS_PER_THREAD + k, at);
        }
#pragma unroll
        for (int k = 0; k < MAPS_PER_THREAD; k++) {
            sum[4 * k] = fmaf(input.weight, texel[k].x, sum[4 * k]);
            sum[4 * k + 1] = fmaf(input.weight, texel[k].y, sum[4 * k + 1]);
            sum[4 * k + 2] = fmaf(input.weight, texel[k].z, sum[4 * k + 2]);
            sum[4 * k + 3] = fmaf(input.weight, texel[k].w, sum[4 * k + 3]);
        }
    }
    char *to = call.output.at(image, query, head) + map_group * MAPS_PER_THREAD * TEXEL_BYTES;
#pragma unroll
    for (int i = 0; i < STORES_PER_THREAD; i++) {
        float some[CHANNELS_PER_LANE];
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) some[c] = sum[i * CHANNELS_PER_LANE + c];
        store_sums(to + i * VEC, some);
    }
}
