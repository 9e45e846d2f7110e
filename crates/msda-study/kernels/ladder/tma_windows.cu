// tma_windows: one TMA copy brings the four taps of a sample to shared memory.
//
//   a level as the TMA knows it:       a sample:                  in shared memory:
//   {channels, heads, width, height,   . . . .
//    images} with any strides          . 0 1 .   one 2x2 window   [ row 0 | row 1 | row 2 | row 3 ]
//                                      . 2 3 .   of all channels  and their weights [ w w w w ]
//
// Threads: a warp has a few queries and processes GROUP samples of each at a time, with two stages:
// while the windows of one group are summed, those of the next are in flight. All samples of all
// queries of a warp form one sequence of groups, so the TMA never waits for the end of a query.
//
//   stage 0  [windows of group 0] [group 2] ...        full[0]: an mbarrier that counts bytes
//   stage 1        [windows of group 1] [group 3] ...  full[1]
//
// A stage is free when the warp has summed it, so a __syncwarp is enough. The TMA fills with zeros
// outside of a map, so a ring is neither needed nor read; those taps have weight 0 too.
//
// Bound by: the rate of windows of the TMA.
// Best for: problems that are bound by computing addresses.
//
// Macros: GROUP, WARPS. SHARED: shared memory per block that the host computed.
#include "ladder/ladder.cuh"

constexpr int QUERIES_PER_WARP = 32 / LANES_PER_ROW;
constexpr int GROUPS = (SAMPLES + GROUP - 1) / GROUP; // per query
constexpr int WINDOW_BYTES = TAPS * ROW_BYTES;
constexpr int WINDOW_PITCH = (WINDOW_BYTES + 127) / 128 * 128;

struct __align__(128) TensorMap {
    u64 word[16];
};

struct Args {
    Call call;
    int tiles;
    TensorMap map[LEVELS];
};
CHECK_ARGS;

struct __align__(128) Stage {
    char window[QUERIES_PER_WARP * GROUP][WINDOW_PITCH];
    float weight[QUERIES_PER_WARP * GROUP][TAPS];
};

struct __align__(128) WarpStages {
    Stage stage[2];
    u64 full[2];
};

static_assert(sizeof(WarpStages) * WARPS == SHARED, "host and kernel disagree about shared memory");

__device__ __forceinline__ u32 shared_address(const void *at) {
    return __cvta_generic_to_shared(at);
}

__device__ __forceinline__ void expect_bytes(u64 &full, int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)),
        "r"(bytes)
        : "memory");
}

__device__ __forceinline__ void wait(u64 &full, u32 phase) {
    u32 done = 0;
    while (!done) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(&full)), "r"(phase)
                     : "memory");
    }
}

__device__ __forceinline__ void copy_window(char *to, const TensorMap &map, int head, int x, int y,
                                            int image, u64 &full) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(0), "r"(head), "r"(x), "r"(y), "r"(image),
                 "r"(shared_address(&full))
                 : "memory");
}

// Queries of a warp begin at different taps, so that their rows lie in different banks.
__device__ __forceinline__ int swizzle(int tap, int query_in_warp) {
    return NEAREST ? tap : tap ^ (query_in_warp & 3);
}

// Issues the copies of a group of samples of the warp's queries, and computes their weights.
__device__ __forceinline__ void issue_group(const Args &args, Stage &stage, u64 &full, int image,
                                            int head, int first_query, int group) {
    const Call &call = args.call;
    const int lane = threadIdx.x % 32;
    const int queries = min(QUERIES_PER_WARP, call.queries - first_query);
    const int samples = min(GROUP, SAMPLES - group * GROUP);
    if (lane == 0) expect_bytes(full, queries * samples * WINDOW_BYTES);
    for (int i = lane; i < QUERIES_PER_WARP * GROUP; i += 32) {
        const int query_in_warp = i / GROUP, s = group * GROUP + i % GROUP;
        if (query_in_warp >= queries || s >= SAMPLES) continue;
        const int l = level_of(call, s);
        const Level &level = call.level[l];
        const SampleInput input = load_sample(call, image, first_query + query_in_warp, head, s);
        const Located at = locate(level, input);
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const int x = at.i + (k & 1), y = at.j + (k >> 1);
            const bool inside =
                at.counts && x >= 0 && y >= 0 && x < level.width && y < level.height;
            const float share =
                NEAREST ? 1 : (k & 1 ? at.x : 1 - at.x) * (k >> 1 ? at.y : 1 - at.y);
            stage.weight[i][swizzle(k, query_in_warp)] = inside ? input.weight * share : 0;
        }
        // For a sample that does not count, a window off the map: zeros.
        copy_window(stage.window[i], args.map[l], head, at.counts ? at.i : -2,
                    at.counts ? at.j : -2, image, full);
    }
}

// Adds the windows of a group that belong to a query.
__device__ __forceinline__ void add_group(float (&sum)[CHANNELS_PER_LANE], const Stage &stage,
                                          int query_in_warp, int chunk, int group) {
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (group * GROUP + g >= SAMPLES) break;
        const int i = query_in_warp * GROUP + g;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const char *from =
                stage.window[i] + swizzle(k, query_in_warp) * ROW_BYTES + chunk * VEC;
            const uint4 v = *reinterpret_cast<const uint4 *>(from);
            multiply_add<VALUE>(sum, Vector<VEC>{{v.x, v.y, v.z, v.w}}, stage.weight[i][k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32)
    msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(128) char memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, image = blockIdx.z;
    WarpStages &stages = reinterpret_cast<WarpStages *>(memory)[warp];

    // The warp's tiles are `begin`, `begin` + `step` and so on.
    const int begin = blockIdx.x * WARPS + warp, step = gridDim.x * WARPS;
    if (begin >= args.tiles) return;
    const int groups = (args.tiles - begin + step - 1) / step * GROUPS;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            asm volatile(
                "mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&stages.full[i]))
                : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::
                         : "memory");
    }
    __syncwarp();
    const auto first_query_of = [&](int n) {
        return (begin + n / GROUPS * step) * QUERIES_PER_WARP;
    };

    const int query_in_warp = lane / LANES_PER_ROW, chunk = lane % LANES_PER_ROW;
    float sum[CHANNELS_PER_LANE] = {};
    // The first two iterations only issue copies.
    for (int n = -2; n < groups; n++) {
        if (n >= 0) {
            const int group = n % GROUPS, query = first_query_of(n) + query_in_warp;
            const bool active = query_in_warp < QUERIES_PER_WARP && query < call.queries;
            wait(stages.full[n & 1], n >> 1 & 1);
            if (active) add_group(sum, stages.stage[n & 1], query_in_warp, chunk, group);
            if (group == GROUPS - 1) {
                if (active) store_sums(call.output.at(image, query, head) + chunk * VEC, sum);
#pragma unroll
                for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
            }
        }
        // All lanes are done with this stage, and see the weights of the other one.
        __syncwarp();
        const int next = n + 2;
        if (next < groups) {
            issue_group(args, stages.stage[next & 1], stages.full[next & 1], image, head,
                        first_query_of(next), next % GROUPS);
        }
    }
}
