// The inner loop of the forward kernels: a lane group computes one (query, head).
//
//   for each pass over the samples
//       each lane locates SAMPLES_PER_LANE samples and stages them       locate.cuh, stage.cuh
//       each lane loads the taps of all samples of its sample group      VEC bytes per tap
//       and adds them, weighted
//   lanes that summed the same channels add up and store                 reduce_lanes
//
// The kernel supplies a Source: where inputs and outputs are, and how to load taps.
#pragma once
#include "common/locate.cuh"

// The rows of one image and head: first byte of this lane at position 0, and bytes from a position
// to the next.
struct HeadRows {
    const char *base;
    int stride;
};

typedef Vector<VEC> TapRows[2 / TAP_COLUMNS][2]; // [column][top, bottom]

__device__ __forceinline__ void load_taps(TapRows &rows, const HeadRows &from, int position,
                                          int row_pitch) {
    const int stride = PIXEL_STRIDE > 0 ? PIXEL_STRIDE : from.stride;
    const char *address = address_mad(from.base, position, stride);
#pragma unroll
    for (int i = 0; i < 2 / TAP_COLUMNS; i++) {
        rows[i][0] = ld_global<VEC>(address + i * stride);
        rows[i][1] = ld_global<VEC>(address + row_pitch + i * stride);
    }
}

// Adds the taps of one sample.
template <typename Source>
__device__ __forceinline__ void add_sample(float (&sum)[CHANNELS_PER_LANE], F16Sums &partial,
                                           const Source &source, const Taps &taps, int level,
                                           int row_pitch) {
    if constexpr (NEAREST) {
        const int stride = PIXEL_STRIDE > 0 ? PIXEL_STRIDE : source.rows.stride;
        const char *address = address_mad(source.rows.base, taps.position, stride);
        multiply_add<VALUE>(sum, ld_global<VEC>(address), taps.weight[0][0]);
    } else {
        TapRows rows;
        source.load_taps(rows, taps.position, level, row_pitch);
#pragma unroll
        for (int i = 0; i < 2 / TAP_COLUMNS; i++) {
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if constexpr (F16_SUMS) {
                    multiply_add(partial, rows[i][k], taps.weight[i][k]);
                } else {
                    multiply_add<VALUE>(sum, rows[i][k], taps.weight[i][k]);
                }
            }
        }
    }
}

// Lanes of a group that summed the same channels, and the channels that each of them stores: at
// least 4 bytes, if a lane has them.
constexpr int REDUCE_LANES = GROUP_LANES / LANES_PER_ROW;
constexpr int CHANNELS_OUT = CHANNELS_PER_LANE / REDUCE_LANES * size_of<VALUE> >= 4
                                 ? CHANNELS_PER_LANE / REDUCE_LANES
                             : CHANNELS_PER_LANE * size_of<VALUE> >= 4 ? 4 / size_of<VALUE>
                                                                       : CHANNELS_PER_LANE;

// Adds up the sums of those lanes. In each step two lanes halve their channels, until CHANNELS_OUT
// are left. Returns the first channel that this lane stores, or -1 if another lane stores the same.
__device__ __forceinline__ int reduce_lanes(float (&sum)[CHANNELS_PER_LANE], int lane_in_group,
                                            float (&out)[CHANNELS_OUT]) {
    int first = 0, n = CHANNELS_PER_LANE;
    bool duplicate = false;
#pragma unroll
    for (int step = LANES_PER_ROW; step < GROUP_LANES; step *= 2) {
        const bool upper = lane_in_group & step;
        const bool halve = n > CHANNELS_OUT;
        n = halve ? n / 2 : n;
#pragma unroll
        for (int c = 0; c < CHANNELS_PER_LANE; c++) {
            if (c >= n) continue;
            const int other = halve ? c + n : c;
            const float sent = upper ? sum[c] : sum[other];
            sum[c] = (upper ? sum[other] : sum[c]) + __shfl_xor_sync(0xffffffffu, sent, step);
        }
        first += halve && upper ? n : 0, duplicate = duplicate || (!halve && upper);
    }
#pragma unroll
    for (int c = 0; c < CHANNELS_OUT; c++) out[c] = sum[c];
    return duplicate ? -1 : first;
}

// Adds one sample by the definition: a tap off the map is not read. The fast path multiplies such
// a tap by 0, which gives NaN if the value there is not finite.
template <int N>
__device__ __forceinline__ void add_sample_exactly(float (&sum)[N], const char *base, int stride,
                                                   float x, float y, float weight,
                                                   const Level &level) {
    if (BORDER && !(fabsf(x) <= MAX_FLOAT && fabsf(y) <= MAX_FLOAT)) return;
    x = pixel_coordinate(x, level.columns);
    y = pixel_coordinate(y, level.rows);
    if (NEAREST) x = rintf(x), y = rintf(y);
    if (!(x > -1 && y > -1 && x < level.columns && y < level.rows)) return;
    for_each_tap(x, y, level, [&](const auto &tap) {
        const int position = level.origin + tap.row * level.pitch + tap.column;
        const char *address = address_mad(base, position, stride);
        multiply_add<VALUE>(sum, ld_global<N * size_of<VALUE>>(address), weight * tap.share());
    });
}

// Recomputes N channels of a (query, head), from byte `row_offset` of its rows, by the definition.
template <int N>
__device__ __forceinline__ void sum_exactly(float (&sum)[N], const Args &args, int image, int query,
                                            int head, int row_offset) {
    const char *locations = args.locations.address(image, query, head);
    const char *weights = args.weights.address(image, query, head);
    const char *base = args.value.address(image, 0, head) + row_offset;
    auto load_weight = [&](i64 s) {
        float x[1];
        load_widened<WEIGHT, 1, size_of<WEIGHT>>(weights + s * size_of<WEIGHT>, x);
        return x[0];
    };
    Softmax softmax;
    if (FUSED) softmax = softmax_of<float, 1>(SAMPLES, load_weight);
#pragma unroll
    for (int c = 0; c < N; c++) sum[c] = 0;
#pragma unroll 1
    for (int s = 0; s < SAMPLES; s++) {
        float xy[2], weight = load_weight(s);
        load_widened<LOCATION, 2, size_of<LOCATION>>(locations + s * (2 * size_of<LOCATION>), xy);
        const int l = level_of(args, s);
        const Level &level = level_at(args, l);
        if (FUSED) {
            add_reference(reference_of(args, image, query, l, level), xy[0], xy[1]);
            weight = softmax.weight_of(weight);
        }
        add_sample_exactly(sum, base, args.value.row_stride, xy[0], xy[1], weight, level);
    }
}

// The staged positions of the samples of a pass. STATIC_RESIDENCY: they are in the order of the
// group's samples, and a lane loads several at once. Otherwise those of a locating lane are
// together.
struct StagedPositions {
    LanePositions of_lane;
    PositionVector in_order;

    __device__ __forceinline__ void load_lane(const WarpStage &stage, int slot) {
        if (!STATIC_RESIDENCY) of_lane = stage.positions[slot];
    }
    // Sample i of the lane. `k`: its number in the pass, without sample groups.
    __device__ __forceinline__ void load_next(const WarpStage &stage, int group, int k) {
        if (STATIC_RESIDENCY && k % POSITIONS_PER_LOAD == 0) {
            const int load = (group * SAMPLES_PER_PASS + k) / POSITIONS_PER_LOAD;
            in_order = reinterpret_cast<const PositionVector *>(stage.positions)[load];
        }
    }
    __device__ __forceinline__ int get(int i, int k) const {
        return int(STATIC_RESIDENCY ? in_order.sample[k % POSITIONS_PER_LOAD] : of_lane.sample[i]);
    }
};

// Adds the staged samples of the pass that begins with sample `pass`: those of the lane's sample
// group.
template <typename Source>
__device__ __forceinline__ void add_pass(float (&sum)[CHANNELS_PER_LANE], F16Sums &partial,
                                         const Args &args, const Lane &lane, const WarpStage &stage,
                                         Source &source, int pass) {
    // Samples that one lane located lie on one level: its row pitch is loaded once.
    constexpr bool LOADS_PITCH_ONCE = DEVICE_LEVELS && LANE_LEVEL;
    StagedPositions positions;
#pragma unroll
    for (int j = 0; j < GROUP_LANES; j += SAMPLE_GROUPS) {
        if (pass + j * SAMPLES_PER_LANE == FIRST_RESIDENT_SAMPLE) source.wait();
        // The samples that lane `located_by` of the group located.
        const int located_by = j + (SAMPLE_GROUPS > 1 ? lane.sample_group : 0);
        const int slot = slot_of(lane.group(), located_by);
        const int first = pass + located_by * SAMPLES_PER_LANE;
        positions.load_lane(stage, slot);
        int lane_pitch = 0;
        if (LOADS_PITCH_ONCE) lane_pitch = row_pitch_of(args, level_or_last(args, first));
#pragma unroll
        for (int i = 0; i < SAMPLES_PER_LANE; i++) {
            const int k = j * SAMPLES_PER_LANE + i;
            positions.load_next(stage, lane.group(), k);
            if (!FULL_PASSES && first + i >= SAMPLES) continue;
            const Taps taps =
                load_staged(stage.weights[i][slot], positions.get(i, k), lane.tap_column);
            const int level = level_of(args, first + i);
            add_sample(sum, partial, source, taps, level,
                       LOADS_PITCH_ONCE ? lane_pitch : row_pitch_of(args, level));
        }
        if (F16_SUMS) flush_f16(sum, partial);
    }
}

// Adds up the sums of the lanes and stores the output of a (query, head). Sums that are not finite
// are computed again by the definition.
template <typename Source>
__device__ __forceinline__ void store_output(float (&sum)[CHANNELS_PER_LANE], const Args &args,
                                             const Lane &lane, const Source &source, bool active,
                                             int query, int head, const GroupSoftmax &softmax) {
    float out[CHANNELS_OUT];
    const int first = reduce_lanes(sum, lane.in_group, out);
    if (GroupSoftmax::DIVIDES_OUTPUT) {
        const float scale = softmax.output_scale();
#pragma unroll
        for (int c = 0; c < CHANNELS_OUT; c++) out[c] *= scale;
    }
    if (active && lane.in_row && first >= 0) {
        const int row_offset = lane.row_offset + first * size_of<VALUE>;
        if (!all_finite(out)) {
            sum_exactly(out, args, source.image(), query, head, row_offset);
        }
        store_sums(source.output(args, query, head) + row_offset, out);
    }
}

// Computes one (query, head); query -1: none. All lanes of a warp call this together.
template <typename Source>
__device__ __forceinline__ void process_group(const Args &args, const Lane &lane, WarpStage &stage,
                                              Source &source, int query, int head) {
    const bool active = query >= 0 && (HAS_RESIDENT || head < args.heads);
    // A warp with nothing to do still takes part in the barrier that it owes.
    if (!source.pending() && !__any_sync(0xffffffffu, active)) return;
    const char *locations, *weights; // of the lane's samples in the first pass
    source.inputs(args, active ? query : 0, active ? head : 0, lane.in_group, locations, weights);
    float sum[CHANNELS_PER_LANE];
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum[c] = 0;
    F16Sums partial{};
    const int image = FUSED ? source.image() : 0, some_query = active ? query : 0;
    RawInputs raw;
    auto load_inputs = [&](int pass) {
        raw.load(args, active, locations, weights, image, some_query, pass, lane.in_group);
    };
    load_inputs(0);
    source.publish_levels(args);
    GroupSoftmax softmax;
    if (FUSED) {
        const char *logits = weights - lane.in_group * SAMPLES_PER_LANE * size_of<WEIGHT>;
        softmax.compute(raw.samples, logits, lane.in_group, active);
    }
    constexpr int UNROLLED = STATIC_RESIDENCY ? PASSES : 1;
#pragma unroll UNROLLED
    for (int pass = 0; pass < SAMPLES; pass += SAMPLES_PER_PASS) { // the first sample of the pass
        __syncwarp();
        source.load_lane_level(pass / SAMPLES_PER_LANE + lane.in_group);
        locate_and_stage(args, raw, active, image, some_query, softmax,
                         pass + lane.in_group * SAMPLES_PER_LANE, stage,
                         slot_of(lane.group(), lane.in_group), source.lane_level);
        __syncwarp();
        auto load_next = [&] {
            if (pass + SAMPLES_PER_PASS < SAMPLES) load_inputs(pass + SAMPLES_PER_PASS);
        };
        if (PREFETCH) load_next();
        add_pass(sum, partial, args, lane, stage, source, pass);
        if (!PREFETCH) load_next();
    }
    store_output(sum, args, lane, source, active, query, head, softmax);
}
