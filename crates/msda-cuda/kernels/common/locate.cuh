// Locating: from locations and weights as they are stored to positions and tap weights.
#pragma once
#include "common/stage.cuh"
#include "common/warp.cuh"

// A located sample. Its four taps are a 2x2 square of pixels that lies on the map: a square that
// reaches over the edge is moved onto the map, and taps that were not there get weight 0. So no
// tap needs a test.
struct __align__(16) Sample {
    int position; // of the top left tap
    float x, y;   // distance from that tap, 0 to 1
    float weight;
};

// The softmax of the logits of a query and head, computed by the lanes of its group together.
__device__ __forceinline__ Softmax softmax_of(const char *logits, int lane_in_group, bool active) {
    float max = minus_infinity();
    float x[1];
    for (int s = lane_in_group; s < SAMPLES; s += GROUP_LANES) {
        if (active) load_widened<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
        max = active && x[0] > max ? x[0] : max;
    }
    max = max_over<GROUP_LANES>(max);
    float sum = 0;
    for (int s = lane_in_group; s < SAMPLES; s += GROUP_LANES) {
        if (active) load_widened<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
        if (active) sum += expf(x[0] - max);
    }
    return Softmax{max, __frcp_rn(sum_over<GROUP_LANES>(sum))};
}

// FUSED: location = (x, y) + offset * scale, for all samples of a query on a level.
struct Reference {
    float x, y, scale_x, scale_y;
};

__device__ __forceinline__ Reference reference_of(const Args &args, int image, int query, int l,
                                                  const Level &level) {
    float ref[REFERENCE_NUMBERS];
    load_widened<LOCATION, REFERENCE_NUMBERS, size_of<LOCATION>>(
        args.reference.address(image, query, l), ref);
    Reference to{ref[0], ref[1], 0, 0};
#if FUSED == 2
    to.scale_x = DEVICE_LEVELS ? __frcp_rn(level.columns) : args.level[l].inverse_columns;
    to.scale_y = DEVICE_LEVELS ? __frcp_rn(level.rows) : args.level[l].inverse_rows;
#else
    const int end = l + 1 < LEVELS ? args.level[l + 1 < LEVELS ? l + 1 : 0].first_sample : SAMPLES;
    const float scale = 0.5f / float(end - level.first_sample);
    to.scale_x = ref[REFERENCE_NUMBERS - 2] * scale;
    to.scale_y = ref[REFERENCE_NUMBERS - 1] * scale;
#endif
    return to;
}

// From offset and logit to location and weight.
__device__ __forceinline__ void unfuse(const Reference &reference, const Softmax &softmax, float &x,
                                       float &y, float &weight) {
    x = reference.x + x * reference.scale_x;
    y = reference.y + y * reference.scale_y;
    weight = softmax.weight_of(weight);
}

// Moves an interval of two pixels that begins at `low` onto an axis of `extent` pixels. An axis of
// one pixel has no such interval: the first of the two is the pixel, and the second gets weight 0.
__device__ __forceinline__ void move_onto_map(float &low, float &distance, float &weight,
                                              float extent) {
    const bool before = low < 0;
    const bool after = low + 2 > extent;
    weight *= before ? distance : after ? 1 - distance : 1;
    if (THIN_LEVELS) {
        distance = before ? 0 : after ? fminf(extent - 1, 1.0f) : distance;
        low = fmaxf(fminf(low, extent - 2), 0.0f);
    } else {
        distance = before ? 0 : after ? 1 : distance;
        low = fminf(fmaxf(low, 0.0f), extent - 2);
    }
}

// Thin levels, if there is no ring. The row pitch is 0, so a lane reads one image row twice: two
// pixels that follow each other in memory. A level one pixel wide is read like that too, as if it
// were lying: its column is read as a row. A level of one pixel at the last position has no pixel
// behind it (shift_of is 1): the two pixels begin one earlier, and its pixel is the second one.
__device__ __forceinline__ void lay_down(float &left, float &top, Sample &sample, int shift) {
    sample.x = shift ? 1 : sample.y, sample.y = 0;
    left = shift ? -1 : top, top = 0;
}

// Locates a sample on its level. A sample that does not count gets weight 0.
__device__ __forceinline__ Sample locate(bool counts, float x, float y, float weight,
                                         const Level &level) {
    // Comparisons with NaN are false: such a sample does not count.
    if (BORDER) counts = counts && fabsf(x) <= MAX_FLOAT && fabsf(y) <= MAX_FLOAT;
    x = pixel_coordinate(x, level.columns);
    y = pixel_coordinate(y, level.rows);
    Sample sample;
    if (NEAREST) {
        x = rintf(x), y = rintf(y);
        counts = counts && x >= 0 && y >= 0 && x < level.columns && y < level.rows;
        sample = Sample{int(y) * level.pitch + int(x), 0, 0, weight};
    } else {
        counts = counts && x > -1 && y > -1 && x < level.columns && y < level.rows;
        float left = floorf(x), top = floorf(y);
        sample = Sample{0, x - left, y - top, weight};
        if (!RING) {
            move_onto_map(left, sample.x, sample.weight, level.columns);
            move_onto_map(top, sample.y, sample.weight, level.rows);
        }
        if (THIN_LEVELS && level.columns == 1) lay_down(left, top, sample, shift_of(level));
        sample.position = int(top) * level.pitch + int(left);
    }
    // A sample that does not count reads the first pixels of the level.
    sample.position = level.origin + (counts ? sample.position : -shift_of(level));
    sample.weight = counts ? sample.weight : 0;
    return sample;
}

__device__ __forceinline__ TapWeights tap_weights(const Sample &sample) {
    const float bottom = sample.weight * sample.y, top = sample.weight - bottom;
    const float top_right = top * sample.x, bottom_right = bottom * sample.x;
    return TapWeights{{top - top_right, bottom - bottom_right, top_right, bottom_right}};
}

// Locations and weights of the samples of a lane, as they are stored. In full passes they are
// loaded together; otherwise one by one, because some may not exist.
struct RawSamples {
    static constexpr int LOADS = FULL_PASSES ? 1 : SAMPLES_PER_LANE;
    static constexpr int SAMPLES_PER_LOAD = FULL_PASSES ? SAMPLES_PER_LANE : 1;
    Packed<LOCATION, 2 * SAMPLES_PER_LOAD, FULL_PASSES ? LOCATION_ALIGN : size_of<LOCATION>>
        xy[LOADS];
    Packed<WEIGHT, SAMPLES_PER_LOAD, FULL_PASSES ? WEIGHT_ALIGN : size_of<WEIGHT>> weight[LOADS];

    // Loads those of the pass that begins with sample `first`. The addresses are those of the
    // lane's samples in the first pass.
    __device__ __forceinline__ void load(bool active, const char *locations, const char *weights,
                                         int first, int lane_in_group) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            if (active && (FULL_PASSES || first + lane_in_group * SAMPLES_PER_LANE + i < SAMPLES)) {
                xy[i].load(locations + (first + i) * (2 * size_of<LOCATION>));
                weight[i].load(weights + (first + i) * size_of<WEIGHT>);
            }
        }
    }

    __device__ __forceinline__ void widen_to(float (&all_xy)[2 * SAMPLES_PER_LANE],
                                             float (&all_weights)[SAMPLES_PER_LANE]) const {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            float some_xy[2 * SAMPLES_PER_LOAD], some_weights[SAMPLES_PER_LOAD];
            xy[i].widen_to(some_xy), weight[i].widen_to(some_weights);
#pragma unroll
            for (int k = 0; k < SAMPLES_PER_LOAD; k++) {
                const int s = i * SAMPLES_PER_LOAD + k;
                all_xy[2 * s] = some_xy[2 * k], all_xy[2 * s + 1] = some_xy[2 * k + 1];
                all_weights[s] = some_weights[k];
            }
        }
    }
};

// The softmax of the logits that the lanes of a group have loaded, if those are all: PASSES is 1.
__device__ __forceinline__ Softmax softmax_of(const RawSamples &raw, int lane_in_group,
                                              bool active) {
    float xy[2 * SAMPLES_PER_LANE], logits[SAMPLES_PER_LANE];
    raw.widen_to(xy, logits);
    auto exists = [&](int i) {
        return active && (FULL_PASSES || lane_in_group * SAMPLES_PER_LANE + i < SAMPLES);
    };
    float max = minus_infinity(), sum = 0;
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) max = exists(i) && logits[i] > max ? logits[i] : max;
    max = max_over<GROUP_LANES>(max);
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) sum += exists(i) ? expf(logits[i] - max) : 0;
    return Softmax{max, __frcp_rn(sum_over<GROUP_LANES>(sum))};
}

// The level of sample s, or of the last one if s does not exist.
__device__ __forceinline__ int level_or_last(const Args &args, int s) {
    return level_of(args, FULL_PASSES ? s : min(s, SAMPLES - 1));
}

// Locates the samples of a lane, from sample `first` on, and stages them for its group.
// `lane_level` is their level if LANE_LEVEL.
__device__ __forceinline__ void locate_and_stage(const Args &args, const RawSamples &raw,
                                                 bool active, int image, int query,
                                                 const Softmax &softmax, int first,
                                                 WarpStage &stage, int slot,
                                                 const Level &lane_level) {
    LanePositions positions;
    float xy[2 * SAMPLES_PER_LANE], weights[SAMPLES_PER_LANE];
    raw.widen_to(xy, weights);
    Reference reference{};
    if (FUSED && LANE_LEVEL && active) {
        const int l = level_or_last(args, first);
        reference = reference_of(args, image, query, l, lane_level);
    }
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) {
        const int s = first + i, l = level_or_last(args, s);
        const Level &level = LANE_LEVEL ? lane_level : level_at(args, l);
        const bool counts = active && (FULL_PASSES || s < SAMPLES);
        float x = xy[2 * i], y = xy[2 * i + 1], weight = weights[i];
        if (FUSED && counts) {
            if (!LANE_LEVEL) reference = reference_of(args, image, query, l, level);
            unfuse(reference, softmax, x, y, weight);
        }
        const Sample sample = locate(counts, x, y, weight, level);
        stage.weights[i][slot] = tap_weights(sample);
        positions.sample[i] = Position(sample.position);
    }
    stage.positions[STATIC_RESIDENCY ? int(threadIdx.x % 32) : slot] = positions;
}
