//! Tensors as the operator takes them: elements, and strides of the three outer dimensions.

use crate::buffer::try_zeros;
use crate::dtype::{Slice, SliceMut};
use crate::error::{Argument, Error, ErrorKind, Result};
use crate::op::{ReferenceKind, offset};
use crate::problem::{Layout, Problem};

/// Strides in elements of the three outer dimensions: image, then position or query, then head (for
/// reference points: level). The inner dimensions are contiguous.
pub type Strides = [usize; 3];

/// A tensor to read. `slice.into()` makes a dense one.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The elements.
    pub data: Slice<'a>,
    /// Outer strides; `None` means dense. A stride of 0 repeats the same elements.
    pub strides: Option<Strides>,
}

/// A tensor to write. `(&mut slice).into()` makes a dense one.
#[derive(Debug)]
pub struct ViewMut<'a> {
    /// The elements.
    pub data: SliceMut<'a>,
    /// Outer strides; `None` means dense. No two indices may share an element.
    pub strides: Option<Strides>,
}

impl<'a, T: Into<Slice<'a>>> From<T> for View<'a> {
    fn from(data: T) -> Self {
        Self { data: data.into(), strides: None }
    }
}

impl<'a, T: Into<SliceMut<'a>>> From<T> for ViewMut<'a> {
    fn from(data: T) -> Self {
        Self { data: data.into(), strides: None }
    }
}

impl View<'_> {
    /// The same elements with the given outer strides.
    #[must_use]
    pub fn strided(self, strides: Strides) -> Self {
        Self { strides: Some(strides), ..self }
    }
}

impl ViewMut<'_> {
    /// The same elements with the given outer strides.
    #[must_use]
    pub fn strided(self, strides: Strides) -> Self {
        Self { strides: Some(strides), ..self }
    }

    /// The same view, read-only.
    pub fn as_view(&self) -> View<'_> {
        View { data: self.data.as_slice(), strides: self.strides }
    }
}

/// The tensors of the operator. The problem gives each of them its shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// `(B, S, H, D)`, in the layout of the problem.
    Value,
    /// `(B, Q, H, samples, 2)`: locations; in the fused form, offsets.
    Locations,
    /// `(B, Q, H, samples)`: weights; in the fused form, logits.
    Weights,
    /// `(B, Q, H, D)`.
    Output,
    /// `(B, Q, L, 2 or 4)`: reference points or boxes of the fused form.
    Reference(ReferenceKind),
}

impl Role {
    /// Extents of the three outer dimensions, and the number of contiguous elements inside.
    pub fn shape(self, p: &Problem) -> ([usize; 3], usize) {
        let (b, q, h) = (p.batch(), p.queries(), p.heads());
        match self {
            Self::Value => ([b, p.positions(), h], p.channels()),
            Self::Locations => ([b, q, h], 2 * p.samples()),
            Self::Weights => ([b, q, h], p.samples()),
            Self::Output => ([b, q, h], p.channels()),
            Self::Reference(kind) => ([b, q, p.levels().len()], kind.dim()),
        }
    }

    /// The strides of a dense tensor.
    pub fn dense(self, p: &Problem) -> Strides {
        let ([_, n, h], inner) = self.shape(p);
        match (self, p.layout()) {
            (Self::Value, Layout::Planar | Layout::PlanarRing) => [h * n * inner, inner, n * inner],
            _ => [n * h * inner, h * inner, inner],
        }
    }

    /// Calls `f` with each outer index of this tensor, in order.
    pub fn for_each_row(self, p: &Problem, mut f: impl FnMut([usize; 3])) {
        let ([a, b, c], _) = self.shape(p);
        for i in 0..a {
            for j in 0..b {
                for k in 0..c {
                    f([i, j, k]);
                }
            }
        }
    }

    /// The elements of `view` as `f64` in dense order; an error if it does not fit the problem.
    pub fn read(self, p: &Problem, view: &View<'_>) -> Result<Vec<f64>> {
        let strides = check_read(p, self, self.argument().name(), view)?;
        let (extents, inner) = self.shape(p);
        let dense = self.dense(p);
        let mut numbers = try_zeros(extents.iter().product::<usize>() * inner)?;
        self.for_each_row(p, |index| {
            let (to, from) = (offset(dense, index), offset(strides, index));
            for c in 0..inner {
                numbers[to + c] = view.data.get(from + c);
            }
        });
        Ok(numbers)
    }

    /// Writes numbers in dense order to `view`, which was checked, rounded to its type.
    ///
    /// # Panics
    /// If `view` or `numbers` do not fit the problem.
    pub fn write(self, p: &Problem, numbers: &[f64], view: &mut ViewMut<'_>) {
        let ((_, inner), dense) = (self.shape(p), self.dense(p));
        let strides = view.strides.unwrap_or(dense);
        self.for_each_row(p, |index| {
            let (from, to) = (offset(dense, index), offset(strides, index));
            for c in 0..inner {
                view.data.set(to + c, numbers[from + c]);
            }
        });
    }

    pub(crate) fn argument(self) -> Argument {
        match self {
            Self::Value => Argument::Value,
            Self::Locations => Argument::Locations,
            Self::Weights => Argument::Weights,
            Self::Output => Argument::Output,
            Self::Reference(_) => Argument::Reference,
        }
    }

    pub(crate) fn dtype(self, p: &Problem) -> crate::Dtype {
        match self {
            Self::Value | Self::Output => p.types().value,
            Self::Locations | Self::Reference(_) => p.types().locations,
            Self::Weights => p.types().weights,
        }
    }
}

/// Checks type and length of a tensor; returns its strides.
pub(crate) fn check_read(p: &Problem, role: Role, label: &str, view: &View<'_>) -> Result<Strides> {
    let name = role.argument().name();
    let subject = || if label == name { label.to_owned() } else { format!("{label} ({name})") };
    let (got, want) = (view.data.dtype(), role.dtype(p));
    if got != want {
        return Err(Error::new(ErrorKind::Type, format!("type of {}", subject()), got, want)
            .hint("`types` of the problem gives the type of each tensor"));
    }
    let (extents, inner) = role.shape(p);
    let mut strides = view.strides.unwrap_or_else(|| role.dense(p));
    for (stride, extent) in strides.iter_mut().zip(extents) {
        // A stride that is never used may be any number. With 0 it cannot overflow.
        if extent <= 1 || inner == 0 || extents.contains(&0) {
            *stride = 0;
        }
    }
    let Some(need) = span(extents, inner, strides) else {
        return Err(Error::new(
            ErrorKind::Overflow,
            format!("extent of {}", subject()),
            format!("strides {strides:?} over {extents:?}"),
            "a span that fits usize",
        ));
    };
    let len = view.data.len();
    // A dense tensor must fit exactly: a longer one most likely belongs to another problem.
    let fits = if view.strides.is_some() { len >= need } else { len == need };
    if !fits {
        let exactly = if view.strides.is_some() { "at least " } else { "" };
        return Err(Error::shape(
            format!("length of {}", subject()),
            format!("{len} elements"),
            format!("{exactly}{need}: {extents:?} of {inner} with strides {strides:?}"),
        ));
    }
    Ok(strides)
}

/// Like [`check_read`]; in addition no two indices may share an element.
pub(crate) fn check_write(p: &Problem, role: Role, label: &str, view: &ViewMut<'_>) -> Result<Strides> {
    let strides = check_read(p, role, label, &view.as_view())?;
    let (extents, inner) = role.shape(p);
    if extents.contains(&0) {
        return Ok(strides);
    }
    let mut dims: Vec<(usize, usize)> =
        strides.iter().copied().zip(extents).filter(|&(_, extent)| extent > 1).collect();
    dims.sort_unstable();
    let mut covered = inner;
    for (stride, extent) in dims {
        if stride < covered {
            return Err(Error::shape(
                format!("strides of {label}"),
                format!("{strides:?}"),
                format!("at least {covered} each: rows of {inner} over {extents:?} would overlap"),
            ));
        }
        covered += stride * (extent - 1);
    }
    Ok(strides)
}

/// The index after the last element of a tensor; `None` if it does not fit `isize`.
fn span(extents: [usize; 3], inner: usize, strides: Strides) -> Option<usize> {
    if extents.contains(&0) || inner == 0 {
        return Some(0);
    }
    let mut last = inner;
    for (extent, stride) in extents.into_iter().zip(strides) {
        last = last.checked_add((extent - 1).checked_mul(stride)?)?;
    }
    Some(last).filter(|&n| n <= isize::MAX as usize)
}
