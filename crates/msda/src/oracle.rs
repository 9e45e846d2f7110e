//! The specification: the operator and its gradients, written for clarity and not for speed.
//!
//! Everything is generic over the arithmetic type. In `f64` it is the oracle: every backend is
//! compared with it. In `f32` its error shows how much error is normal.

use crate::buffer::{try_reserved, try_zeros};
use crate::dtype::Float;
use crate::error::Result;
use crate::op::{self, Args, Backend, Gradients, Inputs, ReferenceKind, Tensor};
use crate::problem::{Level, Padding, Problem, Sampling};
use crate::view::{Role, View, ViewMut};

/// A pixel of a level and its weight in a sample.
#[derive(Debug, Clone, Copy)]
struct Tap<F> {
    y: usize,
    x: usize,
    weight: F,
    /// Derivatives of `weight` by the normalised location. `None` where the location has no
    /// gradient: 0 would become NaN when it is multiplied by a number that is not finite.
    dx: Option<F>,
    dy: Option<F>,
}

/// One axis of a tap: pixel index, weight, derivative of the weight.
type AxisTap<F> = (usize, F, Option<F>);

/// The taps of a sample: up to four, and none if the sample is off the map or its location is not
/// finite. A tap on the map counts even if its weight is 0.
fn taps<F: Float>(p: &Problem, level: &Level, location: [F; 2]) -> Vec<Tap<F>> {
    if !location[0].is_finite() || !location[1].is_finite() {
        return Vec::new();
    }
    let axes = match p.sampling() {
        Sampling::Bilinear => {
            [(location[0], level.w), (location[1], level.h)].map(|(t, side)| linear(p, side, t))
        }
        Sampling::Nearest => {
            [(location[0], level.w), (location[1], level.h)].map(|(t, side)| nearest(p, side, t))
        }
    };
    let [xs, ys] = axes;
    let mut taps = Vec::new();
    for &(y, wy, dwy) in &ys {
        for &(x, wx, dwx) in &xs {
            let (dx, dy) = (dwx.map(|d| wy * d), dwy.map(|d| d * wx));
            taps.push(Tap { y, x, weight: wy * wx, dx, dy });
        }
    }
    taps
}

/// The pixel coordinate of a normalised coordinate on an axis of `side` pixels, and its derivative:
/// a clamped coordinate has none.
fn pixel<F: Float>(p: &Problem, side: usize, t: F) -> (F, Option<F>) {
    let (scale, shift) = p.pixel_transform(side);
    let (scale, last) = (F::from_f64(scale), F::from_f64(side as f64 - 1.0));
    let c = t * scale + F::from_f64(shift);
    match p.padding() {
        Padding::Zeros => (c, Some(scale)),
        Padding::Border if c <= F::ZERO => (F::ZERO, None),
        Padding::Border if c >= last => (last, None),
        Padding::Border => (c, Some(scale)),
    }
}

/// The two neighbours on one axis, without those off the map.
fn linear<F: Float>(p: &Problem, side: usize, t: F) -> Vec<AxisTap<F>> {
    let (c, slope) = pixel(p, side, t);
    // A coordinate that overflowed to infinity or NaN is off the map too.
    if !(c > F::from_f64(-1.0) && c < F::from_f64(side as f64)) {
        return Vec::new();
    }
    let low = c.floor();
    let part = c - low;
    let low = low.to_f64() as i64;
    [(low, F::ONE - part, slope.map(|s| -s)), (low + 1, part, slope)]
        .into_iter()
        .filter(|&(i, _, _)| 0 <= i && i < side as i64)
        .map(|(i, w, d)| (i as usize, w, d))
        .collect()
}

/// The nearest pixel on one axis, if it is on the map. Its weight does not depend on the location.
fn nearest<F: Float>(p: &Problem, side: usize, t: F) -> Vec<AxisTap<F>> {
    let (c, _) = pixel(p, side, t);
    let i = c.round_ties_even().to_f64();
    if 0.0 <= i && i < side as f64 { vec![(i as usize, F::ONE, None)] } else { Vec::new() }
}

/// The locations and weights of the samples of one (image, query, head).
struct Item<F> {
    /// The level of each sample.
    level: Vec<usize>,
    location: Vec<[F; 2]>,
    weight: Vec<F>,
}

fn item<F: Float>(p: &Problem, args: &Args<'_>, at: [usize; 3]) -> Item<F> {
    let level: Vec<usize> =
        p.points().iter().enumerate().flat_map(|(l, &n)| std::iter::repeat_n(l, n)).collect();
    let (loc, wts) = (args.locations.at(at), args.weights.at(at));
    let mut location: Vec<[F; 2]> = (0..p.samples())
        .map(|s| [0, 1].map(|axis| F::from_f64(args.locations.data.get(loc + 2 * s + axis))))
        .collect();
    let mut weight: Vec<F> = (0..p.samples()).map(|s| F::from_f64(args.weights.data.get(wts + s))).collect();
    if let Some((kind, reference)) = &args.reference {
        for (s, xy) in location.iter_mut().enumerate() {
            let base = reference.at([at[0], at[1], level[s]]);
            for (axis, t) in xy.iter_mut().enumerate() {
                let start = F::from_f64(reference.data.get(base + axis));
                *t = start + *t * offset_scale(p, *kind, reference, base, level[s], axis);
            }
        }
        weight = softmax(&weight);
    }
    Item { level, location, weight }
}

/// The change of the normalised location per unit of raw offset.
fn offset_scale<F: Float>(
    p: &Problem,
    kind: ReferenceKind,
    reference: &Tensor<'_>,
    base: usize,
    level: usize,
    axis: usize,
) -> F {
    match kind {
        ReferenceKind::Point => {
            let side = if axis == 0 { p.levels()[level].w } else { p.levels()[level].h };
            F::ONE / F::from_f64(side as f64)
        }
        ReferenceKind::Box => F::from_f64(reference.data.get(base + 2 + axis)) * half_share(p, level),
    }
}

/// Offsets of a box are in units of half its size divided by the number of points.
fn half_share<F: Float>(p: &Problem, level: usize) -> F {
    F::from_f64(0.5) / F::from_f64(p.points()[level] as f64)
}

fn softmax<F: Float>(logits: &[F]) -> Vec<F> {
    let top = logits.iter().copied().fold(F::from_f64(f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
    let e: Vec<F> = logits.iter().map(|&x| (x - top).exp()).collect();
    let sum = e.iter().fold(F::ZERO, |a, &b| a + b);
    e.into_iter().map(|x| x / sum).collect()
}

fn each_item(p: &Problem) -> impl Iterator<Item = [usize; 3]> + use<> {
    let (b, q, h) = (p.batch(), p.queries(), p.heads());
    (0..b).flat_map(move |b| (0..q).flat_map(move |q| (0..h).map(move |h| [b, q, h])))
}

/// The dense output `(B, Q, H, D)`.
pub fn forward<F: Float>(p: &Problem, inputs: &Inputs<'_>) -> Result<Vec<F>> {
    let args = op::check_inputs(p, inputs)?;
    let d = p.channels();
    let mut output = try_zeros(p.output_len())?;
    for (sum, at) in output.chunks_exact_mut(d).zip(each_item(p)) {
        let item = item::<F>(p, &args, at);
        for s in 0..p.samples() {
            let level = &p.levels()[item.level[s]];
            for tap in taps(p, level, item.location[s]) {
                let row = args.value.at([at[0], level.position(tap.y, tap.x), at[2]]);
                for (c, sum) in sum.iter_mut().enumerate() {
                    *sum += item.weight[s] * tap.weight * F::from_f64(args.value.data.get(row + c));
                }
            }
        }
    }
    Ok(output)
}

/// Dense gradients. `value` has the layout of the problem. `reference` is empty in the plain form.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Grads<F> {
    /// Gradient of `value`.
    pub value: Vec<F>,
    /// Gradient of the locations; in the fused form, of the offsets.
    pub locations: Vec<F>,
    /// Gradient of the weights; in the fused form, of the logits.
    pub weights: Vec<F>,
    /// Gradient of the reference points.
    pub reference: Vec<F>,
}

/// All gradients, given the gradient of the output.
pub fn backward<F: Float>(p: &Problem, inputs: &Inputs<'_>, grad_output: &View<'_>) -> Result<Grads<F>> {
    let args = op::check_inputs(p, inputs)?;
    let (grad_output, _) = op::check_gradients(p, &args, grad_output, &Gradients::default())?;
    let dim = args.reference.map_or(0, |(kind, _)| kind.dim());
    let dense_value = Role::Value.dense(p);
    let mut grads = Grads {
        value: try_zeros(p.value_len())?,
        locations: try_reserved(p.locations_len())?,
        weights: try_reserved(p.weights_len())?,
        reference: try_zeros(p.reference_len(dim))?,
    };
    for at in each_item(p) {
        let item = item::<F>(p, &args, at);
        let out = grad_output.at(at);
        let upstream: Vec<F> =
            (0..p.channels()).map(|c| F::from_f64(grad_output.data.get(out + c))).collect();
        let mut d_location = vec![[F::ZERO; 2]; p.samples()];
        let mut d_weight = vec![F::ZERO; p.samples()];
        for s in 0..p.samples() {
            let level = &p.levels()[item.level[s]];
            for tap in taps(p, level, item.location[s]) {
                let position = [at[0], level.position(tap.y, tap.x), at[2]];
                let (row, d_row) = (args.value.at(position), op::offset(dense_value, position));
                for (c, &g) in upstream.iter().enumerate() {
                    let v = F::from_f64(args.value.data.get(row + c));
                    grads.value[d_row + c] += item.weight[s] * tap.weight * g;
                    d_weight[s] += tap.weight * v * g;
                    for (d, slope) in d_location[s].iter_mut().zip([tap.dx, tap.dy]) {
                        if let Some(slope) = slope {
                            *d += item.weight[s] * slope * v * g;
                        }
                    }
                }
            }
        }
        match &args.reference {
            None => {
                grads.locations.extend(d_location.iter().flatten());
                grads.weights.extend(d_weight);
            }
            Some((kind, reference)) => {
                for (s, d) in d_location.iter().enumerate() {
                    let l = item.level[s];
                    let base = reference.at([at[0], at[1], l]);
                    let d_base = op::offset(Role::Reference(*kind).dense(p), [at[0], at[1], l]);
                    for axis in 0..2 {
                        // A location that is not finite has no gradient, nor do its inputs.
                        if !item.location[s].iter().all(|t| t.is_finite()) {
                            grads.locations.push(F::ZERO);
                            continue;
                        }
                        let scale = offset_scale::<F>(p, *kind, reference, base, l, axis);
                        grads.locations.push(d[axis] * scale);
                        grads.reference[d_base + axis] += d[axis];
                        if *kind == ReferenceKind::Box {
                            let raw = args.locations.data.get(args.locations.at(at) + 2 * s + axis);
                            grads.reference[d_base + 2 + axis] +=
                                d[axis] * F::from_f64(raw) * half_share(p, l);
                        }
                    }
                }
                let mean = item.weight.iter().zip(&d_weight).fold(F::ZERO, |sum, (&w, &d)| sum + w * d);
                grads.weights.extend(item.weight.iter().zip(&d_weight).map(|(&w, &d)| w * (d - mean)));
            }
        }
    }
    Ok(grads)
}

/// The oracle as a backend: it computes in `f64` and rounds once to the type of the output.
#[derive(Debug, Clone, Copy, Default)]
pub struct Oracle;

impl Backend for Oracle {
    fn name(&self) -> String {
        "oracle".into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, mut output: ViewMut<'_>) -> Result<()> {
        op::check_output(p, &output)?;
        Role::Output.write(p, &forward::<f64>(p, inputs)?, &mut output);
        Ok(())
    }

    fn backward(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()> {
        let args = op::check_inputs(p, inputs)?;
        op::check_gradients(p, &args, &grad_output, &gradients)?;
        let grads = backward::<f64>(p, inputs, &grad_output)?;
        let reference = args.reference.map(|(kind, _)| (Role::Reference(kind), grads.reference));
        let all = [(Role::Value, grads.value), (Role::Locations, grads.locations)];
        let all = all.into_iter().chain([(Role::Weights, grads.weights)]).chain(reference);
        let to = [gradients.value, gradients.locations, gradients.weights, gradients.reference];
        for ((role, numbers), to) in all.zip(to) {
            if let Some(mut to) = to {
                role.write(p, &numbers, &mut to);
            }
        }
        Ok(())
    }
}
