// The forward kernels' knobs, the constants that follow from them, and their argument.
//
// Words:
//   row            the D channels of one pixel and head
//   position       index of a pixel over all levels, ring pixels included
//   tap            one of the four pixels around a sample (one pixel if sampling is nearest)
//   lane group     GROUP_LANES lanes of a warp that compute one (query, head) together
//   pass           the samples that a lane group locates at a time, SAMPLES_PER_LANE per lane
//   tile           the queries that a block processes at a time
//   resident level a level that a block keeps in shared memory (resident.cu)
//
// Macros, set by the host twin src/kernels/lane_groups.rs:
//   VALUE LOCATION WEIGHT   element types
//   D LEVELS SAMPLES        channels; levels; samples per query and head, over all levels
//   UNIFORM_POINTS          points per level, or 0 if levels differ
//   VEC LANES_PER_ROW       bytes of a row per lane; lanes that cover a row
//   TAP_COLUMNS             2: different lanes load left and right taps; 1: a lane loads both
//   SAMPLE_GROUPS           parts of a lane group that share out the samples of a pass
//   SAMPLES_PER_LANE        samples that a lane locates per pass
//   HEADS_PER_BLOCK THREADS BLOCKS_PER_SM
//   LOCATION_ALIGN WEIGHT_ALIGN   alignment in bytes of a lane's locations and weights
//   REFERENCE_ALIGN         alignment in bytes of a reference point
//   STRIP_HEIGHT            queries are pixels, visited in strips of this many rows, if not 0
//   ORDERED                 queries are visited in the order of a list that order.cu wrote
//   SORTED                  a block sorts its queries by location first (resident.cu)
//   POSITIONS_16BIT         positions fit 16 bits
//   RING                    levels have a ring of zeros
//   PIXEL_STRIDE            bytes from a position to the next, or 0: an argument
//   ROW_PITCHES             bytes from image row to image row, per level, or 0: arguments
//   F16_SUMS                the samples of a lane are summed in f16, then added to sums in f32
//   NEAREST BORDER CORNERS  options of the problem
//   FUSED                   0: locations and weights; 2 or 4: numbers per reference point
//   DEVICE_LEVELS           level sizes are in device memory: levels_in_memory.cuh
//   THIN_LEVELS             levels may be one pixel high or wide (streaming.cu)
//   FIRST_RESIDENT          first resident level; LEVELS: none (streaming.cu)
//   BACKWARD                backward/samples.cu: `output` is the gradient of the output
//   SHARED_BYTES            shared memory without resident levels, computed by the host
//   ARGS_BYTES ARGS_FIELDS  the argument of the host: see CHECK_ARGS
//   HOST_*                  constants that the host computes with
#pragma once
#include "common/accumulate.cuh"
#include "common/levels.cuh"
#include "common/softmax.cuh"
#include "common/taps.cuh"
#include "common/tensor.cuh"

constexpr int GROUP_LANES = LANES_PER_ROW * TAP_COLUMNS * SAMPLE_GROUPS;
constexpr int GROUPS_PER_WARP = 32 / GROUP_LANES;
constexpr int WARPS = THREADS / 32;
static_assert(THREADS % 32 == 0, "whole warps");
static_assert(TAP_COLUMNS == 1 || TAP_COLUMNS == 2, "a square of taps has two columns");
static_assert(VEC == 2 || VEC == 4 || VEC == 8 || VEC == 16 || VEC == 32, "one or two loads");
static_assert(CHANNELS_PER_LANE * size_of<VALUE> == VEC, "whole channels per lane");
static_assert(GROUP_LANES <= 32 && 32 % GROUP_LANES == 0, "whole lane groups per warp");
static_assert(THREADS % (GROUP_LANES * HEADS_PER_BLOCK) == 0, "all heads of a query in a block");
static_assert(UNIFORM_POINTS == 0 || UNIFORM_POINTS * LEVELS == SAMPLES, "samples of all levels");
static_assert(FUSED == 0 || FUSED == 2 || FUSED == 4, "numbers per reference point");
static_assert(!(SORTED && ORDERED) && !(STRIP_HEIGHT > 0 && (SORTED || ORDERED)), "one walk");
constexpr int QUERIES_PER_TILE = THREADS / GROUP_LANES / HEADS_PER_BLOCK;
constexpr bool FULL_ROW = ROW_BYTES == LANES_PER_ROW * VEC; // no lane lies past the end of a row

constexpr int SAMPLES_PER_PASS = GROUP_LANES * SAMPLES_PER_LANE;
constexpr int PASSES = (SAMPLES + SAMPLES_PER_PASS - 1) / SAMPLES_PER_PASS;
constexpr bool FULL_PASSES = SAMPLES % SAMPLES_PER_PASS == 0;
// Load the inputs of the next pass while this one is summed, if there are registers for it.
constexpr bool PREFETCH = SAMPLES_PER_LANE <= 2;

constexpr bool HAS_RESIDENT = FIRST_RESIDENT < LEVELS;
// All samples that a lane locates in a pass lie on one level, so the lane reads its level once.
constexpr int MAX_LANE_LEVEL_PASSES = HAS_RESIDENT && SAMPLE_GROUPS == 1 ? 4 : 1;
constexpr bool LANE_LEVEL =
    UNIFORM_POINTS > 0 && UNIFORM_POINTS % SAMPLES_PER_LANE == 0 && PASSES <= MAX_LANE_LEVEL_PASSES;
// The compiler knows which samples lie on resident levels: passes are unrolled.
constexpr bool STATIC_RESIDENCY = HAS_RESIDENT && LANE_LEVEL && SAMPLE_GROUPS == 1;
constexpr int FIRST_RESIDENT_SAMPLE = STATIC_RESIDENCY ? FIRST_RESIDENT * UNIFORM_POINTS : 0;

static_assert(!HAS_RESIDENT || (!DEVICE_LEVELS && !NEAREST && VEC == 16), "what resident.cu reads");
constexpr int REFERENCE_NUMBERS = FUSED == 2 ? 2 : 4; // per reference point
constexpr int FIXED_ROW_PITCH[] = {ROW_PITCHES};
static_assert(!DEVICE_LEVELS || FIXED_ROW_PITCH[0] == 0, "sizes are not known before");

typedef SoftmaxOf<float> Softmax;

struct __align__(8) Level { // so that a lane reads two numbers at once
    int height, width;
    int origin;           // position of pixel (0, 0)
    int pitch, row_pitch; // from image row to image row: in positions, in bytes
    int first_sample;
    int first_query;     // if queries are pixels
    float inverse_strip; // 1 / pixels of a whole strip
    float rows, columns; // height and width as floats
#if FUSED == 2
    float inverse_rows, inverse_columns; // unset for levels in device memory
#elif FUSED == 4
    float box_share; // what one unit of offset adds to a location, as a share of the box
#endif
#if THIN_LEVELS
    int shift; // see shift_of
#endif
};

// 1: a level of one pixel at the last position. Its square of taps begins one pixel earlier.
__device__ __forceinline__ int shift_of(const Level &level) {
#if THIN_LEVELS
    return level.shift;
#else
    return 0;
#endif
}

// An entry of the table made of level sizes in device memory: levels_in_memory.cuh.
struct __align__(16) ReadLevel {
    int origin, pitch, row_pitch, shift;
    float rows, columns;
    int first_query, width;
};

static_assert(sizeof(ReadLevel) == HOST_READ_LEVEL_BYTES, "host and kernel disagree about a level");

// How tiles are divided among blocks; for resident.cu.
struct Tiling {
    int images_per_block, tiles_per_block, tiles_per_image;
    int resident_positions, first_resident_position;
};

struct Args {
    Tensor value, locations, weights, reference, output;
    const int *order; // per image: its queries in the order to visit them (ORDERED)
    int queries, heads, batch;
    Tiling tiling;
    Level level[LEVELS]; // DEVICE_LEVELS: only first_sample and box_share count
#if DEVICE_LEVELS
    const i64 *shapes; // (height, width) of each level
    const i64 *starts; // first position of each level
    u32 positions, unused;
#endif
#if BACKWARD
    Tensor grad_locations, grad_weights;
    float *softmax;      // FUSED: the weights of all samples, per plane and level; may be null
    float2 *grad_points; // FUSED: gradients of the locations of all samples, if they are wanted
#endif
};
CHECK_ARGS;

// The part of the work that belongs to a lane.
struct Lane {
    int index;        // in the warp
    int in_group;     // lane in its group
    int sample_group; // which samples of a pass it sums
    int tap_column;   // 0: left taps, 1: right taps, if TAP_COLUMNS == 2
    int row_offset;   // first byte of the row that it sums
    bool in_row;      // false: past the end of the row; stores nothing

    __device__ __forceinline__ Lane() {
        index = threadIdx.x & 31;
        in_group = index % GROUP_LANES;
        sample_group = in_group / (LANES_PER_ROW * TAP_COLUMNS);
        tap_column = in_group / LANES_PER_ROW % TAP_COLUMNS;
        const int chunk = in_group % LANES_PER_ROW;
        in_row = FULL_ROW || chunk * VEC < ROW_BYTES;
        row_offset = in_row ? chunk * VEC : 0;
    }
    __device__ __forceinline__ int group() const { return index / GROUP_LANES; } // in the warp
};

// The dynamic shared memory of a block: staging first.
extern __shared__ uint4 shared[];

// The table of level sizes in device memory, in shared memory behind the staging: of the warp, or
// of the block if queries are visited in strips.
__device__ __forceinline__ ReadLevel *read_levels() {
    const int warp = STRIP_HEIGHT > 0 ? 0 : threadIdx.x / 32;
    return reinterpret_cast<ReadLevel *>(shared + SHARED_BYTES / 16) + warp * LEVELS;
}

// A level: its entry of the argument, or of the table made of device memory.
#if DEVICE_LEVELS
__device__ __forceinline__ Level level_at(const Args &args, int l) {
    const ReadLevel from = read_levels()[l];
    Level level;
    level.height = int(from.rows), level.width = from.width;
    level.origin = from.origin, level.pitch = from.pitch, level.row_pitch = from.row_pitch;
    level.first_sample = args.level[l].first_sample, level.first_query = from.first_query;
    level.inverse_strip = __fdividef(1.0f, (STRIP_HEIGHT > 0 ? STRIP_HEIGHT : 1) * from.columns);
    level.rows = from.rows, level.columns = from.columns;
#if THIN_LEVELS
    level.shift = from.shift;
#endif
    return level;
}
#else
__device__ __forceinline__ const Level &level_at(const Args &args, int l) { return args.level[l]; }
#endif

// Bytes from image row to image row of a level. If they are macros and the level is known, this
// costs nothing.
__device__ __forceinline__ int row_pitch_of(const Args &args, int level) {
    if constexpr (FIXED_ROW_PITCH[0] == 0) {
        return DEVICE_LEVELS ? read_levels()[level].row_pitch : args.level[level].row_pitch;
    } else {
        constexpr int COUNT = sizeof(FIXED_ROW_PITCH) / sizeof(int);
        int pitch = FIXED_ROW_PITCH[0];
#pragma unroll
        for (int l = 1; l < COUNT; l++) pitch = level >= l ? FIXED_ROW_PITCH[l] : pitch;
        return pitch;
    }
}
