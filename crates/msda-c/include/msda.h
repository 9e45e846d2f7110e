#ifndef MSDA_H
#define MSDA_H

/* Made by cbindgen: MSDA_UPDATE_SNAPSHOTS=1 cargo test -p msda-c writes it. */

#include <stddef.h>
#include <stdint.h>

// No error.
#define MSDA_OK 0

// A size or a number is wrong.
#define MSDA_ERROR_VALUE 1

// A type is wrong.
#define MSDA_ERROR_TYPE 2

// The operator does not compute it.
#define MSDA_ERROR_NOT_IMPLEMENTED 3

// There is no memory for it.
#define MSDA_ERROR_MEMORY 4

// The machine cannot (no GPU, no driver), or an internal error.
#define MSDA_ERROR_RUNTIME 5

// 64-bit floats.
#define MSDA_F64 0

// 32-bit floats.
#define MSDA_F32 1

// 16-bit floats of IEEE 754.
#define MSDA_F16 2

// bfloat16.
#define MSDA_BF16 3

// An option: the nearest pixel instead of a bilinear sample.
#define MSDA_NEAREST 1

// An option: locations are moved onto the level instead of reading zeros off it.
#define MSDA_BORDER 2

// An option: 0 and 1 are the centres of the corner pixels instead of the edges of the level.
#define MSDA_ALIGN_CORNERS 4

// A tensor. The structure and its lists are read during a call alone.
typedef struct msda_tensor {
  // The first element.
  void *data;
  // MSDA_F32 and so on.
  int32_t dtype;
  // The number of dimensions.
  int32_t rank;
  // The size of each dimension.
  const int64_t *sizes;
  // The stride of each dimension in elements; NULL for a dense tensor. Of inputs, the dimensions
  // from the fourth on are dense; outputs and gradients are dense.
  const int64_t *strides;
} msda_tensor;

// The inputs of the operator.
typedef struct msda_inputs {
  // (batch, positions, heads, channels)
  struct msda_tensor value;
  // The number of levels.
  int32_t levels;
  // Height and width of each level, in memory of the host.
  const int64_t *spatial_shapes;
  // The first position of each level, in memory of the host; NULL if each level starts where the
  // one before ends.
  const int64_t *level_start_index;
  // NULL for the plain form. (batch, queries, levels, 2 or 4) for the fused form: then the next
  // two tensors are sampling offsets and attention logits.
  const struct msda_tensor *reference_points;
  // (batch, queries, heads, levels, points, 2)
  struct msda_tensor sampling_locations;
  // (batch, queries, heads, levels, points)
  struct msda_tensor attention_weights;
  // A sum of MSDA_NEAREST, MSDA_BORDER and MSDA_ALIGN_CORNERS, or 0.
  int64_t options;
  // NULL, or the number of points of each of at most 8 levels: then levels and points are one
  // dimension.
  const uint8_t *points;
} msda_inputs;

// Destinations of the gradients. NULL: the gradient is not computed.
typedef struct msda_gradients {
  // Of value.
  const struct msda_tensor *value;
  // Of locations or offsets.
  const struct msda_tensor *sampling_locations;
  // Of weights or logits.
  const struct msda_tensor *attention_weights;
  // Of reference points.
  const struct msda_tensor *reference_points;
} msda_gradients;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The version of the library. The text is never freed.
const char *msda_version(void);

// Computes the output on the CPU: a dense (batch, queries, heads * channels) of the type of value.
// `threads` is 0 for as many as MSDA_NUM_THREADS or OMP_NUM_THREADS says, else one per core.
// Returns MSDA_OK or the kind of the error.
//
// # Safety
// All pointers are valid for their sizes, and nobody else uses the output during the call.
int32_t msda_forward(const struct msda_inputs *inputs,
                     const struct msda_tensor *output,
                     int32_t threads);

// Computes gradients on the CPU, given the gradient of the output. A gradient that is NULL is not
// computed; the others are dense and have the shape and type of their tensor.
//
// # Safety
// As for `msda_forward`.
int32_t msda_backward(const struct msda_inputs *inputs,
                      const struct msda_tensor *grad_output,
                      const struct msda_gradients *gradients,
                      int32_t threads);

// Makes ready what `msda_cuda_forward` needs for such a call: the kernel is compiled, and kept for
// all calls with these sizes, strides, types and alignments. Writes the bytes of workspace that
// each call needs to `workspace`.
//
// # Safety
// The structures are valid. Addresses of tensors are not read.
int32_t msda_cuda_forward_workspace(const struct msda_inputs *inputs,
                                    const struct msda_tensor *output,
                                    int32_t device,
                                    size_t *workspace);

// Queues the computation of the output on a stream (a cudaStream_t or CUstream) of a device. All
// tensors and the workspace are in its memory, and the stream belongs to its primary context
// (that of the CUDA runtime); the tables of the levels are in memory of the host. The workspace
// begins at a multiple of 16 bytes. Nothing is allocated, and nothing waits, if
// `msda_cuda_forward_workspace` was called before; the last 512 combinations are kept.
// The call can be captured into a CUDA graph.
//
// # Safety
// As for `msda_forward`; the memory stays until the stream has run the call.
int32_t msda_cuda_forward(const struct msda_inputs *inputs,
                          const struct msda_tensor *output,
                          int32_t device,
                          void *stream,
                          void *workspace,
                          size_t workspace_bytes);

// As `msda_cuda_forward_workspace`, for `msda_cuda_backward`.
//
// # Safety
// As for `msda_cuda_forward_workspace`.
int32_t msda_cuda_backward_workspace(const struct msda_inputs *inputs,
                                     const struct msda_tensor *grad_output,
                                     const struct msda_gradients *gradients,
                                     int32_t device,
                                     size_t *workspace);

// As `msda_cuda_forward`, for the gradients that `msda_backward` describes.
//
// # Safety
// As for `msda_cuda_forward`.
int32_t msda_cuda_backward(const struct msda_inputs *inputs,
                           const struct msda_tensor *grad_output,
                           const struct msda_gradients *gradients,
                           int32_t device,
                           void *stream,
                           void *workspace,
                           size_t workspace_bytes);

// The message of this thread's last error: what was got, what was expected. It is valid until the
// next error of this thread.
const char *msda_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MSDA_H */
