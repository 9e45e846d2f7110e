// The fused form from several threads of a C++ program. On a machine without a GPU, CUDA is refused
// with a reason. Exits with 0 if all results are right.
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "msda.h"

struct Tensor {
    std::vector<int64_t> sizes;
    std::vector<float> data;

    explicit Tensor(std::vector<int64_t> shape) : sizes(std::move(shape)) {
        int64_t count = 1;
        for (int64_t size : sizes) count *= size;
        for (int64_t i = 0; i < count; ++i) data.push_back(std::sin(float(i + count)));
    }
    msda_tensor view() {
        return {data.data(), MSDA_F32, int32_t(sizes.size()), sizes.data(), nullptr};
    }
};

static void check(int32_t code) {
    if (code != MSDA_OK) throw std::runtime_error(msda_last_error());
}

int main() {
    const int64_t batch = 2, queries = 500, heads = 4, channels = 32, levels = 2, points = 4;
    const std::vector<int64_t> shapes = {20, 30, 10, 15};
    Tensor value({batch, 20 * 30 + 10 * 15, heads, channels});
    Tensor reference({batch, queries, levels, 2});
    Tensor offsets({batch, queries, heads, levels, points, 2});
    Tensor logits({batch, queries, heads, levels, points});
    msda_tensor points_view = reference.view();
    msda_inputs inputs = {};
    inputs.value = value.view();
    inputs.levels = levels;
    inputs.spatial_shapes = shapes.data();
    inputs.reference_points = &points_view;
    inputs.sampling_locations = offsets.view();
    inputs.attention_weights = logits.view();

    std::vector<Tensor> outputs(4, Tensor({batch, queries, heads * channels}));
    std::vector<std::thread> threads;
    for (Tensor &output : outputs)
        threads.emplace_back([&] {
            msda_tensor view = output.view();
            check(msda_forward(&inputs, &view, 2));
        });
    for (std::thread &thread : threads) thread.join();
    for (const Tensor &output : outputs)
        if (output.data != outputs[0].data) return 1;
    std::printf("%zu threads computed the same bits\n", outputs.size());

    msda_tensor view = outputs[0].view();
    size_t bytes = 0;
    if (msda_cuda_forward_workspace(&inputs, &view, 0, &bytes) == MSDA_OK)
        std::printf("CUDA: %zu bytes of workspace\n", bytes);
    else
        std::printf("CUDA is refused: %s\n", msda_last_error());
    return msda_cuda_forward_workspace(&inputs, &view, -1, &bytes) == MSDA_ERROR_VALUE ? 0 : 1;
}
