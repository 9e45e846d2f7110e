//! The op's arguments, the one place where they are checked, and what a backend must provide.

use crate::dtype::Slice;
use crate::error::Result;
use crate::problem::Problem;
use crate::view::{Role, Strides, View, ViewMut, check_read, check_write};

/// What a reference point of the fused form is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReferenceKind {
    /// `(x, y)`: a location is `ref + offset / (w, h)` of its level.
    Point,
    /// `(x, y, width, height)`: a location is `ref_xy + offset / points * ref_wh / 2`.
    Box,
}

impl ReferenceKind {
    /// Numbers of one reference point.
    pub fn dim(self) -> usize {
        match self {
            Self::Point => 2,
            Self::Box => 4,
        }
    }
}

/// Reference points `(B, Q, L, dim)` of the fused form.
#[derive(Debug, Clone, Copy)]
pub struct Reference<'a> {
    /// Points or boxes.
    pub kind: ReferenceKind,
    /// The numbers.
    pub view: View<'a>,
}

/// What the op reads.
///
/// In the plain form `locations` are normalised sampling locations and `weights` are attention weights. With
/// `reference` set the form is fused: `locations` are raw offsets and `weights` are raw logits, and location
/// arithmetic and softmax happen inside the op.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `(B, S, H, D)`, in the problem's layout.
    pub value: View<'a>,
    /// `(B, Q, H, samples, 2)` as (x, y).
    pub locations: View<'a>,
    /// `(B, Q, H, samples)`.
    pub weights: View<'a>,
    /// `(B, Q, L, 2 or 4)`; makes the form fused.
    pub reference: Option<Reference<'a>>,
}

impl<'a> Inputs<'a> {
    /// The plain form.
    pub fn plain(
        value: impl Into<View<'a>>,
        locations: impl Into<View<'a>>,
        weights: impl Into<View<'a>>,
    ) -> Self {
        Self { value: value.into(), locations: locations.into(), weights: weights.into(), reference: None }
    }

    /// The fused form: reference points, raw offsets and raw logits.
    pub fn fused(
        value: impl Into<View<'a>>,
        kind: ReferenceKind,
        reference: impl Into<View<'a>>,
        offsets: impl Into<View<'a>>,
        logits: impl Into<View<'a>>,
    ) -> Self {
        let reference = Some(Reference { kind, view: reference.into() });
        Self { reference, ..Self::plain(value, offsets, logits) }
    }
}

/// Where the gradients go. What is `None` is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// Like `value`. Rings and gaps between levels receive zeros.
    pub value: Option<ViewMut<'a>>,
    /// Like `locations` (offsets, in the fused form).
    pub locations: Option<ViewMut<'a>>,
    /// Like `weights` (logits, in the fused form).
    pub weights: Option<ViewMut<'a>>,
    /// Like the reference points; only in the fused form.
    pub reference: Option<ViewMut<'a>>,
}

impl Gradients<'_> {
    /// The same destinations, borrowed again for a shorter time.
    pub fn reborrow(&mut self) -> Gradients<'_> {
        Gradients {
            value: self.value.as_mut().map(ViewMut::reborrow),
            locations: self.locations.as_mut().map(ViewMut::reborrow),
            weights: self.weights.as_mut().map(ViewMut::reborrow),
            reference: self.reference.as_mut().map(ViewMut::reborrow),
        }
    }
}

/// Anything that computes the op: forward and backward, plain and fused.
pub trait Backend: Sync {
    /// A short name for tables.
    fn name(&self) -> String;

    /// Whether this backend takes the problem; the error says why not.
    fn supports(&self, _problem: &Problem) -> Result<()> {
        Ok(())
    }

    /// Whether it has a backward pass. One that has not refuses every call of it.
    fn computes_gradients(&self) -> bool {
        true
    }

    /// Whether it sums a few samples of `f16` values in `f16`: it is then held to no more than that allows.
    fn sums_in_f16(&self) -> bool {
        false
    }

    /// Writes the output `(B, Q, H, D)`.
    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()>;

    /// Writes the gradients asked for, given the output's gradient.
    fn backward(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()>;
}

/// A checked tensor: its elements and strides.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// The elements.
    pub data: Slice<'a>,
    /// Outer strides.
    pub strides: Strides,
}

impl Tensor<'_> {
    /// The first element at an outer index.
    #[inline(always)]
    pub fn at(&self, index: [usize; 3]) -> usize {
        offset(self.strides, index)
    }
}

/// The first element at an outer index of a tensor with these strides.
#[inline(always)]
pub fn offset(strides: Strides, [i, j, k]: [usize; 3]) -> usize {
    i * strides[0] + j * strides[1] + k * strides[2]
}

/// Checked inputs.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// The value pyramid.
    pub value: Tensor<'a>,
    /// Locations or offsets.
    pub locations: Tensor<'a>,
    /// Weights or logits.
    pub weights: Tensor<'a>,
    /// Reference points, in the fused form.
    pub reference: Option<(ReferenceKind, Tensor<'a>)>,
}

/// Strides of the gradients' destinations, where present.
#[derive(Debug, Clone, Copy, Default)]
pub struct GradientStrides {
    /// Strides of the value gradient.
    pub value: Option<Strides>,
    /// Strides of the location gradient.
    pub locations: Option<Strides>,
    /// Strides of the weight gradient.
    pub weights: Option<Strides>,
    /// Strides of the reference gradient.
    pub reference: Option<Strides>,
}

/// Checks the inputs against the problem.
pub fn check_inputs<'a>(p: &Problem, inputs: &Inputs<'a>) -> Result<Args<'a>> {
    let tensor = |role, label, view: &View<'a>| {
        Ok(Tensor { data: view.data, strides: check_read(p, role, label, view)? })
    };
    let fused = inputs.reference.is_some();
    Ok(Args {
        value: tensor(Role::Value, "value", &inputs.value)?,
        locations: tensor(Role::Locations, if fused { "offsets" } else { "locations" }, &inputs.locations)?,
        weights: tensor(Role::Weights, if fused { "logits" } else { "weights" }, &inputs.weights)?,
        reference: match &inputs.reference {
            Some(r) => Some((r.kind, tensor(Role::Reference { dim: r.kind.dim() }, "reference", &r.view)?)),
            None => None,
        },
    })
}

/// Checks the output's destination against the problem.
pub fn check_output(p: &Problem, output: &ViewMut<'_>) -> Result<Strides> {
    check_write(p, Role::Output, "output", output)
}

/// Checks the output's gradient and the gradients' destinations against the problem.
pub fn check_gradients<'a>(
    p: &Problem,
    args: &Args<'_>,
    grad_output: &View<'a>,
    g: &Gradients<'_>,
) -> Result<(Tensor<'a>, GradientStrides)> {
    let strides = check_read(p, Role::Output, "gradient of output", grad_output)?;
    let write = |role, label, view: &Option<ViewMut<'_>>| {
        view.as_ref().map(|v| check_write(p, role, label, v)).transpose()
    };
    let reference = match (&args.reference, &g.reference) {
        (None, Some(_)) => {
            return Err(crate::Error::shape(
                "gradient of reference",
                "a destination",
                "none: the form is plain",
            )
            .hint("set `reference` in the inputs for the fused form"));
        }
        (Some((kind, _)), view) => write(Role::Reference { dim: kind.dim() }, "gradient of reference", view)?,
        (None, None) => None,
    };
    Ok((
        Tensor { data: grad_output.data, strides },
        GradientStrides {
            value: write(Role::Value, "gradient of value", &g.value)?,
            locations: write(Role::Locations, "gradient of locations", &g.locations)?,
            weights: write(Role::Weights, "gradient of weights", &g.weights)?,
            reference,
        },
    ))
}

/// One image and head of a problem, as a problem of its own over the same memory.
///
/// What is checked on a plane is checked at its real place: strides and all.
pub fn plane<'a>(
    p: &Problem,
    inputs: &Inputs<'a>,
    image: usize,
    head: usize,
) -> Result<(Problem, Inputs<'a>)> {
    let args = check_inputs(p, inputs)?;
    if image >= p.batch() || head >= p.heads() {
        let got = format!("image {image}, head {head}");
        let expected = format!("fewer than {} images and {} heads", p.batch(), p.heads());
        return Err(crate::Error::shape("plane", got, expected));
    }
    let sub = p.with(|s| {
        (s.batch, s.heads) = (1, 1);
        s.positions = Some(p.positions());
    })?;
    let cut =
        |t: Tensor<'a>, head| View { data: t.data.from(t.at([image, 0, head])), strides: Some(t.strides) };
    let inputs = Inputs {
        value: cut(args.value, head),
        locations: cut(args.locations, head),
        weights: cut(args.weights, head),
        reference: args.reference.map(|(kind, t)| Reference { kind, view: cut(t, 0) }),
    };
    Ok((sub, inputs))
}
