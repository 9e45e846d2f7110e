//! A request: the problem, the pass, the options, and how the tensors lie in device memory.

use std::ops::{Index, IndexMut};

use msda::{Dtype, Problem, ReferenceKind, Result, Role, Strides};

/// A tensor or buffer of a call: what plans take addresses of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Slot {
    /// The value pyramid.
    Value,
    /// Locations, or the offsets of the fused form.
    Locations,
    /// Weights, or the logits of the fused form.
    Weights,
    /// Reference points of the fused form.
    Reference,
    /// The output.
    Output,
    /// The gradient of the output.
    GradOutput,
    /// The gradient of value.
    GradValue,
    /// The gradient of locations or offsets.
    GradLocations,
    /// The gradient of weights or logits.
    GradWeights,
    /// The gradient of the reference points.
    GradReference,
    /// `(L, 2)` heights and widths as 64-bit integers, for levels on the device.
    Shapes,
    /// `(L)` first positions as 64-bit integers, for levels on the device.
    Starts,
    /// Scratch memory of one call.
    Workspace,
}

impl Slot {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::Value,
        Self::Locations,
        Self::Weights,
        Self::Reference,
        Self::Output,
        Self::GradOutput,
        Self::GradValue,
        Self::GradLocations,
        Self::GradWeights,
        Self::GradReference,
        Self::Shapes,
        Self::Starts,
        Self::Workspace,
    ];

    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Value => "value",
            Self::Locations => "locations",
            Self::Weights => "weights",
            Self::Reference => "reference points",
            Self::Output => "output",
            Self::GradOutput => "gradient of output",
            Self::GradValue => "gradient of value",
            Self::GradLocations => "gradient of locations",
            Self::GradWeights => "gradient of weights",
            Self::GradReference => "gradient of reference points",
            Self::Shapes => "level shapes",
            Self::Starts => "level starts",
            Self::Workspace => "workspace",
        }
    }

    /// The shape and type that a tensor has; none for the level tables and the workspace.
    pub fn role(self, reference: Option<ReferenceKind>) -> Option<Role> {
        Some(match self {
            Self::Value | Self::GradValue => Role::Value,
            Self::Locations | Self::GradLocations => Role::Locations,
            Self::Weights | Self::GradWeights => Role::Weights,
            Self::Reference | Self::GradReference => Role::Reference(reference?),
            Self::Output | Self::GradOutput => Role::Output,
            Self::Shapes | Self::Starts | Self::Workspace => return None,
        })
    }

    /// The type of its elements; none for the level tables and the workspace.
    pub fn dtype(self, problem: &Problem) -> Option<Dtype> {
        let types = problem.types();
        Some(match self {
            Self::Value | Self::GradValue | Self::Output | Self::GradOutput => types.value,
            Self::Locations | Self::GradLocations | Self::Reference | Self::GradReference => types.locations,
            Self::Weights | Self::GradWeights => types.weights,
            Self::Shapes | Self::Starts | Self::Workspace => return None,
        })
    }
}

/// One `T` per [`Slot`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Slots<T>([T; Slot::ALL.len()]);

impl<T> Slots<T> {
    /// The same with another value for one slot.
    #[must_use]
    pub fn with(mut self, slot: Slot, value: T) -> Self {
        self[slot] = value;
        self
    }
}

impl<T> Index<Slot> for Slots<T> {
    type Output = T;

    fn index(&self, slot: Slot) -> &T {
        &self.0[slot as usize]
    }
}

impl<T> IndexMut<Slot> for Slots<T> {
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        &mut self.0[slot as usize]
    }
}

impl<T: Default, const N: usize> From<[(Slot, T); N]> for Slots<T> {
    fn from(given: [(Slot, T); N]) -> Self {
        let mut slots = Self(Default::default());
        for (slot, value) in given {
            slots[slot] = value;
        }
        slots
    }
}

/// Device addresses of a call's tensors, the level tables of plans with [`Levels::Device`], and the
/// workspace: 0 where a plan does not ask for one.
pub type Addresses = Slots<u64>;

/// How a tensor lies in device memory. The default stands for a tensor that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Operand {
    /// Strides of the three outer dimensions, in elements.
    pub strides: Strides,
    /// The alignment of its address in bytes, a power of two; 0 for a tensor that is not there.
    pub align: usize,
}

impl Operand {
    /// A dense tensor at an address that any allocator returns.
    pub fn dense(problem: &Problem, role: Role) -> Self {
        Self { strides: role.dense(problem), align: 256 }
    }
}

/// How the tensors of a call lie in device memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operands {
    slots: Slots<Operand>,
    reference: Option<ReferenceKind>,
}

impl Operands {
    /// No tensors yet: set each by its slot.
    pub fn none(reference: Option<ReferenceKind>) -> Self {
        Self { slots: Slots::default(), reference }
    }

    /// Dense tensors of the forward pass. A kind of reference points makes the form fused.
    pub fn dense(problem: &Problem, reference: Option<ReferenceKind>) -> Self {
        Self::for_pass(problem, reference, Pass::Forward)
    }

    /// Dense tensors of a pass.
    pub fn for_pass(problem: &Problem, reference: Option<ReferenceKind>, pass: Pass) -> Self {
        let mut operands = Self::none(reference);
        for slot in Slot::ALL.into_iter().filter(|&slot| pass.uses(slot)) {
            if let Some(role) = slot.role(reference) {
                operands[slot] = Operand::dense(problem, role);
            }
        }
        operands
    }

    /// The kind of reference points in the fused form.
    pub fn reference_kind(&self) -> Option<ReferenceKind> {
        self.reference
    }

    /// Numbers per reference point; 0 in the plain form.
    pub fn reference_numbers(&self) -> usize {
        self.reference.map_or(0, ReferenceKind::dim)
    }
}

impl Index<Slot> for Operands {
    type Output = Operand;

    fn index(&self, slot: Slot) -> &Operand {
        &self.slots[slot]
    }
}

impl IndexMut<Slot> for Operands {
    fn index_mut(&mut self, slot: Slot) -> &mut Operand {
        &mut self.slots[slot]
    }
}

/// Which pass is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Pass {
    /// The output.
    #[default]
    Forward,
    /// Gradients: those that are wanted.
    Backward(Wanted),
}

/// The gradients that a backward pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Wanted {
    /// Of value.
    pub value: bool,
    /// Of locations or offsets.
    pub locations: bool,
    /// Of weights or logits.
    pub weights: bool,
    /// Of the reference points.
    pub reference: bool,
}

impl Pass {
    /// Whether a tensor takes part in the pass.
    pub fn uses(self, slot: Slot) -> bool {
        use Slot as S;
        match (slot, self) {
            (S::Value | S::Locations | S::Weights | S::Reference, _) => true,
            (S::Output, pass) => pass == Self::Forward,
            (S::GradOutput, pass) => pass != Self::Forward,
            (S::GradValue, Self::Backward(wanted)) => wanted.value,
            (S::GradLocations, Self::Backward(wanted)) => wanted.locations,
            (S::GradWeights, Self::Backward(wanted)) => wanted.weights,
            (S::GradReference, Self::Backward(wanted)) => wanted.reference,
            _ => false,
        }
    }
}

/// Where the sizes and starts of the levels are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Levels {
    /// The problem has them.
    #[default]
    Host,
    /// Device memory has them. Those of the problem are placeholders; only their number and the
    /// positions count.
    ///
    /// The host never reads such sizes, so they cannot be checked before the launch. A level that
    /// is empty or reaches past the end of value contributes nothing, and its gradients are zero.
    /// Levels that overlap are not noticed: the output is right, but each pixel that they share
    /// gets the gradient of one of the levels instead of the sum, unless the request asks for
    /// [`Scatter::Atomic`].
    Device,
}

impl Levels {
    /// A problem as a caller sees it whose level sizes are on the device: with placeholders.
    pub fn hidden(problem: &Problem) -> Result<Problem> {
        problem.with(|spec| {
            spec.positions = Some(problem.positions());
            spec.levels.fill((1, 1));
            spec.starts = None;
        })
    }
}

/// The type of the sums.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sums {
    /// `f32` (`f64` for `f64` values).
    #[default]
    F32,
    /// `f16` values may be summed in `f16`, a few samples at a time, where that is faster. The
    /// error is two to four times larger.
    F16,
}

/// How contributions to one element of the gradient of value are added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Scatter {
    /// In an order that depends on the inputs alone: the same bits in every run.
    #[default]
    Ordered,
    /// The same, and samples are sorted however few they are. For tests and measurements.
    Sorted,
    /// With atomics, in any order: the last bits differ from run to run. Needs a workspace of the
    /// size of value in `f32` if value has another type.
    Atomic,
}

/// The sizes that a kernel is compiled for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sizes {
    /// Any: images of another size use the same kernel.
    #[default]
    Any,
    /// Those of the problem, where that may be faster: strides are compile-time constants. Every
    /// size is compiled once.
    Fixed,
}

/// What a kernel is chosen for.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The problem.
    pub problem: &'a Problem,
    /// The pass.
    pub pass: Pass,
    /// How the tensors lie in device memory.
    pub operands: &'a Operands,
    /// Where level sizes are known.
    pub levels: Levels,
    /// The type of the sums.
    pub sums: Sums,
    /// The sizes that the kernel is compiled for.
    pub sizes: Sizes,
    /// How the gradient of value is added up.
    pub scatter: Scatter,
}

impl<'a> Request<'a> {
    /// The forward pass with level sizes known on the host, sums in `f32` and a kernel for any
    /// size.
    pub fn new(problem: &'a Problem, operands: &'a Operands) -> Self {
        Self {
            problem,
            pass: Pass::Forward,
            operands,
            levels: Levels::Host,
            sums: Sums::F32,
            sizes: Sizes::Any,
            scatter: Scatter::Ordered,
        }
    }
}

impl Request<'_> {
    /// The slot of the output, or of its gradient in the backward pass.
    pub(crate) fn output(&self) -> Slot {
        match self.pass {
            Pass::Forward => Slot::Output,
            Pass::Backward(_) => Slot::GradOutput,
        }
    }

    /// The gradients that are computed: none in the forward pass.
    pub(crate) fn wanted(&self) -> Wanted {
        match self.pass {
            Pass::Forward => Wanted::default(),
            Pass::Backward(wanted) => wanted,
        }
    }

    /// Whether the queries are the pixels of the levels, in order, as in an encoder.
    pub fn queries_are_pixels(&self) -> bool {
        let p = self.problem;
        let pixels = match self.levels {
            Levels::Host => p.levels().iter().map(|l| l.h * l.w).sum(),
            // The kernel checks the sizes, and visits the queries in order if they do not fit.
            Levels::Device if p.layout().ring() == 0 => p.positions(),
            Levels::Device => return false,
        };
        p.queries() == pixels
    }
}
