// texture: the texture unit loads and interpolates the four taps of a sample.
//
// A texel has four channels. So value is first copied, level by level, into maps of four channels
// each. The maps of a plane (image and head) lie side by side, and several planes in a row of maps:
//
//   . . . . . . . . . . .          a texture of one level; dots are texels that are always zero
//   . 0 0 0 . 1 1 1 . 2 ...        map 0: channels 0 to 3 of plane 0; map 1: its channels 4 to 7
//   . 0 0 0 . 1 1 1 . 2 ...
//   . . . . . . . . . . .
//   . k k k . l l l . m ...        the next planes
//
// One zero texel between two maps serves both. The copy writes the maps only; the memory starts
// with zeros.
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
#include "ladder/ladder.cuh"

constexpr int MAPS_PER_THREAD = SHARE;
constexpr int MAPS = D / 4; // per plane
constexpr int TEXEL_BYTES = 4 * size_of<VALUE>;
constexpr int COPY_BYTES = VEC < TEXEL_BYTES ? VEC : TEXEL_BYTES; // per load of the copy
constexpr int THREADS_PER_QUERY = MAPS / MAPS_PER_THREAD;
constexpr int STORES_PER_THREAD = MAPS_PER_THREAD * 4 / CHANNELS_PER_LANE;
static_assert(MAPS % MAPS_PER_THREAD == 0 && MAPS_PER_THREAD * 4 % CHANNELS_PER_LANE == 0,
              "maps must divide evenly among threads and stores");

struct Texture {
    u64 handle;
    char *texels;
    int pitch;          // bytes from texel row to texel row
    int planes_per_row; // in a row of maps
};

struct Args {
    Call call;
    Texture texture[LEVELS];
};

// blockIdx.y is the level.
extern "C" __global__ void __launch_bounds__(THREADS)
    msda_texels(const __grid_constant__ Args args) {
    const Call &call = args.call;
    const Level &level = call.level[blockIdx.y];
    const Texture &texture = args.texture[blockIdx.y];
    const i64 pixels = i64(level.height) * level.width, all = pixels * call.images * call.heads;
    for (i64 i = i64(blockIdx.x) * THREADS + threadIdx.x; i < all; i += i64(gridDim.x) * THREADS) {
        const int plane = i / pixels, pixel = i % pixels, y = pixel / level.width,
                  x = pixel % level.width;
        const int position = level.origin + y * level.pitch + x;
        const char *from = call.value.at(plane / call.heads, position, plane % call.heads);
        const i64 row = i64(plane / texture.planes_per_row) * (level.height + 1) + 1 + y;
        const i64 column = i64(plane % texture.planes_per_row) * MAPS * (level.width + 1) + 1 + x;
        char *to = texture.texels + row * texture.pitch + column * TEXEL_BYTES;
#pragma unroll 8
        for (int map = 0; map < MAPS; map++) {
#pragma unroll
            for (int k = 0; k < TEXEL_BYTES; k += COPY_BYTES) {
                store<COPY_BYTES>(to + i64(map) * (level.width + 1) * TEXEL_BYTES + k,
                                  ld_global<COPY_BYTES>(from + map * TEXEL_BYTES + k));
            }
        }
    }
}

__device__ __forceinline__ float4 fetch(u64 texture, float u, float v) {
    float4 texel;
    asm("tex.2d.v4.f32.f32 {%0, %1, %2, %3}, [%4, {%5, %6}];"
        : "=f"(texel.x), "=f"(texel.y), "=f"(texel.z), "=f"(texel.w)
        : "l"(texture), "f"(u), "f"(v));
    return texel;
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
        // A texel's centre is half a texel in. Integers are added first: they are exact.
        const int map = plane % texture.planes_per_row * MAPS + map_group * MAPS_PER_THREAD;
        const int column = map * (level.width + 1) + 1 + at.i;
        const int row = plane / texture.planes_per_row * (level.height + 1) + 1 + at.j;
        const float v = float(row) + (at.y + 0.5f);
        float4 texel[MAPS_PER_THREAD];
#pragma unroll
        for (int k = 0; k < MAPS_PER_THREAD; k++) {
            const float u = float(column + k * (level.width + 1)) + (at.x + 0.5f);
            texel[k] = fetch(texture.handle, u, v);
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
