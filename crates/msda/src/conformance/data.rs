//! The data of a case, and the ways a tensor may lie in memory.

use crate::buffer::Buffer;
use crate::dtype::{Dtype, Slice};
use crate::op::{Inputs, ReferenceKind, offset};
use crate::problem::Problem;
use crate::view::{Role, Strides, View, ViewMut};

/// What memory holds before a backend writes: exact in every type, and unlike any result.
pub(super) const POISON: f64 = -12352.0;

/// How a tensor lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spread {
    /// Elements before the first one: 1 makes the start unaligned for any vector.
    pub(super) start: usize,
    /// Unused elements after each innermost row; `None` is dense.
    pub(super) gap: Option<usize>,
    /// Whether the outer dimensions are stored in reverse order.
    pub(super) reversed: bool,
}

/// A tensor in memory: elements, where it starts among them, and its strides.
#[derive(Debug, Clone)]
pub struct Held {
    pub(super) buffer: Buffer,
    start: usize,
    strides: Option<Strides>,
}

impl Held {
    /// A tensor of the given role, whose dense element `i` is `f(i)`. What lies between is `between`.
    pub(super) fn new(
        p: &Problem,
        role: Role,
        dtype: Dtype,
        spread: Spread,
        between: f64,
        mut f: impl FnMut(usize) -> f64,
    ) -> Self {
        let (extents, inner) = role.shape(p);
        let strides = spread.gap.map(|gap| {
            let row = inner + gap;
            match spread.reversed {
                false => [extents[1] * extents[2] * row, extents[2] * row, row],
                true => [row, extents[0] * row, extents[0] * extents[1] * row],
            }
        });
        let dense = role.dense(p);
        let actual = strides.unwrap_or(dense);
        let rows = extents.iter().product::<usize>();
        let len = match strides {
            Some(_) => rows * (inner + spread.gap.unwrap_or(0)),
            None => rows * inner,
        };
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

    /// The tensor as the op takes it.
    pub fn view(&self) -> View<'_> {
        View { data: self.buffer.as_slice().from(self.start), strides: self.strides }
    }

    /// The tensor as the op writes it.
    pub fn view_mut(&mut self) -> ViewMut<'_> {
        let strides = self.strides;
        ViewMut { data: self.buffer.as_mut().from(self.start), strides }
    }

    /// The tensor's numbers in dense order, and how many elements outside it no longer hold `between`.
    pub(super) fn take(&self, p: &Problem, role: Role, between: f64) -> (Vec<f64>, usize) {
        let (extents, inner) = role.shape(p);
        let (dense, view) = (role.dense(p), self.view());
        let actual = view.strides.unwrap_or(dense);
        let mut numbers = vec![0.0; extents.iter().product::<usize>() * inner];
        let mut own = vec![false; self.buffer.len()];
        role.for_each_row(p, |index| {
            let (to, from) = (offset(dense, index), offset(actual, index));
            for c in 0..inner {
                numbers[to + c] = view.data.get(from + c);
                own[self.start + from + c] = true;
            }
        });
        let all: Slice<'_> = self.buffer.as_slice();
        let touched = (0..all.len()).filter(|&i| !own[i] && all.get(i) != between).count();
        (numbers, touched)
    }
}

/// A problem with data.
#[derive(Debug, Clone)]
pub struct Case {
    /// What to compute.
    pub problem: Problem,
    pub(super) value: Held,
    pub(super) locations: Held,
    pub(super) weights: Held,
    pub(super) reference: Option<(ReferenceKind, Held)>,
    pub(super) grad_output: Held,
    /// How the outputs lie in memory.
    pub(super) out: Spread,
    /// Pixel coordinates are exact in the arithmetic type, so that points may sit on boundaries.
    pub(super) exact: bool,
    /// What the case is about.
    pub(super) kind: Kind,
}

/// What is done with a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Forward and backward must agree with the oracle.
    Compare,
    /// Each gradient alone must equal, bit for bit, what it is together with the others.
    Partial,
    /// The output alone: of gradients it depends on the order of products whether infinities become NaN.
    Forward,
    /// The call must be refused: this is what is wrong with it.
    Refuse(Wrong),
}

/// Something wrong with a call.
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
    GradientLength,
    ReferenceInPlainForm,
    ReferenceLength,
}

impl Case {
    /// The inputs as the op takes them.
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

    /// The problem's key and what else distinguishes the case.
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
