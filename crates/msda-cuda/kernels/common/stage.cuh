// Staging: located samples pass through shared memory from the lane that located them to the
// lanes of its group. The memory belongs to the warp, so __syncwarp is enough.
//
//   per sample   four tap weights (16 bytes) and a position (2 or 4 bytes)
//   layout       weights[sample of the lane][slot], positions[slot]; a slot belongs to a lane
#pragma once
#include "common/args.cuh"

struct __align__(16) TapWeights {
    float tap[4]; // top left, bottom left, top right, bottom right
};

template <bool SHORT> struct PositionType {
    typedef int Type;
};
template <> struct PositionType<true> {
    typedef u16 Type;
};
typedef PositionType<POSITIONS_16BIT>::Type Position;

// The positions of the samples that a lane locates in a pass.
constexpr int LANE_POSITION_BYTES = SAMPLES_PER_LANE * int(sizeof(Position));
constexpr int LANE_POSITION_ALIGN = LANE_POSITION_BYTES & -LANE_POSITION_BYTES;
struct __align__(LANE_POSITION_ALIGN > 16 ? 16 : LANE_POSITION_ALIGN) LanePositions {
    Position sample[SAMPLES_PER_LANE];
};

// Slots are arranged so that neither the stores of a warp nor its loads meet bank conflicts.
// PADDED_SLOTS: the lanes of a group are a few slots further apart, and a slot's distance from the
// group's first slot is a constant. Padding makes some 8-byte loads cross a row of banks, which
// costs a second wavefront. That is a loss for weights of one tap column, and where the lanes of
// several sample groups load together; there, groups swap places instead (an XOR swizzle).
constexpr bool PADDED_SLOTS = TAP_COLUMNS == 1 && SAMPLE_GROUPS == 1;

__device__ __forceinline__ constexpr int swizzle(int lane_in_group) {
    return GROUP_LANES <= 4 ? lane_in_group * (8 / GROUP_LANES)
                            : lane_in_group * GROUPS_PER_WARP / 8;
}

constexpr int SLOTS = 32 + (PADDED_SLOTS ? swizzle(GROUP_LANES - 1) : 0);

__device__ __forceinline__ int slot_of(int group, int lane_in_group) {
    return lane_in_group * GROUPS_PER_WARP +
           (PADDED_SLOTS ? group + swizzle(lane_in_group)
                         : group ^ (swizzle(lane_in_group) & (GROUPS_PER_WARP - 1)));
}

// STATIC_RESIDENCY: positions are in the order of a group's samples instead of by slot, so that a
// lane loads several at once.
struct WarpStage {
    TapWeights weights[SAMPLES_PER_LANE][SLOTS];
    LanePositions positions[SLOTS];
};

constexpr int POSITIONS_PER_16_BYTES = 16 / int(sizeof(Position));
constexpr int PASS_ALIGN = SAMPLES_PER_PASS & -SAMPLES_PER_PASS;
constexpr int POSITIONS_PER_LOAD =
    PASS_ALIGN < POSITIONS_PER_16_BYTES ? PASS_ALIGN : POSITIONS_PER_16_BYTES;
struct __align__(POSITIONS_PER_LOAD *int(sizeof(Position))) PositionVector {
    Position sample[POSITIONS_PER_LOAD];
};

// What a lane needs of a sample: the position of its first tap, and the weights of its taps,
// [column][top, bottom].
struct Taps {
    int position;
    float weight[2 / TAP_COLUMNS][2];
};

__device__ __forceinline__ Taps load_staged(const TapWeights &from, int position, int tap_column) {
    Taps taps;
    taps.position = position;
    if (TAP_COLUMNS == 2) {
        const float2 w = reinterpret_cast<const float2 *>(from.tap)[tap_column];
        taps.weight[0][0] = w.x, taps.weight[0][1] = w.y;
    } else {
        const float4 w = *reinterpret_cast<const float4 *>(from.tap);
        taps.weight[0][0] = w.x, taps.weight[0][1] = w.y;
        taps.weight[1 / TAP_COLUMNS][0] = w.z, taps.weight[1 / TAP_COLUMNS][1] = w.w;
    }
    return taps;
}
