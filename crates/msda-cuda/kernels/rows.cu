// rows: a few lanes share a (query, head); each reads 16 bytes of every row.
//
//   a warp, f16 values of 32 channels (4 lanes a row), two heads:
//
//     lane   0  1  2  3 | 4  5  6  7 | 8  9 10 11 | ...
//            query 0      query 0      query 1
//            head  0      head  1      head  0
//            16B each     16B each
//
// In (B, S, H, D) the halves of a 128-byte line belong to an even and an odd head: a quarter of a warp that holds both
// heads of one query reads two rows that never collide in the banks of the first-level cache. A block holds a
// tile of neighbouring queries, so that the rows one of them reads are there for the others.
//
// What does not depend on the channel is computed once for each sample, by the lane it falls to, and
// handed to the others through shared memory that belongs to the warp: four weights and a position.
//
// Where a sum is not finite it is computed once more as the definition has it: see add_carefully.
//
// Wins: nearly everywhere.
#include "rows.cuh"

// What a lane is: its place among the lanes of an item, which samples it sums, left or right taps where they are shared, which 16
// bytes of a row.
struct Lane {
    int index, part, group, side, start;
    bool filled; // a lane past the end of the row reads its beginning, and writes nothing
};

// A query and head, by its lanes. `awaited`: levels that the block keeps are not yet there.
__device__ __forceinline__ void visit(const Args &args, const Lane &lane, Handed &handed, const Stay &stay, const Rows &rows, Level &own,
                                      bool &awaited, int image, int query, int head) {
    const bool active = query >= 0 && (KEPT || head < args.heads);
    if (!awaited && !__any_sync(0xffffffffu, active)) return;
    const int q = active ? query : 0, h = active ? head : 0, part = lane.part;
    const char *locations, *weights; // of the lane's first samples
    if constexpr (KEPT) {
        stay.inputs(args, q, part, locations, weights);
    } else {
        locations = args.locations.address(image, q, h) + part * ROUND * (2 * size_of<LOCATION>);
        weights = args.weights.address(image, q, h) + part * ROUND * size_of<WEIGHT>;
    }
    if constexpr (KEPT && FUSED) image = stay.image;
    Softmax softmax{0, 0};
    if (FUSED) softmax = softmax_of(weights - part * ROUND * size_of<WEIGHT>, part, active);

    float sum[EACH];
#pragma unroll
    for (int c = 0; c < EACH; c++) sum[c] = 0;
    Halves halves{};
    Raw raw;
    raw.fetch(active, locations, weights, 0, part);
    constexpr int UNROLLED = PARTED ? ROUNDS : 1;
#pragma unroll UNROLLED
    for (int round = 0; round < SAMPLES; round += EVERY) {
        __syncwarp();
        if constexpr (KEPT && OWN) stay.level(round / ROUND + part, own);
        const int s = round + part * ROUND;
        locate(args, raw, active, image, query, softmax, s, handed, slot(lane.index / ITEM, part), own);
        __syncwarp();
        // What the next round needs is on its way while this one is summed, where there are registers for it.
        const int next = round + EVERY;
        if (AHEAD && next < SAMPLES) raw.fetch(active, locations, weights, next, part);
        Several several;
#pragma unroll
        for (int j = 0; j < ITEM; j += SPLIT) {
            if (round + j * ROUND == NEEDED && awaited) {
                copied();
                __syncthreads();
                awaited = false;
            }
            const int from = j + (SPLIT > 1 ? lane.group : 0), at = slot(lane.index / ITEM, from);
            Positions positions;
            if (!PARTED) positions = handed.positions[at];
#pragma unroll
            for (int r = 0; r < ROUND; r++) {
                const int s = round + from * ROUND + r, k = j * ROUND + r;
                if (PARTED && k % TOGETHER == 0) several = reinterpret_cast<const Several *>(handed.positions)[(lane.index / ITEM * EVERY + k) / TOGETHER];
                if (!EXACT && s >= SAMPLES) continue;
                const int position = int(PARTED ? several.sample[k % TOGETHER] : positions.sample[r]);
                const Taps taps = take(handed.weights[r][at], position, lane.side);
                const int level = level_of(args, s);
                add<VEC>(sum, halves, rows, taps, level, under_of(args, level));
            }
            if (HALF) gather_up(sum, halves);
        }
        if (!AHEAD && next < SAMPLES) raw.fetch(active, locations, weights, next, part);
    }
    float left[LEFT];
    const int first = add_up(sum, part, left);
    if (active && lane.filled && first >= 0) {
        const int start = lane.start + first * size_of<VALUE>;
        if (!finite(left)) {
            if constexpr (KEPT) image = stay.image;
            sum_carefully(left, args, image, query, head, start, softmax);
        }
        char *output;
        if constexpr (KEPT) {
            output = stay.to(args, query);
        } else {
            output = args.output.address(image, query, head);
        }
        write(output + start, left);
    }
}

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    Handed &handed = reinterpret_cast<Handed *>(shared)[threadIdx.x / 32];
    Stay &stay = reinterpret_cast<Stay &>(shared[HANDED]);
    uint4 *kept = shared + HANDED + STAY;
    Lane lane;
    lane.index = threadIdx.x & 31;
    lane.part = lane.index % ITEM;
    lane.group = lane.part / (LANES * SIDES);
    lane.side = lane.part / LANES % SIDES;
    const int chunk = lane.part % LANES;
    lane.filled = FILLED || chunk * VEC < ROW;
    lane.start = lane.filled ? chunk * VEC : 0;
    const int item = threadIdx.x / ITEM; // query and head within the block
    const int head = blockIdx.y * HEADS + item % HEADS;
    Level own = args.level[OWN && !KEPT ? level_of(args, min(lane.part * ROUND, SAMPLES - 1)) : 0];
    bool awaited = false;

    if constexpr (!KEPT) {
        const int image = blockIdx.z;
        const Rows rows{args.value.address(image, lane.side, head < args.heads ? head : 0) + lane.start, args.value.row, 0};
        const int query = query_of(args, image, blockIdx.x * QUERIES + item / HEADS, 0, nullptr);
        visit(args, lane, handed, stay, rows, own, awaited, image, query, head);
    } else {
#pragma unroll 1
        for (int i = threadIdx.x; OWN && i < ITEM * ROUNDS; i += BLOCK) {
            const int s = min(i * ROUND, SAMPLES - 1);
            Level level = args.level[level_of(args, s)];
            if (PARTED && s >= NEEDED) level.origin -= args.first_kept;
            stay.put(i, level);
        }
        u16 *list = reinterpret_cast<u16 *>(kept + args.kept * (ROW / 16));
        // Tiles of queries of one image after another.
#pragma unroll 1
        for (int turn = 0; turn < args.images; turn++) {
            const int image = blockIdx.z * args.images + turn;
            int tile = max(int(blockIdx.x) * args.each - turn * args.tiles, 0);
            const int end = min(int(blockIdx.x + 1) * args.each - turn * args.tiles, args.tiles);
            if (image >= args.batch || tile >= end) continue;
            __syncthreads(); // what is there of the image before is no longer read
            const char *from = args.value.address(image, args.first_kept, head);
            for (int i = threadIdx.x; i < args.kept * (ROW / 16); i += BLOCK) copy(kept + i, from + i * 16);
            awaited = true;
            if (threadIdx.x < ITEM) stay.put(args, image, head, lane.part);
            if (threadIdx.x == 0) stay.divide(args, tile, end);
            u32 own_row = u32(__cvta_generic_to_shared(kept)) + u32(lane.side * ROW + lane.start);
            if (!PARTED) own_row -= u32(args.first_kept) * ROW;
            // Through a shuffle, or the compiler adds the parts of it anew for every row.
            own_row = __shfl_sync(0xffffffffu, own_row, lane.index);
            const char *base = args.value.address(image, lane.side, head) + lane.start;
            asm volatile("" : "+l"(base)); // and this whole, not in parts
            const Rows rows{base, args.value.row, own_row};
            const int first = tile * QUERIES; // of the queries that are sorted
            if (SORTED) sort(args, image, head, first, min(end * QUERIES, args.queries) - first, reinterpret_cast<int *>(shared), list);
            if (!SORTED) __syncthreads();
            int slice = tile * (BLOCK / 32) + threadIdx.x / 32;
#pragma unroll 1
            do {
                const int query = query_of(args, LISTED ? stay.image : 0, slice * ITEMS + lane.index / ITEM, first, list);
                visit(args, lane, handed, stay, rows, own, awaited, 0, query, head);
            } while (stay.follow(slice));
        }
    }
}
