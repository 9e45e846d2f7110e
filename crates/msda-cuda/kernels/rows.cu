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

extern "C" __global__ void __launch_bounds__(BLOCK, BLOCKS) msda_forward(const __grid_constant__ Args args) {
    extern __shared__ uint4 shared[];
    Handed &handed = reinterpret_cast<Handed *>(shared)[threadIdx.x / 32];
    uint4 *kept = shared + HANDED;
    const int lane = threadIdx.x & 31;
    const int part = lane % ITEM;             // place among the lanes of the item
    const int group = part / (LANES * SIDES); // which samples
    const int side = part / LANES % SIDES;    // left or right taps, where they are shared
    const int chunk = part % LANES;           // which 16 bytes of a row
    const int item = threadIdx.x / ITEM;      // query and head within the block
    const int head = blockIdx.y * HEADS + item % HEADS;
    const int image = blockIdx.z;
    // A lane past the end of the row reads its beginning, and writes nothing.
    const bool filled = FILLED || chunk * VEC < ROW;
    const int start = filled ? chunk * VEC : 0;
    Rows rows{args.value.address(image, side, head < args.heads ? head : 0) + start, args.value.row, 0};

    int tile = blockIdx.x, end = tile + 1;
    const int first_row = int(__cvta_generic_to_shared(kept)) - args.first_kept * ROW; // of position 0, if it were kept
    if (RESIDENT < LEVELS) {
        const char *from = args.value.address(image, args.first_kept, head);
        for (int i = threadIdx.x; i < args.kept * (ROW / 16); i += BLOCK) copy(kept + i, from + i * 16);
        rows.shared = side * ROW + start + (PARTED ? 0 : first_row);
        tile *= args.each, end = min(tile + args.each, args.tiles);
    }
    const int first = tile * QUERIES; // of the block's queries
    u16 *list = reinterpret_cast<u16 *>(kept + args.kept * (ROW / 16));
    if (SORTED) sort(args, image, head, first, min(end * QUERIES, args.queries) - first, reinterpret_cast<int *>(shared), list);
    bool awaited = RESIDENT < LEVELS; // not yet there
    Level own = args.level[OWN ? level_of(args, min(part * ROUND, SAMPLES - 1)) : 0];
    const bool addressed = PARTED && part >= NEEDED;
    if (addressed) own.origin = own.origin * ROW + first_row, own.pitch *= ROW;
#pragma unroll 1
    for (; tile < end; tile++) {
        const int query = query_of(args, image, tile, item / HEADS, first, list);
        const bool active = query >= 0 && head < args.heads;
        if (!awaited && !__any_sync(0xffffffffu, active)) continue;
        const int q = active ? query : 0, h = active ? head : 0;
        const char *locations = args.locations.address(image, q, h), *weights = args.weights.address(image, q, h);
        Softmax softmax{0, 0};
        if (FUSED) softmax = softmax_of(weights, part, active);

        float sum[EACH];
#pragma unroll
        for (int c = 0; c < EACH; c++) sum[c] = 0;
        Halves halves{};
        Raw raw;
        raw.fetch(active, locations, weights, part * ROUND);
#pragma unroll 1
        for (int round = 0; round < SAMPLES; round += ITEM * ROUND) {
            __syncwarp();
            locate(args, raw, active, image, query, softmax, round + part * ROUND, handed, slot(lane / ITEM, part), own, addressed);
            __syncwarp();
            // What the next round needs is on its way while this one is summed, where there are registers for it.
            const int next = round + ITEM * ROUND;
            if (AHEAD && next < SAMPLES) raw.fetch(active, locations, weights, next + part * ROUND);
#pragma unroll
            for (int j = 0; j < ITEM; j += SPLIT) {
                if (j == NEEDED && awaited) {
                    copied();
                    __syncthreads();
                    awaited = false;
                }
                const int from = j + (SPLIT > 1 ? group : 0), at = slot(lane / ITEM, from);
                Positions positions;
                Addresses addresses;
                if (PARTED && j >= NEEDED) {
                    addresses = handed.addresses(at);
                } else {
                    positions = handed.positions(at);
                }
#pragma unroll
                for (int r = 0; r < ROUND; r++) {
                    const int s = round + from * ROUND + r;
                    if (!EXACT && s >= SAMPLES) continue;
                    const int place = PARTED && j >= NEEDED ? int(addresses.sample[r]) : int(positions.sample[r]);
                    const Taps taps = take(handed.weights[r][at], place, side);
                    const int level = level_of(args, s);
                    add<VEC>(sum, halves, rows, taps, level, args.level[level].under);
                }
                if (HALF) gather_up(sum, halves);
            }
            if (!AHEAD && next < SAMPLES) raw.fetch(active, locations, weights, next + part * ROUND);
        }
#pragma unroll
        for (int step = LANES; step < ITEM; step *= 2) {
#pragma unroll
            for (int c = 0; c < EACH; c++) sum[c] += __shfl_xor_sync(0xffffffffu, sum[c], step);
        }
        if (active && filled && part < LANES) {
            if (!finite(sum)) sum_carefully(sum, args, image, query, head, start, softmax);
            write(args.output.address(image, query, head) + start, sum);
        }
        if (RESIDENT == LEVELS) return;
    }
}
