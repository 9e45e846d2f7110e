//! Runs a case and compares each number with the oracle.

use super::data::{Case, Kind, POISON, StoredTensor};
use super::refuse::must_refuse;
use crate::buffer::Buffer;
use crate::dtype::{Dtype, Float};
use crate::op::{Backend, Gradients, Inputs, Reference};
use crate::oracle::{self, Grads};
use crate::problem::{Problem, Types};
use crate::view::{Role, View, ViewMut};

/// The figures of a case that passed.
pub(super) struct Outcome {
    pub(super) compared: usize,
    pub(super) worst: f64,
}

/// A result, or what is wrong.
pub(super) type Verdict<T> = Result<T, String>;

/// The most products summed in `f16` before they are added in `f32`: four samples of four taps.
const HALVES: f64 = 16.0;

/// Tensor cores multiply `f32` as three products of parts, right to 21 bits: 8 roundings of `f32`.
/// Where one term makes a pixel's gradient of value, no other error hides this one.
const PRODUCT_ROUNDINGS: f64 = 8.0;
const VALUE_GRADIENT: usize = 1; // among the results

pub(super) fn run(backend: &dyn Backend, case: &Case) -> Verdict<Outcome> {
    match case.kind {
        Kind::Compare => compare_all(backend, case),
        Kind::Partial => compare_parts(backend, case),
        Kind::Refuse(wrong) => {
            must_refuse(backend, case, wrong)?;
            Ok(Outcome { compared: 0, worst: 0.0 })
        }
    }
}

const RESULTS: [&str; 5] =
    ["output", "gradient of value", "gradient of locations", "gradient of weights", "gradient of reference"];

/// The tensors that a call writes, filled with `POISON`: those of `RESULTS`.
pub(super) struct Outputs(pub(super) [Option<(Role, StoredTensor)>; 5]);

impl Outputs {
    pub(super) fn new(case: &Case) -> Self {
        let p = &case.problem;
        let reference = case.reference.as_ref().map(|(kind, _)| Role::Reference(*kind));
        let roles =
            [Some(Role::Output), Some(Role::Value), Some(Role::Locations), Some(Role::Weights), reference];
        let poisoned = |role: Role| StoredTensor::new(p, role, role.dtype(p), case.out, POISON, |_| POISON);
        Self(roles.map(|role| role.map(|role| (role, poisoned(role)))))
    }

    /// The results of a forward and a backward pass.
    fn of(backend: &dyn Backend, case: &Case) -> Verdict<Self> {
        let mut out = Self::new(case);
        let (p, inputs) = (&case.problem, case.inputs());
        let (output, gradients) = out.views();
        backend.forward(p, &inputs, output).map_err(|e| format!("forward refused: {e}"))?;
        if backend.computes_gradients() {
            let done = backend.backward(p, &inputs, case.grad_output.view(), gradients);
            done.map_err(|e| format!("backward refused: {e}"))?;
        }
        Ok(out)
    }

    pub(super) fn views(&mut self) -> (ViewMut<'_>, Gradients<'_>) {
        let [output, value, locations, weights, reference] =
            self.0.each_mut().map(|result| result.as_mut().map(|(_, held)| held.view_mut()));
        (output.expect("every call has one"), Gradients { value, locations, weights, reference })
    }
}

/// Each result must agree with the oracle, and a second run into other memory must give the same
/// bits.
fn compare_all(backend: &dyn Backend, case: &Case) -> Verdict<Outcome> {
    let p = &case.problem;
    let (out, again) = (Outputs::of(backend, case)?, Outputs::of(backend, case)?);
    let budget = budget(case)?;
    let of_output = budget.output.of(backend, case).map_err(|e| e.to_string())?;
    let mut outcome = Outcome { compared: 0, worst: 0.0 };
    let passes = if backend.computes_gradients() { RESULTS.len() } else { 1 };
    for (i, name) in RESULTS.iter().enumerate().take(passes) {
        let (Some((role, first)), Some((_, second))) = (&out.0[i], &again.0[i]) else { continue };
        let (got, touched) = first.take(p, *role, POISON);
        if touched > 0 {
            return Err(format!("{name}: {touched} elements outside the tensor were written"));
        }
        let compared = match i {
            0 => of_output.compare(&got, NotFinite::Same),
            _ => budget.grads[i - 1].compare(&got, NotFinite::Any),
        };
        outcome.worst = outcome.worst.max(compared.map_err(|e| format!("{name}: {e}"))?);
        outcome.compared += got.len();
        if repeats(backend, *role) && !same_bits(first, second) {
            return Err(format!("{name}: a second run gave other bits"));
        }
    }
    Ok(outcome)
}

fn budget(case: &Case) -> Verdict<Budget> {
    Budget::new(&case.problem, &case.inputs(), &case.grad_output.view(), !case.exact)
        .map_err(|e| format!("the oracle refused: {e}"))
}

/// Whether a gradient must have the same bits on every run.
fn repeats(backend: &dyn Backend, role: Role) -> bool {
    role != Role::Value || backend.is_reproducible()
}

fn same_bits(a: &StoredTensor, b: &StoredTensor) -> bool {
    a.buffer.to_le_bytes() == b.buffer.to_le_bytes()
}

/// Each gradient alone must have the same bits as together with the others. One that differs from
/// run to run must agree with the oracle.
fn compare_parts(backend: &dyn Backend, case: &Case) -> Verdict<Outcome> {
    let p = &case.problem;
    let mut outcome = Outcome { compared: 0, worst: 0.0 };
    let mut all = Outputs::new(case);
    let run = |wanted: Gradients<'_>, name| {
        let done = backend.backward(p, &case.inputs(), case.grad_output.view(), wanted);
        done.map_err(|e| format!("backward for {name} refused: {e}"))
    };
    run(all.views().1, "all gradients")?;
    for (i, name) in RESULTS.iter().enumerate().skip(1) {
        let Some((role, a)) = &all.0[i] else { continue };
        let mut alone = Outputs::new(case);
        let (_, mut wanted) = alone.views();
        let slots = [&mut wanted.value, &mut wanted.locations, &mut wanted.weights, &mut wanted.reference];
        slots.into_iter().enumerate().filter(|(k, _)| k + 1 != i).for_each(|(_, other)| *other = None);
        run(wanted, name)?;
        let Some((_, b)) = &alone.0[i] else { continue };
        outcome.compared += a.buffer.len();
        if !repeats(backend, *role) {
            let (got, _) = b.take(p, *role, POISON);
            let worst = budget(case)?.grads[i - 1].compare(&got, NotFinite::Any);
            outcome.worst = outcome.worst.max(worst.map_err(|e| format!("{name} alone: {e}"))?);
        } else if !same_bits(a, b) {
            return Err(format!("{name}: alone it has other bits than with the others"));
        }
    }
    Ok(outcome)
}

/// Exact numbers and the error that a result may have.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Budgeted {
    /// The numbers of the oracle.
    pub exact: Vec<f64>,
    /// The largest error allowed.
    pub tolerance: f64,
    /// The largest sum of the magnitudes of terms; the result may be smaller because terms cancel.
    pub size: f64,
    /// The magnitude at which results overflow to infinity.
    overflow: f64,
}

/// Exact results and the errors allowed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Budget {
    /// The output.
    pub output: Budgeted,
    /// Gradients of value, locations, weights and reference; the last is empty in the plain form.
    pub grads: [Budgeted; 4],
}

/// Results of the oracle: the output and the four gradients.
type Results = [Vec<f64>; 5];

impl Budgeted {
    /// The budget of the output for one backend. If it sums in `f16`, at most [`HALVES`] products
    /// are added in a row, and each product and each weight is rounded.
    fn of(&self, backend: &dyn Backend, case: &Case) -> crate::Result<Self> {
        let p = &case.problem;
        let mut budget = self.clone();
        if backend.sums_in_f16() && p.types().value == Dtype::F16 {
            let values = Role::Value.read(p, &case.inputs().value)?;
            let (terms, smallest) = ((4 * p.samples()) as f64, 2f64.powi(-25));
            budget.tolerance += (HALVES + 1.0) * Dtype::F16.rounding() * self.size
                + terms * smallest * (1.0 + largest(values.into_iter().map(f64::abs)));
        }
        Ok(budget)
    }

    /// The budget of the output alone, without the cost of the gradients.
    pub fn output(p: &Problem, inputs: &Inputs<'_>, nudge: bool) -> crate::Result<Self> {
        Ok(Budget::of(p, inputs, None, nudge)?.output)
    }
}

impl Budget {
    /// Evaluates the case exactly, then in the arithmetic type, and with `nudge` exactly with each
    /// location rounded once up or down. The error allowed is twice the largest of these errors,
    /// plus one rounding to the type of the result and a few roundings of the largest sum.
    pub fn new(p: &Problem, inputs: &Inputs<'_>, grad: &View<'_>, nudge: bool) -> crate::Result<Self> {
        Self::of(p, inputs, Some(grad), nudge)
    }

    fn of(p: &Problem, inputs: &Inputs<'_>, grad: Option<&View<'_>>, nudge: bool) -> crate::Result<Self> {
        let wide = p.with(|s| s.types = Types::uniform(Dtype::F64))?;
        let data = Wide::new(p, inputs, grad)?;
        let exact = data.evaluate::<f64>(&wide, |x| x)?;
        let accumulator = p.types().value.accumulator();
        let mut in_type = match accumulator {
            Dtype::F64 => exact.clone(),
            _ => data.evaluate::<f32>(&wide, |x| x)?,
        };
        let t = p.types();
        let types = [t.value, t.value, t.locations, t.weights, t.locations];
        for (numbers, dtype) in in_type.iter_mut().zip(types) {
            *numbers = Buffer::from_fn(dtype, numbers.len(), |i| numbers[i]).to_f64();
        }
        let mut others = vec![in_type];
        for sign in [-1.0, 1.0].into_iter().filter(|_| nudge) {
            let factor = 1.0 + sign * 2.0 * accumulator.rounding();
            others.push(data.evaluate::<f64>(&wide, |x| x * factor)?);
        }
        let size = data.magnitudes(&wide)?;
        let mut budgets = exact.into_iter().enumerate().map(|(i, exact)| {
            let errors =
                others.iter().flat_map(|other| other[i].iter().zip(&exact)).map(|(a, b)| (a - b).abs());
            let error = largest(errors);
            let top = largest(exact.iter().map(|x| x.abs()));
            let few = if i == VALUE_GRADIENT { PRODUCT_ROUNDINGS } else { 4.0 };
            let tolerance = 2.0 * error + types[i].rounding() * top + few * accumulator.rounding() * size[i];
            Budgeted { exact, tolerance, size: size[i], overflow: types[i].overflow() }
        });
        let mut next = || budgets.next().expect("five results");
        Ok(Self { output: next(), grads: [next(), next(), next(), next()] })
    }
}

fn largest(numbers: impl Iterator<Item = f64>) -> f64 {
    // NaN and infinity have no distance to other numbers.
    numbers.filter(|x| x.is_finite()).fold(0.0, f64::max)
}

/// The inputs of a case as dense `f64`.
struct Wide {
    value: Vec<f64>,
    locations: Vec<f64>,
    weights: Vec<f64>,
    reference: Option<(crate::ReferenceKind, Vec<f64>)>,
    grad: Option<Vec<f64>>,
}

impl Wide {
    fn new(p: &Problem, inputs: &Inputs<'_>, grad: Option<&View<'_>>) -> crate::Result<Self> {
        let reference = inputs.reference.map(|r| Ok((r.kind, Role::Reference(r.kind).read(p, &r.view)?)));
        Ok(Self {
            value: Role::Value.read(p, &inputs.value)?,
            locations: Role::Locations.read(p, &inputs.locations)?,
            weights: Role::Weights.read(p, &inputs.weights)?,
            reference: reference.transpose()?,
            grad: grad.map(|grad| Role::Output.read(p, grad)).transpose()?,
        })
    }

    /// The results in `F`, with each location changed by `change`; in the fused form, each
    /// reference point and offset. Without a gradient of the output, the output alone.
    fn evaluate<F: Float>(&self, p: &Problem, change: impl Fn(f64) -> f64) -> crate::Result<Results> {
        let changed = |numbers: &[f64]| numbers.iter().copied().map(&change).collect::<Vec<_>>();
        let widened = |numbers: Vec<F>| numbers.into_iter().map(F::to_f64).collect::<Vec<_>>();
        let locations = changed(&self.locations);
        let reference = self.reference.as_ref().map(|(kind, numbers)| (*kind, changed(numbers)));
        let mut inputs = Inputs::plain(&self.value, &locations, &self.weights);
        inputs.reference = reference.as_ref().map(|(kind, r)| Reference { kind: *kind, view: View::from(r) });
        let output = widened(oracle::forward::<F>(p, &inputs)?);
        let Some(grad) = &self.grad else { return Ok([output, vec![], vec![], vec![], vec![]]) };
        let grads = oracle::backward::<F>(p, &inputs, &View::from(grad))?;
        let Grads { value, locations, weights, reference } = grads;
        Ok([output, widened(value), widened(locations), widened(weights), widened(reference)])
    }

    /// The largest sum of the magnitudes of terms in each result.
    fn magnitudes(&self, wide: &Problem) -> crate::Result<[f64; 5]> {
        let abs = |v: &[f64]| v.iter().map(|x| x.abs()).collect::<Vec<f64>>();
        // Logits keep their signs: the weights they make are positive.
        let weights = if self.reference.is_some() { self.weights.clone() } else { abs(&self.weights) };
        let all = Self {
            value: abs(&self.value),
            locations: self.locations.clone(),
            weights,
            reference: self.reference.clone(),
            grad: self.grad.as_deref().map(abs),
        };
        let results = all.evaluate::<f64>(wide, |x| x)?;
        let [output, value, _, weight, _] = results.map(|v| largest(v.into_iter().map(f64::abs)));
        // A derivative by the location is a difference of rows times the size of the level and the
        // weight. A derivative by a logit is a difference of derivatives by weights.
        let dots = largest(all.grad.iter().flatten().copied())
            * largest(all.value.iter().copied())
            * wide.channels() as f64;
        let side = wide.levels().iter().map(|l| l.h.max(l.w)).max().unwrap_or(1) as f64;
        let heaviest = if self.reference.is_some() { 1.0 } else { largest(all.weights.iter().copied()) };
        let location = 4.0 * side * heaviest * dots;
        let shared = location * (wide.heads() * wide.samples()) as f64;
        let weight = if self.reference.is_some() { 2.0 * dots } else { weight };
        Ok([output, value, location, weight, shared])
    }
}

/// The rule for a number that is not finite in the oracle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFinite {
    /// The result must be the same number, or NaN for NaN.
    Same,
    /// The result must not be finite. Whether a gradient is infinite or NaN depends on the order of
    /// its products: `inf * (a - b)` is infinite and `inf * a - inf * b` is NaN.
    Any,
}

impl Budgeted {
    /// Compares results with the exact numbers; returns the largest error relative to the
    /// tolerance.
    pub(super) fn compare(&self, got: &[f64], rule: NotFinite) -> Result<f64, String> {
        compare_with(got, &self.exact, self.tolerance, |got, want| match want.is_finite() {
            // A finite number of the oracle may be too large for the type of the result.
            true => got == f64::INFINITY.copysign(want) && want.abs() + self.tolerance >= self.overflow,
            false => rule == NotFinite::Any && !got.is_finite(),
        })
    }
}

/// Compares results with exact numbers; returns the largest error relative to the tolerance. A
/// number that is not finite must be the same, or NaN for NaN.
pub fn compare(got: &[f64], exact: &[f64], tolerance: f64) -> Result<f64, String> {
    compare_with(got, exact, tolerance, |_, _| false)
}

/// Like [`compare`]; `accepted` may accept pairs without a finite error.
fn compare_with(
    got: &[f64],
    exact: &[f64],
    tolerance: f64,
    accepted: impl Fn(f64, f64) -> bool,
) -> Result<f64, String> {
    if got.len() != exact.len() {
        return Err(format!("got {} numbers, expected {}", got.len(), exact.len()));
    }
    let mut worst = 0.0f64;
    for (i, (&got, &want)) in got.iter().zip(exact).enumerate() {
        let error = (got - want).abs();
        if got == want || (got.is_nan() && want.is_nan()) || !error.is_finite() && accepted(got, want) {
            continue;
        }
        if !error.is_finite() || error > tolerance {
            return Err(format!("element {i}: got {got:e}, expected {want:e} within {tolerance:e}"));
        }
        worst = worst.max(error / tolerance);
    }
    Ok(worst)
}
