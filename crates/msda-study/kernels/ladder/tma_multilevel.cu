// tma_multilevel: the copy engine brings the four taps of a sample to shared memory in one piece.
//
//   a level as the engine knows it:         a sample:                     in shared memory:
//   {channels, heads, width, height,
//    images} with any strides               . . . .                       [ row(0,0) | row(0,1) | row(1,0) | row(1,1) ]
//                                           . 0 1 .   one 2 x 2 window
//                                           . 2 3 .   of all channels     weights that go with them: [ w w w w ]
//
// A warp has a few queries, GROUP samples of them at a time, and two stages: while the windows of one group are
// summed, those of the next are on their way. All samples of all its queries are one sequence of groups, so the engine
// never waits for a query to end.
//
//   stage 0  [windows of group 0] [group 2] ...        full[0]: how many bytes are still missing
//   stage 1        [windows of group 1] [group 3] ...  full[1]
//
// A stage is empty when the warp has passed its end, which needs no barrier but the warp's own. What lies outside a map is
// zero for the engine, so no ring is needed and none is read; its weights are zero too.
//
// Wins: where computing addresses is what takes the time. The engine's rate of windows is the limit here.
//
// Knobs: GROUP, WARPS. SHARED is what the host believes a block needs.
#include "ladder/ladder.cuh"

constexpr int ITEMS = 32 / LANES; // queries of a warp
constexpr int GROUPS = (SAMPLES + GROUP - 1) / GROUP;
constexpr int BYTES = TAPS * ROW;                  // of a window
constexpr int WINDOW = (BYTES + 127) / 128 * 128; // and from one to the next

struct __align__(128) Map {
    u64 word[16];
};

struct Args {
    Call call;
    int tiles;
    Map map[LEVELS];
};

struct __align__(128) Stage {
    char window[ITEMS * GROUP][WINDOW];
    float weight[ITEMS * GROUP][TAPS];
};

struct __align__(128) Pipe {
    Stage stage[2];
    u64 full[2];
};

static_assert(sizeof(Pipe) * WARPS == SHARED, "the host counts otherwise");

__device__ __forceinline__ u32 shared_address(const void *at) { return __cvta_generic_to_shared(at); }

__device__ __forceinline__ void expect(u64 &full, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&full)), "r"(bytes) : "memory");
}

__device__ __forceinline__ void wait(u64 &full, u32 phase) {
    u32 done = 0;
    while (!done) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(&full)), "r"(phase)
                     : "memory");
    }
}

__device__ __forceinline__ void copy(char *to, const Map &map, int head, int x, int y, int image, u64 &full) {
    asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4, %5, %6}], [%7];" ::"r"(shared_address(to)),
                 "l"(&map), "r"(0), "r"(head), "r"(x), "r"(y), "r"(image), "r"(shared_address(&full))
                 : "memory");
}

// Queries that read rows of 16 or 32 banks at the same time begin at different taps.
__device__ __forceinline__ int turned(int tap, int item) { return NEAREST ? tap : tap ^ (item & 3); }

// Asks for the windows of a group of samples of some queries, and computes their weights.
__device__ __forceinline__ void ask(const Args &args, Stage &stage, u64 &full, int image, int head, int first, int group) {
    const Call &call = args.call;
    const int lane = threadIdx.x % 32;
    const int items = min(ITEMS, call.queries - first), samples = min(GROUP, SAMPLES - group * GROUP);
    if (lane == 0) expect(full, items * samples * BYTES);
    for (int i = lane; i < ITEMS * GROUP; i += 32) {
        const int item = i / GROUP, s = group * GROUP + i % GROUP;
        if (item >= items || s >= SAMPLES) continue;
        const int l = level_of(call, s);
        const Level &level = call.level[l];
        const Given one = given(call, image, first + item, head, s);
        const Spot at = spot(level, one);
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const int x = at.i + (k & 1), y = at.j + (k >> 1);
            const bool inside = at.there && x >= 0 && y >= 0 && x < level.w && y < level.h;
            const float share = NEAREST ? 1 : (k & 1 ? at.x : 1 - at.x) * (k >> 1 ? at.y : 1 - at.y);
            stage.weight[i][turned(k, item)] = inside ? one.weight * share : 0;
        }
        // Zeros are brought of a sample that is not there.
        copy(stage.window[i], args.map[l], head, at.there ? at.i : -2, at.there ? at.j : -2, image, full);
    }
}

// Adds the windows of a group that are a query's.
__device__ __forceinline__ void add_group(float (&sum)[EACH], const Stage &stage, int item, int chunk, int group) {
#pragma unroll
    for (int g = 0; g < GROUP; g++) {
        if (group * GROUP + g >= SAMPLES) break;
        const int i = item * GROUP + g;
#pragma unroll
        for (int k = 0; k < TAPS; k++) {
            const char *at = stage.window[i] + turned(k, item) * ROW + chunk * VEC;
            const uint4 v = *reinterpret_cast<const uint4 *>(at);
            multiply_add<VALUE>(sum, Vector<VEC>{{v.x, v.y, v.z, v.w}}, stage.weight[i][k]);
        }
    }
}

extern "C" __global__ void __launch_bounds__(WARPS * 32) msda_forward(const __grid_constant__ Args args) {
    const Call &call = args.call;
    extern __shared__ __align__(128) char memory[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int head = blockIdx.y, image = blockIdx.z;
    Pipe &pipe = reinterpret_cast<Pipe *>(memory)[warp];

    // The warp's tiles are `begin`, `begin` + `step` and so on.
    const int begin = blockIdx.x * WARPS + warp, step = gridDim.x * WARPS;
    if (begin >= args.tiles) return;
    const int groups = (args.tiles - begin + step - 1) / step * GROUPS;
    if (lane == 0) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&pipe.full[i])) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncwarp();
    const auto query_of = [&](int n) { return (begin + n / GROUPS * step) * ITEMS; };

    const int item = lane / LANES, chunk = lane % LANES;
    float sum[EACH] = {};
    // Two turns only ask.
    for (int n = -2; n < groups; n++) {
        if (n >= 0) {
            const int group = n % GROUPS, query = query_of(n) + item;
            const bool busy = item < ITEMS && query < call.queries;
            wait(pipe.full[n & 1], n >> 1 & 1);
            if (busy) add_group(sum, pipe.stage[n & 1], item, chunk, group);
            if (group == GROUPS - 1) {
                if (busy) write(call.output.at(image, query, head) + chunk * VEC, sum);
#pragma unroll
                for (int c = 0; c < EACH; c++) sum[c] = 0;
            }
        }
        // Everybody has read the stage, and will see the weights of the other one.
        __syncwarp();
        const int next = n + 2;
        if (next < groups) {
            ask(args, pipe.stage[next & 1], pipe.full[next & 1], image, head, query_of(next), next % GROUPS);
        }
    }
}
