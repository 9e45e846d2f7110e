//! The types of elements by the numbers and the names of frameworks.

use msda::Dtype;

/// What a framework calls each type.
#[derive(Debug, Clone, Copy)]
pub struct Dtypes<N> {
    /// 64-bit float.
    pub f64: N,
    /// 32-bit float.
    pub f32: N,
    /// IEEE half precision.
    pub f16: N,
    /// bfloat16.
    pub bf16: N,
}

/// The names in torch, NumPy and JAX.
pub const NAMES: Dtypes<&str> = Dtypes { f64: "float64", f32: "float32", f16: "float16", bf16: "bfloat16" };

/// The same, for messages.
pub const EXPECTED: &str = "float64, float32, float16 or bfloat16";

/// `TensorProto.DataType` of ONNX.
pub const ONNX: Dtypes<i32> = Dtypes { f64: 11, f32: 1, f16: 10, bf16: 16 };

/// `XLA_FFI_DataType`.
pub const XLA: Dtypes<i32> = Dtypes { f64: 12, f32: 11, f16: 10, bf16: 16 };

impl<N: Copy + PartialEq> Dtypes<N> {
    /// The type that a framework calls so.
    pub fn find(&self, called: N) -> Option<Dtype> {
        Dtype::ALL.into_iter().find(|&dtype| self.of(dtype) == called)
    }

    /// What the framework calls a type.
    pub fn of(&self, dtype: Dtype) -> N {
        match dtype {
            Dtype::F64 => self.f64,
            Dtype::F32 => self.f32,
            Dtype::F16 => self.f16,
            Dtype::Bf16 => self.bf16,
        }
    }
}
