//! Element types, and slices whose element type is only known at run time.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Neg, Sub};
use std::str::FromStr;

use half::{bf16, f16};

use crate::error::{Error, ErrorKind};

/// The type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Dtype {
    /// 64-bit float.
    F64,
    /// 32-bit float.
    F32,
    /// IEEE half precision.
    F16,
    /// bfloat16.
    Bf16,
}

impl Dtype {
    /// Every type, widest first.
    pub const ALL: [Self; 4] = [Self::F64, Self::F32, Self::F16, Self::Bf16];

    /// The name in keys, tables and files.
    pub fn name(self) -> &'static str {
        match self {
            Self::F64 => "f64",
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }

    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    /// The largest relative error of one rounding: half the distance from 1 to the next number.
    pub fn rounding(self) -> f64 {
        match self {
            Self::F64 => f64::EPSILON / 2.0,
            Self::F32 => f64::from(f32::EPSILON) / 2.0,
            Self::F16 => 2f64.powi(-11),
            Self::Bf16 => 2f64.powi(-8),
        }
    }

    /// The smallest magnitude that rounds to infinity; infinity itself for `f64`.
    pub fn overflow(self) -> f64 {
        // The largest finite number plus half its distance to the next power of two.
        let below = |power: i32, rounding: f64| 2f64.powi(power) * (1.0 - rounding / 2.0);
        match self {
            Self::F64 => f64::INFINITY,
            Self::F16 => below(16, self.rounding()),
            Self::F32 | Self::Bf16 => below(128, self.rounding()),
        }
    }

    /// The type in which arithmetic on elements of this type is done.
    pub fn accumulator(self) -> Self {
        match self {
            Self::F64 => Self::F64,
            _ => Self::F32,
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Dtype {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        Self::ALL.into_iter().find(|d| d.name() == s).ok_or_else(|| {
            Error::new(ErrorKind::Type, "element type", format!("'{s}'"), "f64, f32, f16 or bf16")
        })
    }
}

/// The floating-point types in which arithmetic is done. Sealed: `f32` and `f64`.
pub trait Float:
    private::Sealed
    + Copy
    + Send
    + Sync
    + PartialOrd
    + fmt::Debug
    + Default
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + 'static
{
    /// This type as a run-time value.
    const DTYPE: Dtype;
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// The nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// The same number as `f64`.
    fn to_f64(self) -> f64;
    /// The largest integer that is not larger.
    fn floor(self) -> Self;
    /// The nearest integer; halves round to the even one.
    fn round_ties_even(self) -> Self;
    /// e to this power.
    fn exp(self) -> Self;
    /// Whether it is neither NaN nor infinite.
    fn is_finite(self) -> bool;
}

macro_rules! floats {
    ($($t:ident $dtype:ident;)*) => {$(
        impl Float for $t {
            const DTYPE: Dtype = Dtype::$dtype;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            #[inline(always)]
            fn from_f64(x: f64) -> Self { x as $t }
            #[inline(always)]
            fn to_f64(self) -> f64 { self as f64 }
            #[inline(always)]
            fn floor(self) -> Self { $t::floor(self) }
            #[inline(always)]
            fn round_ties_even(self) -> Self { $t::round_ties_even(self) }
            #[inline(always)]
            fn exp(self) -> Self { $t::exp(self) }
            #[inline(always)]
            fn is_finite(self) -> bool { $t::is_finite(self) }
        }
    )*};
}

floats! {
    f64 F64;
    f32 F32;
}

/// The element types of tensors. Sealed: the four types of [`Dtype`].
pub trait Element: Copy + Send + Sync + fmt::Debug + Default + private::Sealed + 'static {
    /// This type as a run-time value.
    const DTYPE: Dtype;
    /// The type in which its arithmetic is done.
    type Acc: Float;
    /// The same number in the arithmetic type.
    fn widen(self) -> Self::Acc;
    /// The nearest number of this type.
    fn narrow(x: Self::Acc) -> Self;
    /// The nearest number of this type.
    fn from_f64(x: f64) -> Self;
    /// The same number as `f64`.
    fn to_f64(self) -> f64;
    /// The elements of a slice, if they are of this type.
    fn slice<'a>(s: &Slice<'a>) -> Option<&'a [Self]>;
    /// The elements of a mutable slice, if they are of this type.
    fn slice_mut<'a>(s: SliceMut<'a>) -> Option<&'a mut [Self]>;
}

mod private {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($variant:ident $t:ty, $acc:ty, $widen:expr, $narrow:expr, $from:expr, $to:expr;)*) => {
        $(
            impl private::Sealed for $t {}
            impl Element for $t {
                const DTYPE: Dtype = Dtype::$variant;
                type Acc = $acc;
                #[inline(always)]
                fn widen(self) -> $acc { $widen(self) }
                #[inline(always)]
                fn narrow(x: $acc) -> Self { $narrow(x) }
                #[inline]
                fn from_f64(x: f64) -> Self { $from(x) }
                #[inline]
                fn to_f64(self) -> f64 { $to(self) }
                fn slice<'a>(s: &Slice<'a>) -> Option<&'a [Self]> {
                    if let Slice::$variant(s) = s { Some(s) } else { None }
                }
                fn slice_mut<'a>(s: SliceMut<'a>) -> Option<&'a mut [Self]> {
                    if let SliceMut::$variant(s) = s { Some(s) } else { None }
                }
            }
            impl<'a> From<&'a [$t]> for Slice<'a> {
                fn from(s: &'a [$t]) -> Self { Self::$variant(s) }
            }
            impl<'a> From<&'a Vec<$t>> for Slice<'a> {
                fn from(s: &'a Vec<$t>) -> Self { Self::$variant(s) }
            }
            impl<'a> From<&'a mut [$t]> for SliceMut<'a> {
                fn from(s: &'a mut [$t]) -> Self { Self::$variant(s) }
            }
            impl<'a> From<&'a mut Vec<$t>> for SliceMut<'a> {
                fn from(s: &'a mut Vec<$t>) -> Self { Self::$variant(s) }
            }
            impl<'a, const N: usize> From<&'a [$t; N]> for Slice<'a> {
                fn from(s: &'a [$t; N]) -> Self { Self::$variant(s) }
            }
            impl<'a, const N: usize> From<&'a mut [$t; N]> for SliceMut<'a> {
                fn from(s: &'a mut [$t; N]) -> Self { Self::$variant(s) }
            }
        )*
    };
}

elements! {
    F64 f64, f64, |x| x, |x| x, |x| x, |x| x;
    F32 f32, f32, |x| x, |x| x, |x: f64| x as f32, f64::from;
    F16 f16, f32, f16::to_f32, f16::from_f32, |x| f16::from_f32(round_to_odd(x)), f16::to_f64;
    Bf16 bf16, f32, bf16::to_f32, bf16::from_f32, |x| bf16::from_f32(round_to_odd(x)), bf16::to_f64;
}

/// `x` in `f32`, and if that is not exact, the neighbour with an odd last bit. Rounding this number
/// to 16 bits gives the number nearest to `x`; rounding twice to the nearest does not.
fn round_to_odd(x: f64) -> f32 {
    let near = x as f32;
    let wide = f64::from(near);
    if wide == x || x.is_nan() {
        return near;
    }
    let bits = near.to_bits();
    let toward_zero = if wide.abs() > x.abs() { bits - 1 } else { bits };
    f32::from_bits(toward_zero | 1)
}

/// Evaluates an expression with the typed contents of a [`Slice`], [`SliceMut`] or `Buffer`.
macro_rules! typed {
    ($kind:ident, $value:expr, $name:ident => $body:expr) => {
        match $value {
            $kind::F64($name) => $body,
            $kind::F32($name) => $body,
            $kind::F16($name) => $body,
            $kind::Bf16($name) => $body,
        }
    };
}
pub(crate) use typed;

/// The same for an expression that becomes the contents of another such enum.
macro_rules! retyped {
    ($from:ident => $to:ident, $value:expr, $name:ident => $body:expr) => {
        match $value {
            $from::F64($name) => $to::F64($body),
            $from::F32($name) => $to::F32($body),
            $from::F16($name) => $to::F16($body),
            $from::Bf16($name) => $to::Bf16($body),
        }
    };
}
pub(crate) use retyped;

/// Borrowed elements of a type known at run time. `slice.into()` makes one.
#[derive(Debug, Clone, Copy)]
pub enum Slice<'a> {
    /// 64-bit floats.
    F64(&'a [f64]),
    /// 32-bit floats.
    F32(&'a [f32]),
    /// Half-precision floats.
    F16(&'a [f16]),
    /// bfloat16 numbers.
    Bf16(&'a [bf16]),
}

impl<'a> Slice<'a> {
    /// The element type.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F64(_) => Dtype::F64,
            Self::F32(_) => Dtype::F32,
            Self::F16(_) => Dtype::F16,
            Self::Bf16(_) => Dtype::Bf16,
        }
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        typed!(Slice, self, s => s.len())
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Element `i` as `f64`.
    ///
    /// # Panics
    /// If `i` is not below the length, like indexing a slice.
    pub fn get(&self, i: usize) -> f64 {
        typed!(Slice, self, s => Element::to_f64(s[i]))
    }

    /// The elements without the first `start`; none if there are not so many.
    #[must_use]
    pub fn tail(&self, start: usize) -> Slice<'a> {
        retyped!(Slice => Slice, self, s => s.get(start..).unwrap_or_default())
    }
}

/// Mutably borrowed elements of a type known at run time.
#[derive(Debug)]
pub enum SliceMut<'a> {
    /// 64-bit floats.
    F64(&'a mut [f64]),
    /// 32-bit floats.
    F32(&'a mut [f32]),
    /// Half-precision floats.
    F16(&'a mut [f16]),
    /// bfloat16 numbers.
    Bf16(&'a mut [bf16]),
}

impl SliceMut<'_> {
    /// The same elements, read-only.
    pub fn as_slice(&self) -> Slice<'_> {
        retyped!(SliceMut => Slice, self, s => s)
    }

    /// The elements without the first `start`; none if there are not so many.
    #[must_use]
    pub fn tail(self, start: usize) -> Self {
        retyped!(SliceMut => SliceMut, self, s => s.get_mut(start..).unwrap_or_default())
    }

    /// Stores `x` as element `i`, rounded to the element type.
    ///
    /// # Panics
    /// If `i` is not below the length, like indexing a slice.
    pub fn set(&mut self, i: usize, x: f64) {
        typed!(SliceMut, self, s => s[i] = Element::from_f64(x));
    }
}
