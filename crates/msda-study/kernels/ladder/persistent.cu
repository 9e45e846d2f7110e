// persistent: one block per SM for the whole call. Blocks take work items from a counter, and keep
// the coarse levels of the current plane in shared memory.
//
//   counter:   0 1 2 3 4 5 ...      a work item: some queries of one plane, one group of channels
//              | | |
//   block 0 <--' | '--> block 0 again, when it is done; for another plane it copies levels anew
//   block 1 <----'
//
// The items of a plane follow each other, so all blocks work on a few planes at a time, which L2
// holds.
//
//   CHANNEL_GROUPS  parts that a row is divided into. An item computes one, so that more positions
//                   fit shared memory; but every group locates all samples again
//   PARTIAL         of the level that does not fit, as much is resident as there is room for
//   LOCATE          each sample is located once, by one lane, and staged through shared memory of
//                   the warp, STAGED samples per query at a time
//   PITCH           there, entries from sample to sample: one per query, or a few more, so that
//                   lanes store to different banks
//   STATIC          blocks do not take items: block b computes items b, b + gridDim.x and so on
//   LOAD UNROLL VEC F16_SUMS  as in direct.cu
//   SAMPLES_PER_LOAD  samples whose locations and weights a thread with one channel loads at once,
//                   LOCATION_ALIGN and WEIGHT_ALIGN bytes at a time; it divides the points
//
// One change at a time, each without the others and without LOCATE:
//
//   ORDERED         queries in the order of a list, in which neighbours sample the same places
//   INT8            values are bytes, interpolated in f16 (int8.cuh); sums are f32
//   TEXTURE         the texture unit loads and interpolates samples of levels that are not resident
//                   (texels.cuh)
//   PREFETCH        rows of the next query are copied while a query is computed (prefetch.cuh)
//   LOADERS         warps that only load locations and weights (loaders.cuh)
//
// Which block computes an item depends on the run. How it is computed does not.
//
// Bound by: latency. With one block per SM, no other block runs while it waits. With one channel
// per thread: instructions.
// Best for: many planes and uneven work.
// With 16 bytes per lane there are no registers for addresses.
#define ONE_CHANNEL (VEC <= 4)
#define HIDE_ADDRESS ONE_CHANNEL
#include "ladder/staged.cuh"
#include "ladder/resident.cuh"
#if INT8
#include "ladder/int8.cuh"
#endif
#if TEXTURE
#include "ladder/texels.cuh"
#endif
#if PREFETCH
#include "ladder/prefetch.cuh"
#endif
#if LOADERS
#include "ladder/loaders.cuh"
#endif

constexpr int WARPS = THREADS / 32;
constexpr int GROUPS_PER_WARP = 32 / GROUP_LANES; // if LOCATE; 0: a group is longer than a warp
// Queries side by side in a block.
constexpr int GROUPS = PREFETCH ? WARPS
                       : LOCATE ? WARPS * GROUPS_PER_WARP
                                : (THREADS - LOADERS * 32) / GROUP_LANES;

struct Args {
    Call call;
    int *next_item;
    int items, items_per_plane, queries_per_item;
    Residency residency[LEVELS];
#if ORDERED
    const int *order;
#endif
#if INT8
    const float *top; // largest |value| of each plane
    const char *rows;
    i64 plane_stride; // bytes of rows from plane to plane
#endif
#if TEXTURE
    Texture texture[LEVELS];
#endif
};
CHECK_ARGS;

// A work item: plane, group of channels, first query and the end.
struct Item {
    int image, head, channel_group, first, end;
};

#if TEXTURE
extern "C" __global__ void __launch_bounds__(THREADS)
    msda_texels(const __grid_constant__ Args args) {
    copy_texels(args.call, args.texture[blockIdx.y]);
}
#endif

#if LOCATE
constexpr int SAMPLES_PER_PASS = 32 / GROUPS_PER_WARP; // located by a warp, per query
static_assert(SAMPLES_PER_PASS % STAGED == 0, "a pass is staged in equal parts");
typedef StagedTaps<STAGED * PITCH> WarpStage;

struct Stages {
    WarpStage warp[WARPS];
};

__device__ __forceinline__ void compute_tile(const Args &args, const Plane &plane, const Item &item,
                                             int tile, WarpStage &stage) {
    const Call &call = args.call;
    const int lane = threadIdx.x & 31;
    const int first = tile + int(threadIdx.x) / 32 * GROUPS_PER_WARP;
    // This lane locates sample `in_pass` of query `located` of the warp.
    const int located = lane / SAMPLES_PER_PASS, in_pass = lane % SAMPLES_PER_PASS;
    const bool locates = located < GROUPS_PER_WARP && first + located < item.end;
    // It sums VEC bytes of query `summed`.
    const int summed = lane / GROUP_LANES, row_offset = lane % GROUP_LANES * VEC;
    const bool sums = summed < GROUPS_PER_WARP && first + summed < item.end;
    float sum[CHANNELS_PER_LANE];
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
    SampleInput next{};
    if (locates && in_pass < SAMPLES) {
        next = load_sample(call, item.image, first + located, item.head, in_pass);
    }
#pragma unroll 1
    for (int pass = 0; pass < SAMPLES; pass += SAMPLES_PER_PASS) {
        const int s = pass + in_pass;
        const Taps taps = taps_of(call.level[level_of(call, min(s, SAMPLES - 1))], next);
#pragma unroll 1
        for (int part = 0; part < SAMPLES_PER_PASS && pass + part < SAMPLES; part += STAGED) {
            __syncwarp();
            const int in_part = in_pass - part;
            if (locates && s < SAMPLES && in_part >= 0 && in_part < STAGED) {
                stage.store(in_part * PITCH + located, taps);
            }
            __syncwarp();
            // Load the inputs of the next pass while this one is summed.
            if (part == 0 && locates && s + SAMPLES_PER_PASS < SAMPLES) {
                next =
                    load_sample(call, item.image, first + located, item.head, s + SAMPLES_PER_PASS);
            }
            if (!sums) continue;
#pragma unroll UNROLL
            for (int r = 0; r < STAGED; r++) {
                if (SAMPLES % STAGED != 0 && pass + part + r >= SAMPLES) break;
                add_taps(sum, plane, row_offset, args.residency[level_of(call, pass + part + r)],
                         stage.load(r * PITCH + summed));
            }
        }
    }
    if (sums) {
        const int offset = item.channel_group * GROUP_BYTES + row_offset;
        store_output(call, item.image, first + summed, item.head, offset, sum);
    }
}

struct Worker {
    __device__ __forceinline__ void init(Stages &) {}
    __device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Item &item,
                                            Stages &stages) {
#pragma unroll 1
        for (int tile = item.first; tile < item.end; tile += GROUPS) {
            compute_tile(args, plane, item, tile, stages.warp[threadIdx.x / 32]);
        }
    }
};
#elif PREFETCH
struct Stages {
    QueryRows rows[WARPS][2];
};

struct Worker {
    __device__ __forceinline__ void init(Stages &) {}
    __device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Item &item,
                                            Stages &stages) {
        const Call &call = args.call;
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, row_offset = lane * VEC;
        const auto load = [&](int query) {
            return load_input(call, item.image, min(query, item.end - 1), item.head, lane);
        };
        int query = item.first + warp, buffer = 0;
        if (query >= item.end) return;
        copy_rows(stages.rows[warp][0], load(query), call, plane, lane);
        cp_async_commit();
        QueryInput next = load(query + GROUPS);
#pragma unroll 1
        for (; query < item.end; query += GROUPS, buffer ^= 1) {
            const QueryInput input = next;
            next = load(query + 2 * GROUPS);
            if (query + GROUPS < item.end) {
                copy_rows(stages.rows[warp][buffer ^ 1], input, call, plane, lane);
            }
            cp_async_commit();
            cp_async_wait_all_but_last();
            __syncwarp();
            if (lane < GROUP_LANES) {
                sum_copied(args, plane, item, query, row_offset, stages.rows[warp][buffer]);
            }
            // The rows of the next query but one overwrite this buffer.
            __syncwarp();
        }
    }

    __device__ __forceinline__ void sum_copied(const Args &args, const Plane &plane,
                                               const Item &item, int query, int row_offset,
                                               const QueryRows &rows) {
        const Call &call = args.call;
        float sum[CHANNELS_PER_LANE] = {};
        const QueryInputs inputs = inputs_of(call, item.image, query, item.head);
        const u32 copied = hidden_address(&rows) + row_offset;
        for_each_level(call, [&](int l, int first, int end) {
            const Residency residency = args.residency[l];
            const Level level = call.level[l];
#pragma unroll UNROLL
            for (int s = first; s < end; s++) {
                const Taps taps = taps_of(level, inputs.load(s));
                if (s < STREAMED) {
                    add_copied(sum, copied, s, taps);
                } else {
                    add_taps(sum, plane, row_offset, residency, taps);
                }
            }
        });
        store_output(call, item.image, query, item.head, row_offset, sum);
    }
};
#elif LOADERS
static_assert(QUERIES_PER_TILE == GROUPS, "a tile of the loaders is a tile of the block");

struct Stages {
    InputBuffers buffers;
};

struct Worker {
    Cursor cursor;

    __device__ __forceinline__ void init(Stages &stages) {
        cursor = Cursor{0, 0};
        stages.buffers.init();
    }
    __device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Item &item,
                                            Stages &stages) {
        const Call &call = args.call;
        const Tiles tiles{item.image, item.head, item.first, item.end, QUERIES_PER_TILE};
        if (is_loader()) {
            load_tiles(stages.buffers, cursor, call, tiles);
            return;
        }
        const int row_offset = (int(threadIdx.x) - LOADING_THREADS) % LANES_PER_ROW * VEC;
        sum_tiles(
            stages.buffers, cursor, call, tiles,
            [&](float (&sum)[CHANNELS_PER_LANE], int l, const Taps &taps) {
                add_taps(sum, plane, row_offset, args.residency[l], taps);
            },
            [&](int query, float (&sum)[CHANNELS_PER_LANE]) {
                store_output(call, item.image, query, item.head, row_offset, sum);
            });
    }
};
#else
struct Stages {};

#if INT8
// The bytes of a channel, from either memory.
__device__ __forceinline__ TapBytes load_bytes(const Plane &plane, int channel,
                                               const Residency &residency, const Taps &taps) {
    TapBytes bytes{};
    if (residency.first == NOT_RESIDENT) {
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const char *from = address_mad(plane.value, taps.position[k], plane.pixel_stride);
            asm("{.reg .pred p; setp.ge.s32 p, %2, 0; @p ld.global.nc.u8 %0, [%1];}"
                : "+r"(bytes.tap[k])
                : "l"(from + channel), "r"(taps.position[k]));
        }
    } else {
        const u32 first = plane.address + residency.offset * SHARED_PIXEL_STRIDE + channel;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const int i = taps.position[k] - residency.first;
            asm volatile("{.reg .pred p; setp.ge.s32 p, %2, 0; @p ld.shared.u8 %0, [%1];}"
                         : "+r"(bytes.tap[k])
                         : "r"(first + i * SHARED_PIXEL_STRIDE), "r"(i));
        }
    }
    return bytes;
}
#endif

#if ONE_CHANNEL
// Adds a sample on level l to the sums of a lane of its group.
__device__ __forceinline__ void add_sample(Sums &sum, const Args &args, const Plane &plane,
                                           const Item &item, int lane, int l, const Level &level,
                                           const Residency &residency, const SampleInput &input) {
#if INT8
    const Taps taps = taps_of(level, SampleInput{input.x, input.y, 1});
    const TapBytes bytes = load_bytes(plane, lane, residency, taps);
    sum[0] = fmaf(input.weight, interpolate(bytes, taps), sum[0]);
#else
#if TEXTURE
    if (residency.first == NOT_RESIDENT) {
        const Located at = locate(level, input);
        const int number = item.image * args.call.heads + item.head;
        if (at.counts) {
            sum[0] = fmaf(input.weight, fetch(args.texture[l], level, number, lane, at).x, sum[0]);
        }
        return;
    }
#endif
    add_taps(sum, plane, lane * VEC, residency, taps_of(level, input));
#endif
}

// Sums the lane's channel of a query, level by level.
__device__ __forceinline__ void sum_levels(Sums &sum, const Args &args, const Plane &plane,
                                           const Item &item, int query, int lane) {
    const Call &call = args.call;
    const QueryInputs inputs = inputs_of(call, item.image, query, item.head);
    for_each_level(call, [&](int l, int first, int end) {
        const Residency residency = args.residency[l];
        const Level level = call.level[l];
#pragma unroll UNROLL
        for (int s = first; s < end; s += SAMPLES_PER_LOAD) {
            SampleInput input[SAMPLES_PER_LOAD];
            inputs.load_many<SAMPLES_PER_LOAD, LOCATION_ALIGN, WEIGHT_ALIGN>(input, s);
#pragma unroll
            for (int t = 0; t < SAMPLES_PER_LOAD; t++) {
                add_sample(sum, args, plane, item, lane, l, level, residency, input[t]);
            }
        }
    });
}
#endif

struct Worker {
    __device__ __forceinline__ void init(Stages &) {}
    __device__ __forceinline__ void compute(const Args &args, const Plane &plane, const Item &item,
                                            Stages &) {
        const Call &call = args.call;
        const int group = int(threadIdx.x) / GROUP_LANES, lane = int(threadIdx.x) % GROUP_LANES;
        if (group >= GROUPS) return;
#pragma unroll 1
        for (int i = item.first + group; i < item.end; i += GROUPS) {
#if ORDERED
            const int query = args.order[i64(item.image) * call.queries + i];
#else
            const int query = i;
#endif
            Sums sum = {};
#if ONE_CHANNEL
            sum_levels(sum, args, plane, item, query, lane);
#else
            sum_query(sum, call, args.residency, plane, item.image, item.head, query, lane * VEC);
#endif
            const int offset = (item.channel_group * GROUP_LANES + lane) * VEC;
#if INT8
            sum[0] *= args.top[item.image * call.heads + item.head] * (1.0f / 127);
            store_sums(call.output.at(item.image, query, item.head) + offset, sum);
#else
            store_output(call, item.image, query, item.head, offset, sum);
#endif
        }
    }
};
#endif

static_assert(STAGE_BYTES % 16 == 0 && (STAGE_BYTES == 0 || sizeof(Stages) <= STAGE_BYTES),
              "the host reserves shared memory for the stages");

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    __shared__ int next[2], resident_plane; // plane and channel group that shared memory holds
    const Call &call = args.call;
    Stages &stages = *reinterpret_cast<Stages *>(shared);
    char *resident = reinterpret_cast<char *>(shared) + STAGE_BYTES;
    Plane plane{nullptr, call.value.row_stride, resident, hidden_address(resident)};
#if INT8
    plane.pixel_stride = STORED_ROW_BYTES;
#endif
    Worker worker;
    worker.init(stages);
    const auto item_after = [&](int number) {
        return STATIC ? number + int(gridDim.x) : atomicAdd(args.next_item, 1);
    };
    if (threadIdx.x == 0) {
        next[0] = item_after(int(blockIdx.x) - int(gridDim.x));
        resident_plane = -1;
    }
#pragma unroll 1
    for (int parity = 0;; parity ^= 1) {
        // All threads are done with the last item: its number and its levels may be overwritten.
        __syncthreads();
        const int number = next[parity];
        if (number >= args.items) return;
        if (threadIdx.x == 0) next[parity ^ 1] = item_after(number);
        const int plane_number = number / args.items_per_plane;
        const int channel_group = plane_number % CHANNEL_GROUPS;
        const int head = plane_number / CHANNEL_GROUPS % call.heads;
        const int image = plane_number / CHANNEL_GROUPS / call.heads;
#if INT8
        plane.value = opaque(args.rows + plane_number * args.plane_stride);
#else
        plane.value = opaque(call.value.at(image, 0, head) + channel_group * GROUP_BYTES);
#endif
        if (plane_number != resident_plane) {
            load_resident(plane, args.residency);
            __syncthreads();
            if (threadIdx.x == 0) resident_plane = plane_number;
        }
        const int first = number % args.items_per_plane * args.queries_per_item;
        const int end = min(first + args.queries_per_item, call.queries);
        worker.compute(args, plane, Item{image, head, channel_group, first, end}, stages);
    }
}
