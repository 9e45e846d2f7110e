//! The baseline of every comparison: plain loops over image, query, head, level, point and channel.
//!
//! It is written as a C programmer would write it: scalar code, one tap after the other, no special
//! instructions, no prefetching, no reordering. 16-bit numbers are widened one by one and summed in
//! `f32`. It uses all threads of its pool and needs nothing installed, so every machine has it.
//!
//! The loops take what workloads have: dense tensors, plain form, bilinear sampling, zero padding.
//! The oracle computes everything else.

use msda::backend::{self, Args};
use msda::oracle::Oracle;
use msda::{
    Backend, Element, Float, Gradients, Inputs, Layout, Level, Padding, Problem, Result, Role, Sampling,
    Slice, SliceMut, View, ViewMut,
};
use rayon::prelude::*;

/// The plain loops as a backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Plain {
    /// Its name as an engine.
    pub const NAME: &str = "plain";
}

/// Whether the loops take a call whose further tensors have these strides.
fn takes(p: &Problem, inputs: &Inputs<'_>, strides: &[Option<msda::Strides>]) -> bool {
    let views = [inputs.value.strides, inputs.locations.strides, inputs.weights.strides];
    let is_dense = views.iter().chain(strides).all(Option::is_none);
    let bilinear = p.sampling() == Sampling::Bilinear && p.padding() == Padding::Zeros;
    is_dense && bilinear && inputs.reference.is_none() && p.channels() > 0 && p.samples() > 0
}

impl Backend for Plain {
    fn name(&self) -> String {
        Self::NAME.into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        let args = backend::check_inputs(p, inputs)?;
        backend::check_output(p, &output)?;
        if !takes(p, inputs, &[output.strides]) {
            return Oracle.forward(p, inputs, output);
        }
        match args.value.data {
            Slice::F64(value) => forward(p, &args, value, output),
            Slice::F32(value) => forward(p, &args, value, output),
            Slice::F16(value) => forward(p, &args, value, output),
            Slice::Bf16(value) => forward(p, &args, value, output),
        }
        Ok(())
    }

    fn backward(
        &self,
        p: &Problem,
        inputs: &Inputs<'_>,
        grad_output: View<'_>,
        gradients: Gradients<'_>,
    ) -> Result<()> {
        let args = backend::check_inputs(p, inputs)?;
        let (upstream, _) = backend::check_gradients(p, &args, &grad_output, &gradients)?;
        let outputs = [&gradients.value, &gradients.locations, &gradients.weights];
        let strides = outputs.map(|view| view.as_ref().and_then(|view| view.strides));
        if !takes(p, inputs, &[&strides[..], &[grad_output.strides]].concat()) {
            return Oracle.backward(p, inputs, grad_output, gradients);
        }
        match args.value.data {
            Slice::F64(value) => backward(p, &args, value, upstream.data, gradients),
            Slice::F32(value) => backward(p, &args, value, upstream.data, gradients),
            Slice::F16(value) => backward(p, &args, value, upstream.data, gradients),
            Slice::Bf16(value) => backward(p, &args, value, upstream.data, gradients),
        }
        Ok(())
    }
}

/// In parallel over images, queries and heads.
fn forward<T: Element>(p: &Problem, args: &Args<'_>, value: &[T], output: ViewMut<'_>) {
    let rows = T::slice_mut(output.data).expect("the output was checked to have the value's type");
    let (d, queries, heads) = (p.channels(), p.queries(), p.heads());
    let sums = || vec![T::Acc::ZERO; d];
    rows.par_chunks_mut(d).enumerate().for_each_init(sums, |sums, (i, row)| {
        let at @ [image, _, head] = [i / heads / queries, i / heads % queries, i % heads];
        sums.fill(T::Acc::ZERO);
        for_each_tap::<T::Acc>(p, args, at, |_, weight, tap| {
            let share = weight * tap.weight;
            let first = args.value.at([image, tap.position, head]);
            for (sum, v) in sums.iter_mut().zip(&value[first..first + d]) {
                *sum += share * v.widen();
            }
        });
        for (out, &sum) in row.iter_mut().zip(sums.iter()) {
            *out = T::narrow(sum);
        }
    });
}

/// The gradients of value, locations and weights for one image and head, dense.
type Plane<F> = [Vec<F>; 3];

/// In parallel over images and heads: each owns its part of the value's gradient, so that the sums
/// are the same on every run.
fn backward<T: Element>(p: &Problem, args: &Args<'_>, value: &[T], upstream: Slice<'_>, to: Gradients<'_>) {
    let upstream = T::slice(&upstream).expect("the output's gradient was checked to have the value's type");
    let planes: Vec<Plane<T::Acc>> =
        (0..p.batch() * p.heads()).into_par_iter().map(|i| plane(p, args, value, upstream, i)).collect();
    let to = [(Role::Value, to.value), (Role::Locations, to.locations), (Role::Weights, to.weights)];
    for (i, (role, to)) in to.into_iter().enumerate() {
        store(p, role, to, |plane| &planes[plane][i]);
    }
}

fn plane<T: Element>(p: &Problem, args: &Args<'_>, value: &[T], upstream: &[T], i: usize) -> Plane<T::Acc> {
    let (image, head) = (i / p.heads(), i % p.heads());
    let (zero, d, n) = (T::Acc::ZERO, p.channels(), p.samples());
    let [mut grad_value, mut grad_locations, mut grad_weights] =
        [p.positions() * d, p.queries() * n * 2, p.queries() * n].map(|len| vec![zero; len]);
    for query in 0..p.queries() {
        let first = ((image * p.queries() + query) * p.heads() + head) * d;
        let upstream = &upstream[first..first + d];
        for_each_tap::<T::Acc>(p, args, [image, query, head], |s, weight, tap| {
            let share = weight * tap.weight;
            let first = args.value.at([image, tap.position, head]);
            let sums = &mut grad_value[tap.position * d..(tap.position + 1) * d];
            let mut dot = zero;
            for ((v, g), sum) in value[first..first + d].iter().zip(upstream).zip(sums) {
                dot += v.widen() * g.widen();
                *sum += share * g.widen();
            }
            let i = query * n + s;
            grad_weights[i] += tap.weight * dot;
            for (sum, slope) in grad_locations[2 * i..2 * i + 2].iter_mut().zip(tap.slopes) {
                *sum += weight * slope * dot;
            }
        });
    }
    [grad_value, grad_locations, grad_weights]
}

/// A pixel of a sample.
pub(crate) struct Tap<F> {
    /// Its position in the value.
    pub(crate) position: usize,
    weight: F,
    /// Derivatives of the weight by x and y of the normalised location.
    slopes: [F; 2],
}

/// Calls `f` for every pixel on the map that a sample of one image, query and head reads, with the
/// number and the weight of the sample.
pub(crate) fn for_each_tap<F: Float>(
    p: &Problem,
    args: &Args<'_>,
    at: [usize; 3],
    mut f: impl FnMut(usize, F, Tap<F>),
) {
    let (locations, weights) = (args.locations.at(at), args.weights.at(at));
    let mut s = 0;
    for (level, &points) in p.levels().iter().zip(p.points()) {
        for _ in 0..points {
            let weight = F::from_f64(args.weights.data.get(weights + s));
            let [x, y] = [0, 1].map(|axis| F::from_f64(args.locations.data.get(locations + 2 * s + axis)));
            if x.is_finite() && y.is_finite() {
                for y in neighbours(p, level.h, y).into_iter().flatten() {
                    for x in neighbours(p, level.w, x).into_iter().flatten() {
                        f(s, weight, tap(level, &x, &y));
                    }
                }
            }
            s += 1;
        }
    }
}

fn tap<F: Float>(level: &Level, x: &Neighbour<F>, y: &Neighbour<F>) -> Tap<F> {
    Tap {
        position: level.position(y.index, x.index),
        weight: y.weight * x.weight,
        slopes: [x.slope * y.weight, y.slope * x.weight],
    }
}

/// A pixel on one axis, its weight, and the derivative of the weight.
#[derive(Clone, Copy)]
struct Neighbour<F> {
    index: usize,
    weight: F,
    slope: F,
}

/// The two pixels of a sample on one axis of `side` pixels, without those off the map.
fn neighbours<F: Float>(p: &Problem, side: usize, t: F) -> [Option<Neighbour<F>>; 2] {
    let (scale, shift) = p.pixel_transform(side);
    let scale = F::from_f64(scale);
    let c = t * scale + F::from_f64(shift);
    // The test also refuses a coordinate that overflowed.
    if !(c > -F::ONE && c < F::from_f64(side as f64)) {
        return [None; 2];
    }
    let low = c.floor();
    let part = c - low;
    [(low, F::ONE - part, -scale), (low + F::ONE, part, scale)].map(|(index, weight, slope)| {
        let index = index.to_f64();
        let inside = index >= 0.0 && index < side as f64;
        inside.then_some(Neighbour { index: index as usize, weight, slope })
    })
}

/// Writes a gradient in the type of its dense tensor, on all threads.
fn store<'p, F: Float>(
    p: &Problem,
    role: Role,
    to: Option<ViewMut<'_>>,
    part: impl Fn(usize) -> &'p [F] + Sync,
) {
    let ([_, n, k], inner) = role.shape(p);
    let planar = role == Role::Value && p.layout() != Layout::Bshd;
    let row = |i: usize| {
        let [image, j, head] =
            if planar { [i / n / k, i % n, i / n % k] } else { [i / k / n, i / k % n, i % k] };
        &part(image * k + head)[j * inner..(j + 1) * inner]
    };
    fn copy<'g, T: Element, F: Float>(to: &mut [T], inner: usize, row: impl Fn(usize) -> &'g [F] + Sync) {
        to.par_chunks_mut(inner).enumerate().for_each(|(i, to)| {
            for (to, from) in to.iter_mut().zip(row(i)) {
                *to = T::from_f64(from.to_f64());
            }
        });
    }
    match to.map(|to| to.data) {
        None => {}
        Some(SliceMut::F64(to)) => copy(to, inner, row),
        Some(SliceMut::F32(to)) => copy(to, inner, row),
        Some(SliceMut::F16(to)) => copy(to, inner, row),
        Some(SliceMut::Bf16(to)) => copy(to, inner, row),
    }
}

#[cfg(test)]
mod tests {
    msda::conformance!(super::Plain);
}
