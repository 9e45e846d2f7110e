// samples: the gradients of locations and weights, or of offsets and logits.
//
//   dot[s, tap]          = <grad_output[b, q, h, :], value[b, tap of s, h, :]>
//   grad_weight[s]       = sum over taps of share[s, tap] * dot[s, tap]
//   grad_location[s].x   = weight[s] * width * ((1 - y) (dot right - dot left)  +  y (...) below)
//
// Threads: as in forward/streaming.cu. A lane group computes one (query, head); each lane loads 16
// bytes of every row and multiplies them with its part of grad_output, which stays in registers.
//
//   for each pass over the samples
//       each lane locates SAMPLES_PER_LANE samples and stages their positions
//       each lane loads the taps of all samples of its sample group and computes its part of the
//       four dot products; the lanes of a row add them up
//       each lane reads the dot products of the samples that it located and stores their gradients
//
// The four sums of a sample over the lanes of a row take three exchanges: in the first, two lanes
// swap two sums each, so that each goes on with two of them; in the second with one.
//
// Rows of 64 bytes of 16-bit numbers: tensor cores compute the dot products. Lanes 4 g to 4 g + 3
// load a row, 16 bytes per lane. The matrix product takes these registers as they are: that
// permutes the channels, in the same way in both matrices. Rows g and g + 8 of the first matrix are
// two taps of these lanes, and column g of the second matrix is their row of grad_output. Only
// column g of the two rows of the product is used. But no number is converted, and no sum is
// exchanged.
//
// FUSED: the kernel stores the weights of all samples too, for the gradient of value.
//
// Bound by: as the forward pass, the L1 data path if queries are many, loads in flight if few.
#include "common/group.cuh"
#include "common/levels_in_memory.cuh"
#include "common/mma.cuh"
#include "common/walk.cuh"

// Macros besides those of common/args.cuh:
//   WANT_LOCATIONS WANT_WEIGHTS WANT_POINTS   what is stored
//   GRAD_LOCATION_ALIGN GRAD_WEIGHT_ALIGN     alignment of a lane's gradients
static_assert(sizeof(WarpStage) * WARPS == SHARED_BYTES, "host and kernel disagree about staging");

constexpr bool WANT_TAPS = WANT_LOCATIONS || WANT_WEIGHTS || WANT_POINTS;
constexpr int TAPS_PER_LANE = NEAREST ? 1 : 4 / TAP_COLUMNS;
// Levels are in shared memory, or there are reference points, and all samples of a lane in a pass
// lie on one level: it is not read again for each sample.
constexpr bool READS_LEVEL_ONCE = (DEVICE_LEVELS && LANE_LEVEL) || ONE_REFERENCE;

// A located sample, as its lane needs it afterwards.
struct Placed {
    float x, y;   // distance from the top left tap
    float weight; // FUSED: of its logit
    bool counts;
    bool has_left, has_right, has_top, has_bottom; // taps on the map
    bool moved_x, moved_y; // the square of taps was moved onto the map on that axis
    bool slope_x, slope_y; // false: a coordinate that was clamped has no gradient
};

// Locates a sample; returns its position as locate() does.
__device__ __forceinline__ int place(Placed &to, bool counts, float x, float y, float weight,
                                     const Level &level) {
    const Sample sample = locate(counts, x, y, weight, level);
    counts = counts && fabsf(x) <= MAX_FLOAT && fabsf(y) <= MAX_FLOAT;
    const float raw_x = CORNERS ? x * (level.columns - 1) : x * level.columns - 0.5f;
    const float raw_y = CORNERS ? y * (level.rows - 1) : y * level.rows - 0.5f;
    to.slope_x = !BORDER || (raw_x > 0 && raw_x < level.columns - 1);
    to.slope_y = !BORDER || (raw_y > 0 && raw_y < level.rows - 1);
    x = pixel_coordinate(x, level.columns), y = pixel_coordinate(y, level.rows);
    if (NEAREST) x = rintf(x), y = rintf(y);
    to.counts = counts && x > -1 && y > -1 && x < level.columns && y < level.rows;
    const float left = floorf(x), top = floorf(y);
    to.x = x - left, to.y = y - top, to.weight = weight;
    to.has_left = left >= 0, to.has_right = left + 1 < level.columns;
    to.has_top = top >= 0, to.has_bottom = top + 1 < level.rows;
    to.moved_x = !RING && left != fmaxf(fminf(left, level.columns - 2), 0.0f);
    to.moved_y = !RING && top != fmaxf(fminf(top, level.rows - 2), 0.0f);
    return sample.position;
}

// The gradients of a sample: of its weight, and of its location in normalised coordinates.
struct SampleGradient {
    float weight, x, y;
};

__device__ __forceinline__ SampleGradient gradient_of(const Placed &sample, const TapWeights &dots,
                                                      const Level &level) {
    SampleGradient to{0, 0, 0};
    if (!sample.counts) return to;
    if (NEAREST) {
        to.weight = dots.tap[0];
        return to;
    }
    // Dot products of the square as it was loaded: [column][row].
    float first_top = dots.tap[0], first_bottom = dots.tap[1];
    float second_top = dots.tap[2], second_bottom = dots.tap[3];
    if (THIN_LEVELS && level.columns == 1) { // its column was read as a row: lay_down
        first_top = shift_of(level) ? second_top : first_top;
        first_bottom = second_top;
    }
    const float left_top = sample.moved_x ? second_top : first_top;
    const float left_bottom = sample.moved_x ? second_bottom : first_bottom;
    const float right_top = sample.moved_x ? first_top : second_top;
    const float right_bottom = sample.moved_x ? first_bottom : second_bottom;
    const bool l = sample.has_left, r = sample.has_right, t = sample.has_top, b = sample.has_bottom;
    const float top_left = l && t ? (sample.moved_y ? left_bottom : left_top) : 0;
    const float bottom_left = l && b ? (sample.moved_y ? left_top : left_bottom) : 0;
    const float top_right = r && t ? (sample.moved_y ? right_bottom : right_top) : 0;
    const float bottom_right = r && b ? (sample.moved_y ? right_top : right_bottom) : 0;
    const float x = sample.x, y = sample.y;
    to.weight = (1 - y) * ((1 - x) * top_left + x * top_right) +
                y * ((1 - x) * bottom_left + x * bottom_right);
    const float across = (1 - y) * (top_right - top_left) + y * (bottom_right - bottom_left);
    const float down = (1 - x) * (bottom_left - top_left) + x * (bottom_right - top_right);
    const float columns = CORNERS ? level.columns - 1 : level.columns;
    const float rows = CORNERS ? level.rows - 1 : level.rows;
    to.x = sample.slope_x ? sample.weight * columns * across : 0;
    to.y = sample.slope_y ? sample.weight * rows * down : 0;
    return to;
}

// Products of VEC bytes of a row with the lane's part of grad_output, summed.
__device__ __forceinline__ float dot(const Vector<VEC> &v,
                                     const float (&gradient)[CHANNELS_PER_LANE]) {
    float x[CHANNELS_PER_LANE], sum = 0;
    widen_all<VALUE, CHANNELS_PER_LANE>(v, x);
#pragma unroll
    for (int c = 0; c < CHANNELS_PER_LANE; c++) sum = fmaf(gradient[c], x[c], sum);
    return sum;
}

// Whether tensor cores compute the dot products.
#if __CUDA_ARCH__ >= 800
constexpr bool ON_TENSOR_CORES =
    (VALUE == F16 || VALUE == BF16) && VEC == 16 && LANES_PER_ROW == 4 && FULL_ROW;
#else
constexpr bool ON_TENSOR_CORES = false;
#endif

// A lane's part of grad_output: as it is stored, for tensor cores, and widened.
struct Gradient {
    Vector<VEC> stored;
    float wide[CHANNELS_PER_LANE];
};

// The dot products of N rows, each of four lanes, with grad_output. All lanes of a warp call this
// together. Lane g / 2 of lanes 4 g to 4 g + 3 gets the result.
template <int N>
__device__ __forceinline__ void multiply_rows(float (&dots)[N], const Vector<VEC> (&rows)[N],
                                              const Vector<VEC> &gradient) {
    const bool odd = threadIdx.x / 4 % 2;
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const Vector<VEC> &second = rows[k + 1 < N ? k + 1 : k];
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w + 1 < Vector<VEC>::WORDS; w += 2) {
            const u32 a[4] = {rows[k].word[w], second.word[w], rows[k].word[w + 1],
                              second.word[w + 1]};
            const u32 b[2] = {gradient.word[w], gradient.word[w + 1]};
            multiply(sum, a, b);
        }
        dots[k] = odd ? sum[1] : sum[0];
        if (k + 1 < N) dots[k + 1 < N ? k + 1 : k] = odd ? sum[3] : sum[2];
    }
}

// Adds up N sums over the lanes of a row. Lanes halve the sums between them until each has one.
// `first` becomes the index of the first sum that the lane has; `n` how many it has.
template <int N>
__device__ __forceinline__ void add_over_row(float (&sum)[N], int lane_in_group, int &first,
                                             int &n) {
    first = 0, n = N;
#pragma unroll
    for (int step = 1; step < LANES_PER_ROW; step *= 2) {
        const bool upper = lane_in_group & step;
        const bool halve = n > 1;
        n = halve ? n / 2 : n;
#pragma unroll
        for (int k = 0; k < N; k++) {
            if (k >= n) continue;
            const int other = halve ? k + n : k;
            const float sent = upper ? sum[k] : sum[other];
            sum[k] = (upper ? sum[other] : sum[k]) + __shfl_xor_sync(0xffffffffu, sent, step);
        }
        first += halve && upper ? n : 0;
    }
}

// Rounds N numbers to type T and stores them.
template <int T, int N, int ALIGN>
__device__ __forceinline__ void store_narrowed(char *to, const float (&x)[N]) {
    constexpr int NUMBERS = Packed<T, N, ALIGN>::numbers_per_load;
#pragma unroll
    for (int i = 0; i < N; i += NUMBERS) {
        st_global<NUMBERS * size_of<T>>(to + i * size_of<T>, narrow_all<T, NUMBERS>(x + i));
    }
}

// Stores N numbers per sample of the lane's samples, from sample `first` on.
template <int T, int N, int ALIGN>
__device__ __forceinline__ void store_samples(char *to, int first,
                                              const float (&x)[N * SAMPLES_PER_LANE]) {
    if constexpr (FULL_PASSES) {
        store_narrowed<T, N * SAMPLES_PER_LANE, ALIGN>(to + first * (N * size_of<T>), x);
    } else {
#pragma unroll
        for (int i = 0; i < SAMPLES_PER_LANE; i++) {
            if (first + i >= SAMPLES) continue;
            float some[N];
#pragma unroll
            for (int k = 0; k < N; k++) some[k] = x[i * N + k];
            store_narrowed<T, N, size_of<T>>(to + (first + i) * (N * size_of<T>), some);
        }
    }
}

__device__ __forceinline__ void load_gradient(Gradient &to, const char *from) {
    to.stored = ld_global<VEC>(from);
    widen_all<VALUE, CHANNELS_PER_LANE>(to.stored, to.wide);
}

// Computes the dot products of the taps of a sample and stores them in `to`, from `first_tap` on.
// All lanes of a warp call this together.
__device__ __forceinline__ void store_dots(TapWeights &to, int first_tap,
                                           const Vector<VEC> (&rows)[TAPS_PER_LANE],
                                           const Gradient &gradient, const Lane &lane) {
    float sum[TAPS_PER_LANE];
    if constexpr (ON_TENSOR_CORES) {
        multiply_rows(sum, rows, gradient.stored);
        if (threadIdx.x % 4 == threadIdx.x / 8 % 4) {
#pragma unroll
            for (int k = 0; k < TAPS_PER_LANE; k++) to.tap[first_tap + k] = sum[k];
        }
    } else {
#pragma unroll
        for (int k = 0; k < TAPS_PER_LANE; k++)
            sum[k] = lane.in_row ? dot(rows[k], gradient.wide) : 0;
        int first, n;
        add_over_row(sum, lane.in_group, first, n);
        // Lanes of a row beyond the number of sums have the same sums as others.
        const bool stores = lane.in_group % LANES_PER_ROW < TAPS_PER_LANE;
#pragma unroll
        for (int k = 0; k < TAPS_PER_LANE; k++) {
            if (k < n && stores) to.tap[first_tap + first + k] = sum[k];
        }
    }
}

// What a lane group computes: one query and head. Without one (not active), query and head are 0.
struct Item {
    int image, query, head;
    bool active;
    int first_sample; // that the lane locates in the first pass

    // Its place in tensors of (image, query, head).
    __device__ __forceinline__ i64 index(const Args &args) const {
        return (i64(image) * args.queries + query) * args.heads + head;
    }
    __device__ __forceinline__ bool has(int s) const {
        return active && (FULL_PASSES || s < SAMPLES);
    }
};

// READS_LEVEL_ONCE: the level of all samples of a lane in a pass, and the query's reference point
// there.
struct LaneLevel {
    Level level;
    Reference reference{};
    __device__ __forceinline__ LaneLevel(const Args &args, const Item &item,
                                         const RawReference &raw, int pass)
        : level(level_at(args, READS_LEVEL_ONCE ? level_in(args, item, pass) : 0)) {
        if (ONE_REFERENCE) reference = raw.on(args, level_in(args, item, pass), level);
    }
    __device__ __forceinline__ Reference reference_on(const Args &args, const Item &item, int l,
                                                      const Level &level) const {
        return ONE_REFERENCE ? reference : reference_of(args, item.image, item.query, l, level);
    }

  private:
    __device__ __forceinline__ static int level_in(const Args &args, const Item &item, int pass) {
        return level_or_last(args, pass + item.first_sample);
    }
};

// Locates the samples of a lane in the pass that begins with sample `pass`.
__device__ __forceinline__ LanePositions locate_samples(const Args &args, const Item &item,
                                                        const RawInputs &raw,
                                                        const GroupSoftmax &softmax, int pass,
                                                        Placed (&placed)[SAMPLES_PER_LANE]) {
    LanePositions positions;
    float xy[2 * SAMPLES_PER_LANE], weights[SAMPLES_PER_LANE];
    raw.samples.widen_to(xy, weights);
    if (FUSED) softmax.weigh(weights);
    const LaneLevel lane_level(args, item, raw.reference, pass);
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) {
        const int s = pass + item.first_sample + i, l = level_or_last(args, s);
        const Level &level = READS_LEVEL_ONCE ? lane_level.level : level_at(args, l);
        const bool exists = item.has(s);
        float x = xy[2 * i], y = xy[2 * i + 1];
        if (FUSED && exists) add_reference(lane_level.reference_on(args, item, l, level), x, y);
        const float weight = exists ? weights[i] : 0;
        positions.sample[i] = Position(place(placed[i], exists, x, y, weight, level));
    }
    return positions;
}

// Loads the taps of a sample that this lane multiplies.
__device__ __forceinline__ void load_lane_taps(Vector<VEC> (&taps)[TAPS_PER_LANE],
                                               const HeadRows &rows, int position, int row_pitch) {
    if constexpr (NEAREST) {
        const int stride = PIXEL_STRIDE > 0 ? PIXEL_STRIDE : rows.stride;
        taps[0] = ld_global<VEC>(address_mad(rows.base, position, stride));
    } else {
        TapRows square;
        load_taps(square, rows, position, row_pitch);
#pragma unroll
        for (int k = 0; k < TAPS_PER_LANE; k++) taps[k] = square[k / 2][k % 2];
    }
}

// Computes the dot products of all samples of a pass that the lane's sample group multiplies, and
// stages them. All lanes of a warp call this together.
__device__ __forceinline__ void stage_dots(const Args &args, const Lane &lane, WarpStage &stage,
                                           const HeadRows &rows, const Gradient &gradient,
                                           int pass) {
#pragma unroll
    for (int j = 0; j < GROUP_LANES; j += SAMPLE_GROUPS) {
        const int located_by = j + (SAMPLE_GROUPS > 1 ? lane.sample_group : 0);
        const int slot = slot_of(lane.group(), located_by);
        const LanePositions located = stage.positions[slot];
        const int first = pass + located_by * SAMPLES_PER_LANE;
        int row_pitch = 0;
        if (READS_LEVEL_ONCE) row_pitch = row_pitch_of(args, level_or_last(args, first));
#pragma unroll
        for (int i = 0; i < SAMPLES_PER_LANE; i++) {
            // The same for all lanes, because they exchange sums.
            if (!FULL_PASSES && pass + j * SAMPLES_PER_LANE + i >= SAMPLES) continue;
            const int level = level_or_last(args, first + i);
            Vector<VEC> taps[TAPS_PER_LANE];
            load_lane_taps(taps, rows, int(located.sample[i]),
                           READS_LEVEL_ONCE ? row_pitch : row_pitch_of(args, level));
            store_dots(stage.weights[i][slot], lane.tap_column * 2, taps, gradient, lane);
        }
    }
}

// The gradients of the samples of a lane, from the staged dot products. FUSED: those of offsets.
__device__ __forceinline__ void compute_gradients(const Args &args, const Item &item,
                                                  const WarpStage &stage, int slot, int pass,
                                                  const RawReference &raw,
                                                  const Placed (&placed)[SAMPLES_PER_LANE],
                                                  SampleGradient (&to)[SAMPLES_PER_LANE]) {
    const LaneLevel lane_level(args, item, raw, pass);
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) {
        const int s = pass + item.first_sample + i, l = level_or_last(args, s);
        const Level &level = READS_LEVEL_ONCE ? lane_level.level : level_at(args, l);
        to[i] = gradient_of(placed[i], stage.weights[i][slot], level);
        if (FUSED && WANT_POINTS && item.has(s)) {
            args.grad_points[item.index(args) * SAMPLES + s] = make_float2(to[i].x, to[i].y);
        }
        if (FUSED && placed[i].counts) {
            const Reference reference = lane_level.reference_on(args, item, l, level);
            to[i].x *= reference.scale_x, to[i].y *= reference.scale_y;
        }
    }
}

__device__ __forceinline__ void store_locations(const Args &args, const Item &item, int pass,
                                                const SampleGradient (&from)[SAMPLES_PER_LANE]) {
    float x[2 * SAMPLES_PER_LANE];
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i++) x[2 * i] = from[i].x, x[2 * i + 1] = from[i].y;
    store_samples<LOCATION, 2, GRAD_LOCATION_ALIGN>(
        args.grad_locations.address(item.image, item.query, item.head), pass + item.first_sample,
        x);
}

__device__ __forceinline__ void store_weights(const Args &args, const Item &item, int pass,
                                              const float (&x)[SAMPLES_PER_LANE]) {
    store_samples<WEIGHT, 1, GRAD_WEIGHT_ALIGN>(
        args.grad_weights.address(item.image, item.query, item.head), pass + item.first_sample, x);
}

// FUSED: stores the weights of the lane's samples of a pass, for the gradient of value: per plane
// and level, in the order of tiles.cuh.
__device__ __forceinline__ void store_softmax(const Args &args, const Item &item, int pass,
                                              const Placed (&placed)[SAMPLES_PER_LANE]) {
    // Samples that are stored together: on one level, all there or none.
    constexpr int TOGETHER =
        UNIFORM_POINTS > 0 && UNIFORM_POINTS % SAMPLES_PER_LANE == 0 ? SAMPLES_PER_LANE : 1;
    const i64 plane = i64(item.image) * args.heads + item.head;
    float *of_plane = args.softmax + plane * SAMPLES * args.queries;
#pragma unroll
    for (int i = 0; i < SAMPLES_PER_LANE; i += TOGETHER) {
        const int s = pass + item.first_sample + i;
        if (!FULL_PASSES && s >= SAMPLES) continue;
        const int l = level_of(args, s), first = args.level[l].first_sample;
        const int end =
            l + 1 < LEVELS ? args.level[l + 1 < LEVELS ? l + 1 : 0].first_sample : SAMPLES;
        const int points = UNIFORM_POINTS > 0 ? UNIFORM_POINTS : end - first;
        float x[TOGETHER];
#pragma unroll
        for (int k = 0; k < TOGETHER; k++) x[k] = placed[i + k].weight;
        float *to = of_plane + i64(first) * args.queries + i64(item.query) * points + (s - first);
        store_narrowed<F32, TOGETHER, 16>(reinterpret_cast<char *>(to), x);
    }
}

// FUSED: the weights of all samples of the lane and their gradients. The gradient of a logit needs
// the sum over all of them.
struct KeptWeights {
    static constexpr int KEPT = FUSED && WANT_WEIGHTS ? PASSES : 1;
    float weight[KEPT][SAMPLES_PER_LANE], gradient[KEPT][SAMPLES_PER_LANE];
    float mean = 0; // of gradients, by weights

    __device__ __forceinline__ void keep(const Item &item, int pass,
                                         const Placed (&placed)[SAMPLES_PER_LANE],
                                         const SampleGradient (&from)[SAMPLES_PER_LANE]) {
        const int p = pass / SAMPLES_PER_PASS % KEPT;
#pragma unroll
        for (int i = 0; i < SAMPLES_PER_LANE; i++) {
            weight[p][i] = item.has(pass + item.first_sample + i) ? placed[i].weight : 0;
            gradient[p][i] = from[i].weight;
            mean = fmaf(weight[p][i], gradient[p][i], mean);
        }
    }
    // All lanes of a warp call this together.
    __device__ __forceinline__ void store_logits(const Args &args, const Item &item) {
        mean = sum_over<GROUP_LANES>(mean);
#pragma unroll
        for (int p = 0; p < PASSES; p++) {
            float x[SAMPLES_PER_LANE];
#pragma unroll
            for (int i = 0; i < SAMPLES_PER_LANE; i++) {
                x[i] = weight[p % KEPT][i] * (gradient[p % KEPT][i] - mean);
            }
            if (item.active) store_weights(args, item, p * SAMPLES_PER_PASS, x);
        }
    }
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM)
    msda_backward_samples(const __grid_constant__ Args args) {
    WarpStage &stage = reinterpret_cast<WarpStage *>(shared)[threadIdx.x / 32];
    const LoadedLevel loaded = load_level(args);
    const Lane lane;
    const int group = threadIdx.x / GROUP_LANES; // in the block
    const int head = blockIdx.y * HEADS_PER_BLOCK + group % HEADS_PER_BLOCK, image = blockIdx.z;
    const bool pixels = STRIP_HEIGHT > 0 && publish_level(args, loaded);
    const int index = blockIdx.x * QUERIES_PER_TILE + group / HEADS_PER_BLOCK;
    const int query = query_of(args, image, index, 0, nullptr, pixels);
    const bool active = query >= 0 && head < args.heads;
    if (!__any_sync(0xffffffffu, active)) return;
    const int first_sample = lane.in_group * SAMPLES_PER_LANE;
    const Item item{image, active ? query : 0, active ? head : 0, active, first_sample};
    const HeadRows rows{args.value.address(image, lane.tap_column, item.head) + lane.row_offset,
                        args.value.row_stride};
    const char *locations = args.locations.address(image, item.query, item.head) +
                            first_sample * (2 * size_of<LOCATION>);
    const char *logits = args.weights.address(image, item.query, item.head);
    const char *weights = logits + first_sample * size_of<WEIGHT>;
    RawInputs raw;
    auto load_inputs = [&](int pass) {
        raw.load(args, active, locations, weights, image, item.query, pass, lane.in_group);
    };
    load_inputs(0);
    GroupSoftmax softmax;
    if (FUSED) softmax.compute(raw.samples, logits, lane.in_group, active);
    Gradient gradient;
    if (WANT_TAPS) {
        load_gradient(gradient,
                      args.output.address(image, item.query, item.head) + lane.row_offset);
    }
    if (STRIP_HEIGHT == 0) publish_level(args, loaded);
    KeptWeights kept;
    const int own_slot = slot_of(lane.group(), lane.in_group);
    constexpr int UNROLLED = KeptWeights::KEPT;
#pragma unroll UNROLLED
    for (int pass = 0; pass < SAMPLES; pass += SAMPLES_PER_PASS) { // the first sample of the pass
        __syncwarp();
        Placed placed[SAMPLES_PER_LANE];
        stage.positions[own_slot] = locate_samples(args, item, raw, softmax, pass, placed);
        if (FUSED && args.softmax && active) store_softmax(args, item, pass, placed);
        __syncwarp();
        const RawReference reference = raw.reference;
        if (pass + SAMPLES_PER_PASS < SAMPLES) load_inputs(pass + SAMPLES_PER_PASS);
        if (!WANT_TAPS) continue;
        stage_dots(args, lane, stage, rows, gradient, pass);
        __syncwarp();
        SampleGradient gradients[SAMPLES_PER_LANE];
        compute_gradients(args, item, stage, own_slot, pass, reference, placed, gradients);
        if (FUSED && WANT_WEIGHTS) kept.keep(item, pass, placed, gradients);
        if (active && WANT_LOCATIONS) store_locations(args, item, pass, gradients);
        if (active && WANT_WEIGHTS && !FUSED) {
            float x[SAMPLES_PER_LANE];
#pragma unroll
            for (int i = 0; i < SAMPLES_PER_LANE; i++) x[i] = gradients[i].weight;
            store_weights(args, item, pass, x);
        }
    }
    if (FUSED && WANT_WEIGHTS) kept.store_logits(args, item);
}
