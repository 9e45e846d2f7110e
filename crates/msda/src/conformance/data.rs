//! The data of a case, and the memory layouts of its tensors.

use crate::buffer::Buffer;
use crate::dtype::Dtype;
use crate::op::{Inputs, ReferenceKind, offset};
use crate::problem::Problem;
use crate::view::{Role, Strides, View, ViewMut};

/// The number in memory before a backend writes: exact in each type, and unlike any result.
pub(super) const POISON: f64 = -12352.0;

/// The memory layout of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spread {
    /// Elements before the first one. 1 makes it unaligned for all vector widths.
    pub(super) start: usize,
    /// Unused elements after each innermost row; `None` means dense.
    pub(super) gap: Option<usize>,
    /// Whether the outer dimensions are stored in reverse order.
    pub(super) reversed: bool,
    /// An outer dimension with stride 0; it needs a `gap`.
    pub(super) repeated: Option<usize>,
}

/// A tensor in memory: elements, the position of the first one, and strides.
#[derive(Debug, Clone)]
pub(super) struct StoredTensor {
    pub(super) buffer: Buffer,
    start: usize,
    strides: Option<Strides>,
}

impl StoredTensor {
    /// A tensor whose dense element `i` is `f(i)`. Unused elements are `between`.
    pub(super) fn new(
        p: &Problem,
        role: Role,
        dtype: Dtype,
        spread: Spread,
        between: f64,
        mut f: impl FnMut(usize) -> f64,
    ) -> Self {
        let (extents, inner) = role.shape(p);
        let mut len = inner + spread.gap.unwrap_or(0);
        let mut strides = [0; 3];
        for dim in if spread.reversed { [0, 1, 2] } else { [2, 1, 0] } {
            if spread.repeated != Some(dim) {
                strides[dim] = len;
                len *= extents[dim];
            }
        }
        let strides = spread.gap.map(|_| strides);
        let dense = role.dense(p);
        let actual = strides.unwrap_or(dense);
        let mut buffer = Buffer::filled(dtype, spread.start + len, between);
        let mut data = buffer.as_mut();
        role.for_each_row(p, |index| {
            let (from, to) = (offset(dense, index), spread.start + offset(actual, index));
            for c in 0..inner {
                data.set(to + c, f(from + c));
            }
        });
        Self { buffer, start: spread.start, strides }
    }

    /// Replaces each element `x` by `f(x)`, unused elements too.
    pub(super) fn change(&mut self, mut f: impl FnMut(f64) -> f64) {
        let mut data = self.buffer.as_mut();
        for i in 0..data.as_slice().len() {
            let x = data.as_slice().get(i);
            data.set(i, f(x));
        }
    }

    /// The tensor as the operator reads it.
    pub(super) fn view(&self) -> View<'_> {
        View { data: self.buffer.as_slice().tail(self.start), strides: self.strides }
    }

    /// The tensor as the operator writes it.
    pub(super) fn view_mut(&mut self) -> ViewMut<'_> {
        let strides = self.strides;
        ViewMut { data: self.buffer.as_mut().tail(self.start), strides }
    }

    /// The numbers of the tensor in dense order, and the number of other elements that changed.
    pub(super) fn take(&self, p: &Problem, role: Role, between: f64) -> (Vec<f64>, usize) {
        let numbers = role.read(p, &self.view()).expect("the tensor fits the problem");
        let (_, inner) = role.shape(p);
        let strides = self.strides.unwrap_or_else(|| role.dense(p));
        let mut own = vec![false; self.buffer.len()];
        role.for_each_row(p, |index| {
            let first = self.start + offset(strides, index);
            own[first..first + inner].fill(true);
        });
        let all = self.buffer.as_slice();
        let touched = (0..all.len()).filter(|&i| !own[i] && all.get(i) != between).count();
        (numbers, touched)
    }
}

/// A problem with data.
#[derive(Debug, Clone)]
pub struct Case {
    /// The problem.
    pub problem: Problem,
    pub(super) value: StoredTensor,
    pub(super) locations: StoredTensor,
    pub(super) weights: StoredTensor,
    pub(super) reference: Option<(ReferenceKind, StoredTensor)>,
    pub(super) grad_output: StoredTensor,
    /// The memory layout of the outputs.
    pub(super) out: Spread,
    /// Whether pixel coordinates are exact, so that samples may be on boundaries.
    pub(super) exact: bool,
    /// What the case checks.
    pub(super) kind: Kind,
}

/// What a case checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Forward and backward must agree with the oracle.
    Compare,
    /// Each gradient alone must have the same bits as together with the others.
    Partial,
    /// The call must be refused, because of this mistake.
    Refuse(Wrong),
}

/// A mistake in a call. Numbers are those of gradients: value, locations, weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wrong {
    ValueLength,
    LocationsLength,
    WeightsLength,
    OutputLength,
    ValueType,
    LocationsType,
    OutputType,
    StridesOverrun,
    StridesOverflow,
    OutputOverlaps,
    UpstreamLength,
    UpstreamType,
    GradientLength(usize),
    GradientType(usize),
    GradientOverlaps(usize),
    ReferenceInPlainForm,
    ReferenceLength,
}

impl Wrong {
    /// Every mistake.
    pub(super) fn all() -> Vec<Self> {
        use Wrong::*;
        let lengths = [ValueLength, LocationsLength, WeightsLength, OutputLength];
        let types = [ValueType, LocationsType, OutputType];
        let strides = [StridesOverrun, StridesOverflow, OutputOverlaps];
        let upstream = [UpstreamLength, UpstreamType];
        let gradients = [GradientLength, GradientType, GradientOverlaps];
        let gradients = gradients.into_iter().flat_map(|wrong| [0, 1, 2].map(wrong));
        let calls = lengths.into_iter().chain(types).chain(strides).chain(upstream).chain(gradients);
        calls.chain([ReferenceInPlainForm, ReferenceLength]).collect()
    }
}

impl Case {
    /// The inputs as the operator takes them.
    pub fn inputs(&self) -> Inputs<'_> {
        match &self.reference {
            None => Inputs::plain(self.value.view(), self.locations.view(), self.weights.view()),
            Some((kind, reference)) => Inputs::fused(
                self.value.view(),
                *kind,
                reference.view(),
                self.locations.view(),
                self.weights.view(),
            ),
        }
    }

    /// The key of the problem, the form and the mistake.
    pub fn describe(&self) -> String {
        let mut s = self.problem.to_string();
        if let Some((kind, _)) = &self.reference {
            s += match kind {
                ReferenceKind::Point => " fused points",
                ReferenceKind::Box => " fused boxes",
            };
        }
        if let Kind::Refuse(wrong) = self.kind {
            s += &format!(" {wrong:?}");
        }
        s
    }
}
