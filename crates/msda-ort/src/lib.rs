//! Multi-scale deformable attention as custom operators of ONNX Runtime 1.17 and newer.
//!
//! A program names this library to ONNX Runtime, which calls [`RegisterCustomOps`]. The library is
//! not linked to ONNX Runtime: it gets a table of functions, and a function is its index.
//!
//! | module | contents |
//! |---|---|
//! | `api` | the C functions and structures of ONNX Runtime that are used |
//! | `form` | the two forms of the operator, and where it runs |
//! | `ops` | the operators: a table of names, types and providers, and what ONNX Runtime asks them |
//! | `shape` | the shape of the output, also where sizes are unknown |
//! | `kernel` | an operator of a model: the computation on CPU and CUDA |
//! | `attributes`, `input` | the attributes of a node, and the inputs of a run |
//! | `pool`, `workspace` | ONNX Runtime's threads, and device memory for a call |
//!
//! The domain is `msda`, version 1. Attributes have the names and defaults of the Python functions:
//! `sampling`, `padding`, `align_corners`, `points`.
//!
//! | input | `MultiScaleDeformableAttention` | `MultiScaleDeformableAttentionFused` |
//! |---|---|---|
//! | 0 | `value` (B, S, H, D) | the same |
//! | 1, 2 | `spatial_shapes` (L, 2) and `level_start_index` (L), int64 | the same |
//! | 3 | `sampling_locations` (B, Q, H, L, P, 2) | `reference_points` (B, Q, L or 1, 2 or 4) |
//! | 4 | `attention_weights` (B, Q, H, L, P) | `sampling_offsets` (B, Q, H, L, P, 2) |
//! | 5 | | `attention_logits` (B, Q, H, L, P) |
//!
//! With `points` (one number per level), L and P are one dimension. The output is (B, Q, H * D) in
//! the type of value: f32, f16, bf16 or f64. The other floats have that type or f32.
#![allow(unsafe_code)]

mod api;
mod attributes;
mod form;
mod input;
mod kernel;
mod ops;
mod pool;
mod shape;
mod workspace;

pub use ops::RegisterCustomOps;
