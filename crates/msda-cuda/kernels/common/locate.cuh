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

// FUSED: location = (x, y) + offset * scale, for all samples of a query on a level.
struct Reference {
    float x, y, scale_x, scale_y;
};

// A reference point as it is stored.
struct RawReference {
    Packed<LOCATION, REFERENCE_NUMBERS, REFERENCE_ALIGN> numbers;

    __device__ __forceinline__ void load(const Args &args, int image, int query, int l) {
        numbers.load(args.reference.address(image, query, l));
    }
    __device__ __forceinline__ Reference on(const Args &args, int l, const Level &level) const {
        float ref[REFERENCE_NUMBERS];
        numbers.widen_to(ref);
        Reference to{ref[0], ref[1], 0, 0};
#if FUSED == 2
        to.scale_x = DEVICE_LEVELS ? __frcp_rn(level.columns) : args.level[l].inverse_columns;
        to.scale_y = DEVICE_LEVELS ? __frcp_rn(level.rows) : args.level[l].inverse_rows;
#elif FUSED == 4
        to.scale_x = ref[REFERENCE_NUMBERS - 2] * args.level[l].box_share;
        to.scale_y = ref[REFERENCE_NUMBERS - 1] * args.level[l].box_share;
#endif
        return to;
    }
};

__device__ __forceinline__ Reference reference_of(const Args &args, int image, int query, int l,
                                                  const Level &level) {
    RawReference raw;
    raw.load(args, image, query, l);
    return raw.on(args, l, level);
}

// From an offset to a location.
__device__ __forceinline__ void add_reference(const Reference &reference, float &x, float &y) {
    x = reference.x + x * reference.scale_x;
    y = reference.y + y * reference.scale_y;
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
    Packed<LOCATION, 2 * SAMPLES_PER_LOAD, LOCATION_ALIGN> xy[LOADS];
    Packed<WEIGHT, SAMPLES_PER_LOAD, WEIGHT_ALIGN> weight[LOADS];

    // Loads those of the pass that begins with sample `first`. The addresses are those of the
    // lane's samples in the first pass.
    __device__ __forceinline__ void load(bool active, const char *locations, const char *weights,
                                         int first, int lane_in_group) {
#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            if (active && (FULL_PASSES || first + lane_in_group * SAMPLES_PER_LANE + i < SAMPLES)) {
                // A sample that does not exist may lie behind the tensor. The compiler would load
                // it before the condition, if it knew the address there.
                if (!FULL_PASSES) asm volatile("" : "+l"(locations), "+l"(weights));
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

// Puts exp(logit - max) in the place of each logit of a query and head, and returns their sum over
// the lane. The first LANES lanes of the group have up to N logits each, and lanes behind them have
// none. `has(i)`: whether the lane has logit i.
template <int LANES, int N, typename F>
__device__ __forceinline__ float exponentials(float (&x)[N], float &max, F has) {
    bool large = false;
#pragma unroll
    for (int i = 0; i < N; i++) large = large || (has(i) && fabsf(x[i]) > SMALL_LOGIT);
    max = 0;
    if (__any_sync(0xffffffffu, large)) {
        // A group without large logits goes on as if there were none in the warp.
        max = minus_infinity();
#pragma unroll
        for (int i = 0; i < N; i++) max = has(i) ? fmaxf(max, x[i]) : max;
        max = max_over<LANES>(max);
        max = max_over<LANES>(int(large)) ? max : 0;
    }
#pragma unroll
    for (int i = 0; i < N; i++) x[i] = expf(x[i] - max);
    float sum = has(0) ? x[0] : 0;
#pragma unroll
    for (int i = 1; i < N; i++) sum += has(i) ? x[i] : 0;
    return sum;
}

// PASSES == 1: the lanes of a group that locate samples, rounded up to a power of two.
constexpr int power_of_two_from(int n, int power = 1) {
    return power >= n ? power : power_of_two_from(n, 2 * power);
}
constexpr int LOCATING_LANES =
    power_of_two_from((SAMPLES + SAMPLES_PER_LANE - 1) / SAMPLES_PER_LANE);

// FUSED: the softmax of a query and head.
struct GroupSoftmax {
    // The output is divided by the sum of the exponentials, instead of each weight: taps are loaded
    // before the sum is known.
    static constexpr bool DIVIDES_OUTPUT = FUSED && !BACKWARD && PASSES == 1 && !F16_SUMS;
    Softmax softmax;                 // unset if weights are known
    float weights[SAMPLES_PER_LANE]; // PASSES == 1: of the samples of the lane
    float lane_sum;                  // DIVIDES_OUTPUT: of the lane's exponentials

    // `logits`: of the query and head. All lanes of a warp call this together.
    __device__ __forceinline__ void compute(const RawSamples &raw, const char *logits,
                                            int lane_in_group, bool active) {
        if constexpr (PASSES == 1) {
            float xy[2 * SAMPLES_PER_LANE], max;
            raw.widen_to(xy, weights);
            lane_sum = exponentials<LOCATING_LANES>(weights, max, [&](int i) {
                return active && (FULL_PASSES || lane_in_group * SAMPLES_PER_LANE + i < SAMPLES);
            });
            const float scale =
                DIVIDES_OUTPUT ? LIFT : reciprocal(sum_over<LOCATING_LANES>(lane_sum));
#pragma unroll
            for (int i = 0; i < SAMPLES_PER_LANE; i++) weights[i] *= scale;
            return;
        }
        auto load = [&](i64 s) {
            float x[1];
            load_widened<WEIGHT, 1, size_of<WEIGHT>>(logits + s * size_of<WEIGHT>, x);
            return x[0];
        };
        constexpr int OF_LANE = (SAMPLES + GROUP_LANES - 1) / GROUP_LANES;
        if constexpr (OF_LANE <= 16) {
            auto has = [&](int i) { return active && i * GROUP_LANES + lane_in_group < SAMPLES; };
            float x[OF_LANE];
#pragma unroll
            for (int i = 0; i < OF_LANE; i++) {
                // Without a branch: the compiler would load before it, where there may be nothing.
                x[i] = load(min(i * GROUP_LANES + lane_in_group, SAMPLES - 1));
            }
            const float sum = exponentials<GROUP_LANES>(x, softmax.max, has);
            softmax.scale = reciprocal(sum_over<GROUP_LANES>(sum));
        } else {
            softmax = softmax_of<float, GROUP_LANES>(active ? SAMPLES : 0, load);
        }
    }
    // Makes weights of the logits of the lane's samples of a pass.
    __device__ __forceinline__ void weigh(float (&logits)[SAMPLES_PER_LANE]) const {
#pragma unroll
        for (int i = 0; i < SAMPLES_PER_LANE; i++) {
            logits[i] = PASSES == 1 ? weights[i] : softmax.weight_of(logits[i]);
        }
    }
    // DIVIDES_OUTPUT: what the output is multiplied by. All lanes of a warp call this together.
    __device__ __forceinline__ float output_scale() const {
        return reciprocal(sum_over<GROUP_LANES>(lane_sum)) * (1 / LIFT);
    }
};

// The level of sample s, or of the last one if s does not exist.
__device__ __forceinline__ int level_or_last(const Args &args, int s) {
    return level_of(args, FULL_PASSES ? s : min(s, SAMPLES - 1));
}

// FUSED: all samples that a lane locates in a pass lie on one level, so they have one reference
// point. In the backward pass more passes leave no registers for it.
constexpr bool ONE_REFERENCE = FUSED && UNIFORM_POINTS > 0 &&
                               UNIFORM_POINTS % SAMPLES_PER_LANE == 0 && (!BACKWARD || PASSES <= 2);

// What a lane loads before it locates the samples of a pass. If it is not active, `query` is any.
struct RawInputs {
    RawSamples samples;
    RawReference reference; // if ONE_REFERENCE

    __device__ __forceinline__ void load(const Args &args, bool active, const char *locations,
                                         const char *weights, int image, int query, int pass,
                                         int lane_in_group) {
        samples.load(active, locations, weights, pass, lane_in_group);
        if (ONE_REFERENCE) {
            const int l = level_or_last(args, pass + lane_in_group * SAMPLES_PER_LANE);
            reference.load(args, image, query, l);
        }
    }
};

// Locates the samples of a lane, from sample `first` on, and stages them for its group.
// `lane_level` is their level if LANE_LEVEL.
__device__ __forceinline__ void locate_and_stage(const Args &args, const RawInputs &raw,
                                                 bool active, int image, int query,
                                                 const GroupSoftmax &softmax, int first,
                                                 WarpStage &stage, int slot,
                                                 const Level &lane_level) {
    LanePositions positions;
    float xy[2 * SAMPLES_PER_LANE], weights[SAMPLES_PER_LANE];
    raw.samples.widen_to(xy, weights);
    if (FUSED) softmax.weigh(weights);
    Reference reference{};
    if (ONE_REFERENCE) {
        const int l = level_or_last(args, first);
        reference = raw.reference.on(args, l, LANE_LEVEL ? lane_level : level_at(args, l));
    }
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) {
        const int s = first + i, l = level_or_last(args, s);
        const Level &level = LANE_LEVEL ? lane_level : level_at(args, l);
        const bool counts = active && (FULL_PASSES || s < SAMPLES);
        float x = xy[2 * i], y = xy[2 * i + 1];
        if (FUSED) {
            if (!ONE_REFERENCE && counts) reference = reference_of(args, image, query, l, level);
            add_reference(reference, x, y);
        }
        const Sample sample = locate(counts, x, y, weights[i], level);
        stage.weights[i][slot] = tap_weights(sample);
        positions.sample[i] = Position(sample.position);
    }
    stage.positions[STATIC_RESIDENCY ? int(threadIdx.x % 32) : slot] = positions;
}
