/* One sample in the centre of a level of 2 x 2 pixels: forward, backward, and an error.
   Exits with 0 if all results are right. */
#include <stdio.h>
#include <string.h>

#include "msda.h"

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, msda_last_error());
    return 1;
}

int main(void) {
    float value[8] = {1, 10, 2, 20, 3, 30, 4, 40};
    float location[2] = {0.5f, 0.5f}, weight[1] = {2}, output[2] = {0};
    float grad_output[2] = {1, 0}, grad_value[8], grad_weight[1];
    const int64_t value_sizes[4] = {1, 4, 1, 2}; /* batch, positions, heads, channels */
    const int64_t sizes[6] = {1, 1, 1, 1, 1, 2}; /* batch, queries, heads, levels, points, 2 */
    const int64_t output_sizes[3] = {1, 1, 2};
    const int64_t shapes[2] = {2, 2};

    msda_inputs inputs;
    memset(&inputs, 0, sizeof inputs);
    inputs.value = (msda_tensor){value, MSDA_F32, 4, value_sizes, NULL};
    inputs.levels = 1;
    inputs.spatial_shapes = shapes;
    inputs.sampling_locations = (msda_tensor){location, MSDA_F32, 6, sizes, NULL};
    inputs.attention_weights = (msda_tensor){weight, MSDA_F32, 5, sizes, NULL};
    msda_tensor out = {output, MSDA_F32, 3, output_sizes, NULL};

    if (msda_forward(&inputs, &out, 1) != MSDA_OK) return failed("forward");
    printf("msda %s: output %g %g\n", msda_version(), output[0], output[1]);
    if (output[0] != 5 || output[1] != 50) return 1;

    msda_tensor upstream = {grad_output, MSDA_F32, 3, output_sizes, NULL};
    msda_tensor to_value = {grad_value, MSDA_F32, 4, value_sizes, NULL};
    msda_tensor to_weight = {grad_weight, MSDA_F32, 5, sizes, NULL};
    msda_gradients gradients = {&to_value, NULL, &to_weight, NULL};
    if (msda_backward(&inputs, &upstream, &gradients, 0) != MSDA_OK) return failed("backward");
    printf("gradient of value %g, of the weight %g\n", grad_value[6], grad_weight[0]);
    if (grad_value[6] != 0.5f || grad_value[7] != 0 || grad_weight[0] != 2.5f) return 1;

    inputs.value.rank = 3;
    if (msda_forward(&inputs, &out, 1) != MSDA_ERROR_VALUE) return 1;
    printf("refused: %s\n", msda_last_error());
    return strstr(msda_last_error(), "value: got shape [1, 4, 1], expected 4 dimensions") == NULL;
}
