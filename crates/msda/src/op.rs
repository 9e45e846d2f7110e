//! The arguments of the operator, their checks, and the trait of backends.

use crate::buffer::Buffer;
use crate::dtype::Slice;
use crate::error::Result;
use crate::problem::Problem;
use crate::view::{Role, Strides, View, ViewMut, check_read, check_write};

/// The kind of the reference points of the fused form.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReferenceKind {
    /// `(x, y)`: a location is `ref + offset / (w, h)` of its level.
    Point,
    /// `(x, y, width, height)`: a location is `ref_xy + offset / points * ref_wh / 2`.
    Box,
}

impl ReferenceKind {
    /// Numbers per reference point: 2 or 4.
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
    /// Their elements.
    pub view: View<'a>,
}

/// The inputs of the operator.
///
/// In the plain form `locations` are normalised sampling locations and `weights` are attention
/// weights. If `reference` is set the form is fused: `locations` are raw offsets, `weights` are raw
/// logits, and the operator computes the locations and the softmax itself.
#[derive(Debug, Clone, Copy)]
pub struct Inputs<'a> {
    /// `(B, S, H, D)`, in the layout of the problem.
    pub value: View<'a>,
    /// `(B, Q, H, samples, 2)` as (x, y).
    pub locations: View<'a>,
    /// `(B, Q, H, samples)`.
    pub weights: View<'a>,
    /// `(B, Q, L, 2 or 4)`; `Some` makes the form fused.
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
    ///
    /// ```
    /// use msda::{Inputs, Problem, ReferenceKind, Spec};
    ///
    /// let spec = Spec { batch: 1, queries: 1, heads: 1, channels: 1, ..Spec::default() };
    /// let problem = Problem::new(Spec { levels: vec![(1, 2)], points: vec![1], ..spec })?;
    /// // A box is its centre, width and height. An offset of 0 is its centre, between both pixels.
    /// let (boxes, offsets, logits) = ([0.5f32, 0.5, 1.0, 1.0], [0.0f32, 0.0], [0.0f32]);
    /// let inputs = Inputs::fused(&[1.0f32, 3.0], ReferenceKind::Box, &boxes, &offsets, &logits);
    /// assert_eq!(msda::forward(&problem, &inputs)?.to_f64(), [2.0]);
    /// # Ok::<(), msda::Error>(())
    /// ```
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

/// Destinations of the gradients. A gradient that is `None` is not computed.
#[derive(Debug, Default)]
pub struct Gradients<'a> {
    /// Shaped like `value`. Rings and gaps between levels receive zeros.
    pub value: Option<ViewMut<'a>>,
    /// Shaped like `locations` (in the fused form: offsets).
    pub locations: Option<ViewMut<'a>>,
    /// Shaped like `weights` (in the fused form: logits).
    pub weights: Option<ViewMut<'a>>,
    /// Shaped like the reference points; only in the fused form.
    pub reference: Option<ViewMut<'a>>,
}

/// All gradients in new memory, as [`Backend::gradients`] returns them.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GradientBuffers {
    /// Shaped like `value`, dense.
    pub value: Buffer,
    /// Shaped like `locations` (in the fused form: offsets), dense.
    pub locations: Buffer,
    /// Shaped like `weights` (in the fused form: logits), dense.
    pub weights: Buffer,
    /// Shaped like the reference points, dense; `None` in the plain form.
    pub reference: Option<Buffer>,
}

/// An implementation of the operator: forward and backward, plain and fused.
///
/// [`forward`](Self::forward) and [`backward`](Self::backward) write into memory of the caller.
/// [`output`](Self::output) and [`gradients`](Self::gradients) allocate.
pub trait Backend: Sync {
    /// A short name for tables.
    fn name(&self) -> String;

    /// Whether this backend accepts the problem; the error gives the reason.
    fn supports(&self, _problem: &Problem) -> Result<()> {
        Ok(())
    }

    /// Whether it has a backward pass. Without one it refuses each call of `backward`.
    fn computes_gradients(&self) -> bool {
        true
    }

    /// Whether it sums a few samples of `f16` values in `f16`: the battery then allows more error.
    fn sums_in_f16(&self) -> bool {
        false
    }

    /// Whether the gradient of value has the same bits on every run. All other results always have.
    fn is_reproducible(&self) -> bool {
        true
    }

    /// Writes the output `(B, Q, H, D)`.
    fn forward(&self, problem: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()>;

    /// Writes the requested gradients, given the gradient of the output.
    fn backward(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()>;

    /// The output `(B, Q, H, D)` in new memory.
    fn output(&self, problem: &Problem, inputs: &Inputs<'_>) -> Result<Buffer> {
        check_inputs(problem, inputs)?;
        let mut output = Buffer::try_filled(problem.types().value, problem.output_len(), 0.0)?;
        self.forward(problem, inputs, output.as_mut().into())?;
        Ok(output)
    }

    /// All gradients in new memory, given the gradient of the output.
    fn gradients(
        &self,
        problem: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
    ) -> Result<GradientBuffers> {
        let args = check_inputs(problem, inputs)?;
        check_gradients(problem, &args, &grad_output, &Gradients::default())?;
        let types = problem.types();
        let mut buffers = GradientBuffers {
            value: Buffer::try_filled(types.value, problem.value_len(), 0.0)?,
            locations: Buffer::try_filled(types.locations, problem.locations_len(), 0.0)?,
            weights: Buffer::try_filled(types.weights, problem.weights_len(), 0.0)?,
            reference: match args.reference {
                Some((kind, _)) => {
                    Some(Buffer::try_filled(types.locations, problem.reference_len(kind.dim()), 0.0)?)
                }
                None => None,
            },
        };
        let gradients = Gradients {
            value: Some(buffers.value.as_mut().into()),
            locations: Some(buffers.locations.as_mut().into()),
            weights: Some(buffers.weights.as_mut().into()),
            reference: buffers.reference.as_mut().map(|buffer| buffer.as_mut().into()),
        };
        self.backward(problem, inputs, grad_output, gradients)?;
        Ok(buffers)
    }
}

/// Computes the output `(B, Q, H, D)` on the CPU, in new memory.
///
/// [`Backend::forward`] of [`Cpu`](crate::Cpu) writes into memory of the caller instead.
///
/// ```
/// use msda::{Inputs, Problem, Spec};
///
/// let spec = Spec { batch: 1, queries: 1, heads: 1, channels: 2, ..Spec::default() };
/// let problem = Problem::new(Spec { levels: vec![(2, 2)], points: vec![1], ..spec })?;
/// // The sample is in the centre of the level, between all four pixels.
/// let value = [1.0f32, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
/// let inputs = Inputs::plain(&value, &[0.5f32, 0.5], &[1.0f32]);
/// let output = msda::forward(&problem, &inputs)?;
/// assert_eq!(output.to_f64(), [2.5, 25.0]);
/// # Ok::<(), msda::Error>(())
/// ```
pub fn forward(problem: &Problem, inputs: &Inputs<'_>) -> Result<Buffer> {
    crate::Cpu::new().output(problem, inputs)
}

/// Computes all gradients on the CPU, in new memory, given the gradient of the output.
///
/// [`Backend::backward`] of [`Cpu`](crate::Cpu) writes into memory of the caller instead, and
/// computes only the gradients that are requested.
///
/// ```
/// use msda::{Inputs, Problem, Spec};
///
/// let spec = Spec { batch: 1, queries: 1, heads: 1, channels: 1, ..Spec::default() };
/// let problem = Problem::new(Spec { levels: vec![(2, 2)], points: vec![1], ..spec })?;
/// let inputs = Inputs::plain(&[1.0f32, 2.0, 3.0, 4.0], &[0.5f32, 0.5], &[2.0f32]);
/// let gradients = msda::backward(&problem, &inputs, &[1.0f32])?;
/// assert_eq!(gradients.value.to_f64(), [0.5; 4]);
/// assert_eq!(gradients.weights.to_f64(), [2.5]);
/// # Ok::<(), msda::Error>(())
/// ```
pub fn backward<'a>(
    problem: &Problem,
    inputs: &Inputs<'_>,
    grad_output: impl Into<View<'a>>,
) -> Result<GradientBuffers> {
    crate::Cpu::new().gradients(problem, inputs, grad_output.into())
}

/// A checked tensor: its elements and strides. Strides that are never used are 0.
#[derive(Debug, Clone, Copy)]
pub struct Tensor<'a> {
    /// The elements.
    pub data: Slice<'a>,
    /// Outer strides.
    pub strides: Strides,
}

impl Tensor<'_> {
    /// The position of the first element at an outer index.
    #[inline(always)]
    pub fn at(&self, index: [usize; 3]) -> usize {
        offset(self.strides, index)
    }
}

/// The position of the first element at an outer index of a tensor with these strides.
#[inline(always)]
pub fn offset(strides: Strides, [i, j, k]: [usize; 3]) -> usize {
    i * strides[0] + j * strides[1] + k * strides[2]
}

/// Checked inputs.
#[derive(Debug, Clone, Copy)]
pub struct Args<'a> {
    /// The value.
    pub value: Tensor<'a>,
    /// Locations; in the fused form, offsets.
    pub locations: Tensor<'a>,
    /// Weights; in the fused form, logits.
    pub weights: Tensor<'a>,
    /// The kind and the reference points of the fused form.
    pub reference: Option<(ReferenceKind, Tensor<'a>)>,
}

/// Strides of the destinations of the gradients, for those that are requested.
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
    let tensor = |role: Role, label, view: &View<'a>| {
        let strides = check_read(p, role, label, view).map_err(|error| error.of(role.argument()))?;
        Ok(Tensor { data: view.data, strides })
    };
    let fused = inputs.reference.is_some();
    Ok(Args {
        value: tensor(Role::Value, "value", &inputs.value)?,
        locations: tensor(Role::Locations, if fused { "offsets" } else { "locations" }, &inputs.locations)?,
        weights: tensor(Role::Weights, if fused { "logits" } else { "weights" }, &inputs.weights)?,
        reference: match &inputs.reference {
            Some(r) => Some((r.kind, tensor(Role::Reference(r.kind), "reference", &r.view)?)),
            None => None,
        },
    })
}

/// Checks the destination of the output against the problem.
pub fn check_output(p: &Problem, output: &ViewMut<'_>) -> Result<Strides> {
    check_write(p, Role::Output, "output", output)
}

/// Checks the gradient of the output and the destinations of the gradients against the problem.
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
        (Some((kind, _)), view) => write(Role::Reference(*kind), "gradient of reference", view)?,
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

/// One image and head of a problem as a problem of its own, over the same memory.
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
        |t: Tensor<'a>, head| View { data: t.data.tail(t.at([image, 0, head])), strides: Some(t.strides) };
    let inputs = Inputs {
        value: cut(args.value, head),
        locations: cut(args.locations, head),
        weights: cut(args.weights, head),
        reference: args.reference.map(|(kind, t)| Reference { kind, view: cut(t, 0) }),
    };
    Ok((sub, inputs))
}
