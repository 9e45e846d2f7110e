// streaming: multi-scale deformable attention, forward; values come through L1 and L2.
//
//   output[b, q, h, :] = sum over samples s of weight[b, q, h, s] * bilinear(value[b, :, h, :], s)
//
// Threads: a lane group computes one (query, head); each lane loads 16 bytes of every row.
//
//   a warp with f16 values of 32 channels (4 lanes per row) and two heads per block:
//
//     lane   0  1  2  3 | 4  5  6  7 | 8  9 10 11 | ...
//            query 0      query 0      query 1
//            head  0      head  1      head  0
//            16 bytes per lane
//
// In (B, S, H, D) the halves of a 128-byte line belong to an even and an odd head. A quarter of a
// warp that holds both heads of a query loads two rows that never meet in a bank of L1. A block
// holds a tile of neighbouring queries, so that they find each other's rows in L1.
//
// Each sample is located once, by one lane, and staged through shared memory: common/group.cuh.
//
// Bound by: the L1 data path if queries are many, loads in flight if they are few.
// Best for: almost every problem; see choose/ for the exceptions.
#include "common/group.cuh"
#include "common/levels_in_memory.cuh"
#include "common/walk.cuh"

static_assert(sizeof(WarpStage) * WARPS == SHARED_BYTES, "host and kernel disagree about staging");

// One image and head of the lane.
struct StreamingSource {
    HeadRows rows;
    Level lane_level;
    int image_index;
    int lane_sample; // the first sample that the lane locates
    LoadedLevel loaded;

    // Strips need the level sizes before the query is known. Otherwise the table is awaited as late
    // as possible.
    static constexpr bool PUBLISHES_LATE = DEVICE_LEVELS && STRIP_HEIGHT == 0;

    __device__ __forceinline__ int image() const { return image_index; }
    __device__ __forceinline__ void inputs(const Args &args, int query, int head, int lane_in_group,
                                           const char *&locations, const char *&weights) const {
        const int first = lane_in_group * SAMPLES_PER_LANE;
        locations =
            args.locations.address(image_index, query, head) + first * (2 * size_of<LOCATION>);
        weights = args.weights.address(image_index, query, head) + first * size_of<WEIGHT>;
    }
    __device__ __forceinline__ char *output(const Args &args, int query, int head) const {
        return args.output.address(image_index, query, head);
    }
    __device__ __forceinline__ void load_taps(TapRows &to, int position, int, int row_pitch) const {
        ::load_taps(to, rows, position, row_pitch);
    }
    __device__ __forceinline__ void publish_levels(const Args &args) {
        if (PUBLISHES_LATE) publish_level(args, loaded);
        if (DEVICE_LEVELS && LANE_LEVEL) lane_level = level_at(args, level_of(args, lane_sample));
    }
    // Nothing to load, nothing to wait for.
    __device__ __forceinline__ void load_lane_level(int) const {}
    __device__ __forceinline__ bool pending() const { return false; }
    __device__ __forceinline__ void wait() const {}
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_forward_streaming(const __grid_constant__ Args args) {
    WarpStage &stage = reinterpret_cast<WarpStage *>(shared)[threadIdx.x / 32];
    const LoadedLevel loaded = load_level(args);
    const Lane lane;
    const int group = threadIdx.x / GROUP_LANES; // in the block
    const int head = blockIdx.y * HEADS_PER_BLOCK + group % HEADS_PER_BLOCK, image = blockIdx.z;
    const int first_sample = min(lane.in_group * SAMPLES_PER_LANE, SAMPLES - 1);
    const char *rows = args.value.address(image, lane.tap_column, head < args.heads ? head : 0);
    StreamingSource source{{rows + lane.row_offset, args.value.row_stride},
                           args.level[LANE_LEVEL ? level_of(args, first_sample) : 0],
                           image,
                           first_sample,
                           loaded};
    const int q = blockIdx.x * QUERIES_PER_TILE + group / HEADS_PER_BLOCK;
    const bool pixels =
        DEVICE_LEVELS && STRIP_HEIGHT > 0 ? publish_level(args, loaded) : STRIP_HEIGHT > 0;
    process_group(args, lane, stage, source, query_of(args, image, q, 0, nullptr, pixels), head);
}
