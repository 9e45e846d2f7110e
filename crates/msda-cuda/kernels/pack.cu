// pack: copies value from one layout to another. Rings and gaps between levels become zeros.
//
// Threads: one per element of the destination, in its order, with a grid-stride loop. A thread
// finds its level and pixel from the table of levels and copies one element, or writes zero.
//
// Bound by: 64-bit divisions, which decode the index. A copy that runs once per model.
// Best for: values that many calls read in a layout other than the one they have.
#include "common/types.cuh"

// Macros: ELEMENT_BYTES, 2 to 8; LEVELS, the most levels per launch; see CHECK_ARGS.
static_assert(LEVELS > 0, "a launch has levels");
template <int N> struct Word;
template <> struct Word<2> {
    typedef u16 Type;
};
template <> struct Word<4> {
    typedef u32 Type;
};
template <> struct Word<8> {
    typedef u64 Type;
};
typedef Word<ELEMENT_BYTES>::Type Bits;

// A level in both layouts: position of pixel (0, 0), and positions from image row to image row.
struct Level {
    i64 height, width, from_origin, from_pitch, to_origin, to_pitch;
};

struct Args {
    const char *from;
    char *to;
    i64 from_stride[3], to_stride[3]; // in bytes: between images, positions, heads
    i64 levels, batch, heads, channels, positions;
    i64 planar; // the destination has all positions of a head before the next head
    i64 all;    // also write zeros to positions that belong to none of the levels
    Level level[LEVELS];
};
CHECK_ARGS;

extern "C" __global__ void __launch_bounds__(256) msda_pack(const __grid_constant__ Args args) {
    const i64 total = args.batch * args.positions * args.heads * args.channels;
    for (i64 index = blockIdx.x * i64(256) + threadIdx.x; index < total;
         index += i64(gridDim.x) * 256) {
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
            const i64 distance = position - level.to_origin;
            if (distance < 0) continue;
            const i64 y = distance / level.to_pitch, x = distance % level.to_pitch;
            if (y >= level.height || x >= level.width) continue;
            const i64 source = level.from_origin + y * level.from_pitch + x;
            const char *row = args.from + image * args.from_stride[0] +
                              source * args.from_stride[1] + head * args.from_stride[2];
            bits = reinterpret_cast<const Bits *>(row)[channel];
            found = true;
            break;
        }
        if (!found) continue;
        char *row = args.to + image * args.to_stride[0] + position * args.to_stride[1] +
                    head * args.to_stride[2];
        reinterpret_cast<Bits *>(row)[channel] = bits;
    }
}
