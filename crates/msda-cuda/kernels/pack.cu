// pack: value from one layout to another. Rings and gaps between levels become zeros.
//
// One thread an element of the destination, in the destination's order; which position of which level it is follows from
// the table of levels.
#include "prelude.cuh"

// Macros: SIZE, bytes per element; LEVELS, the most levels per launch.
template <int N> struct Word;
template <> struct Word<2> { typedef u16 Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<8> { typedef u64 Type; };
typedef Word<SIZE>::Type Bits;

// A level in both layouts: its size, and where pixel (0, 0) and the next row are.
struct Level {
    i64 h, w, from, from_pitch, to, to_pitch;
};

struct Args {
    const char *from;
    char *to;
    i64 from_stride[3], to_stride[3]; // bytes from image to image, position to position, head to head
    i64 levels, batch, heads, channels, positions;
    i64 planar; // the destination has all positions of a head before the next head
    i64 all;    // write zeros to positions that belong to none of the levels
    Level level[LEVELS];
};

extern "C" __global__ void __launch_bounds__(256) msda_pack(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.positions * args.heads * args.channels;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total; index += i64(gridDim.x) * 256) {
        i64 rest = index;
        const i64 channel = rest % args.channels;
        rest /= args.channels;
        i64 position, head;
        if (args.planar) {
            position = rest % args.positions, rest /= args.positions;
            head = rest % args.heads, rest /= args.heads;
        } else {
            head = rest % args.heads, rest /= args.heads;
            position = rest % args.positions, rest /= args.positions;
        }
        const i64 image = rest;
        Bits bits = 0;
        bool found = args.all;
        for (i64 l = 0; l < args.levels; l++) {
            const Level &level = args.level[l];
            const i64 d = position - level.to;
            if (d < 0) continue;
            const i64 y = d / level.to_pitch, x = d % level.to_pitch;
            if (y >= level.h || x >= level.w) continue;
            const i64 from = level.from + y * level.from_pitch + x;
            const char *at = args.from + image * args.from_stride[0] + from * args.from_stride[1] + head * args.from_stride[2];
            bits = reinterpret_cast<const Bits *>(at)[channel];
            found = true;
            break;
        }
        if (!found) continue;
        char *at = args.to + image * args.to_stride[0] + position * args.to_stride[1] + head * args.to_stride[2];
        reinterpret_cast<Bits *>(at)[channel] = bits;
    }
}
