//! The baseline of every comparison: plain loops over image, query, head, level, point and channel.
//!
//! It is written as a C programmer would write it: scalar code, one tap after the other, no special
//! instructions, no prefetching, no reordering. 16-bit numbers are widened one by one and summed in
//! `f32`. It uses all threads of its pool and needs nothing installed, so every machine has it.

use msda::backend::{self, Args, Tensor};
use msda::{
    Backend, Element, Float, Gradients, Inputs, Layout, Level, Padding, Problem, ReferenceKind, Result, Role,
    Sampling, Slice, SliceMut, View, ViewMut,
};
use rayon::prelude::*;

/// The plain loops as a backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl Plain {
    /// Its name as an engine.
    pub const NAME: &str = "plain";
}

impl Backend for Plain {
    fn name(&self) -> String {
        Self::NAME.into()
    }

    fn forward(&self, p: &Problem, inputs: &Inputs<'_>, output: ViewMut<'_>) -> Result<()> {
        let args = backend::check_inputs(p, inputs)?;
        backend::check_output(p, &output)?;
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
        let (grad_output, _) = backend::check_gradients(p, &args, &grad_output, &gradients)?;
        match args.value.data {
            Slice::F64(value) => backward(p, &args, value, grad_output, gradients),
            Slice::F32(value) => backward(p, &args, value, grad_output, gradients),
            Slice::F16(value) => backward(p, &args, value, grad_output, gradients),
            Slice::Bf16(value) => backward(p, &args, value, grad_output, gradients),
        }
        Ok(())
    }
}

/// In parallel over images, queries and heads.
fn forward<T: Element>(p: &Problem, args: &Args<'_>, value: &[T], output: ViewMut<'_>) {
    let sums = || vec![T::Acc::ZERO; p.channels()];
    fill(p, Role::Output, output, sums, |sums, [image, query, head], row: &mut [T]| {
        sums.fill(T::Acc::ZERO);
        let samples = Samples::<T::Acc>::new(p, args, [image, query, head]);
        let mut s = 0;
        for (l, level) in p.levels().iter().enumerate() {
            for _ in 0..p.points()[l] {
                let weight = samples.weight(s);
                for tap in taps(p, level, samples.location(l, s)).into_iter().flatten() {
                    let share = weight * tap.weight;
                    let first = args.value.at([image, tap.position, head]);
                    for (sum, v) in sums.iter_mut().zip(&value[first..first + p.channels()]) {
                        *sum += share * v.widen();
                    }
                }
                s += 1;
            }
        }
        for (out, &sum) in row.iter_mut().zip(sums.iter()) {
            *out = T::narrow(sum);
        }
    });
}

/// The gradients of one image and head, dense.
struct Plane<F> {
    value: Vec<F>,
    locations: Vec<F>,
    weights: Vec<F>,
    /// The contribution of this head.
    reference: Vec<F>,
}

/// In parallel over images and heads: each owns its part of the value's gradient, so that the sums
/// are the same on every run.
fn backward<T: Element>(
    p: &Problem,
    args: &Args<'_>,
    value: &[T],
    grad_output: Tensor<'_>,
    gradients: Gradients<'_>,
) {
    let Some(upstream) = T::slice(&grad_output.data) else {
        unreachable!("the output's gradient was checked to have the value's type")
    };
    let heads = p.heads();
    let planes: Vec<Plane<T::Acc>> = (0..p.batch() * heads)
        .into_par_iter()
        .map(|i| plane(p, args, value, &grad_output, upstream, i / heads, i % heads))
        .collect();
    let part = |numbers: fn(&Plane<T::Acc>) -> &[T::Acc], role: Role, [image, i, head]: [usize; 3]| {
        let (_, inner) = role.shape(p);
        &numbers(&planes[image * heads + head])[i * inner..(i + 1) * inner]
    };
    store(p, Role::Value, gradients.value, |at| part(|g| &g.value, Role::Value, at));
    store(p, Role::Locations, gradients.locations, |at| part(|g| &g.locations, Role::Locations, at));
    store(p, Role::Weights, gradients.weights, |at| part(|g| &g.weights, Role::Weights, at));
    if let Some((kind, _)) = args.reference {
        let role = Role::Reference(kind);
        let sums = sum_over_heads(p, kind.dim(), &planes);
        let dense = role.dense(p);
        store(p, role, gradients.reference, |at| {
            let first = backend::offset(dense, at);
            &sums[first..first + kind.dim()]
        });
    }
}

fn plane<T: Element>(
    p: &Problem,
    args: &Args<'_>,
    value: &[T],
    grad_output: &Tensor<'_>,
    upstream: &[T],
    image: usize,
    head: usize,
) -> Plane<T::Acc> {
    let (zero, d, n) = (T::Acc::ZERO, p.channels(), p.samples());
    let dim = args.reference.map_or(0, |(kind, _)| kind.dim());
    let mut grads = Plane {
        value: vec![zero; p.positions() * d],
        locations: vec![zero; p.queries() * n * 2],
        weights: vec![zero; p.queries() * n],
        reference: vec![zero; p.queries() * p.levels().len() * dim],
    };
    for query in 0..p.queries() {
        let at = [image, query, head];
        let first = grad_output.at(at);
        let upstream = &upstream[first..first + d];
        let samples = Samples::<T::Acc>::new(p, args, at);
        let mut s = 0;
        for (l, level) in p.levels().iter().enumerate() {
            for _ in 0..p.points()[l] {
                let (weight, location) = (samples.weight(s), samples.location(l, s));
                let (mut d_weight, mut d_location) = (zero, [zero; 2]);
                for tap in taps(p, level, location).into_iter().flatten() {
                    let share = weight * tap.weight;
                    let first = args.value.at([image, tap.position, head]);
                    let sums = &mut grads.value[tap.position * d..(tap.position + 1) * d];
                    let mut dot = zero;
                    for ((v, g), sum) in value[first..first + d].iter().zip(upstream).zip(sums) {
                        dot += v.widen() * g.widen();
                        *sum += share * g.widen();
                    }
                    d_weight += tap.weight * dot;
                    // A coordinate without a slope has no gradient, whatever the values are.
                    for (sum, slope) in d_location.iter_mut().zip(tap.slopes) {
                        if let Some(slope) = slope {
                            *sum += weight * slope * dot;
                        }
                    }
                }
                let i = query * n + s;
                grads.weights[i] = d_weight;
                samples.chain(l, s, location, d_location, &mut grads, query);
                s += 1;
            }
        }
        samples.chain_softmax(&mut grads.weights[query * n..(query + 1) * n]);
    }
    grads
}

fn sum_over_heads<F: Float>(p: &Problem, dim: usize, planes: &[Plane<F>]) -> Vec<F> {
    let mut sums = vec![F::ZERO; p.reference_len(dim)];
    let per_image = p.queries() * p.levels().len() * dim;
    for (i, plane) in planes.iter().enumerate() {
        let first = i / p.heads() * per_image;
        for (sum, &g) in sums[first..first + per_image].iter_mut().zip(&plane.reference) {
            *sum += g;
        }
    }
    sums
}

/// The samples of one image, query and head: locations and weights, in the plain or the fused form.
struct Samples<'a, F> {
    p: &'a Problem,
    args: &'a Args<'a>,
    at: [usize; 3],
    /// Of the fused form: the largest logit, and the sum of the exponentials.
    softmax: Option<(F, F)>,
}

impl<'a, F: Float> Samples<'a, F> {
    fn new(p: &'a Problem, args: &'a Args<'a>, at: [usize; 3]) -> Self {
        let mut samples = Self { p, args, at, softmax: None };
        if args.reference.is_some() {
            let logits = || (0..p.samples()).map(|s| samples.raw_weight(s));
            let top = logits().fold(F::from_f64(f64::NEG_INFINITY), |a, b| if b > a { b } else { a });
            let sum = logits().fold(F::ZERO, |sum, x| sum + (x - top).exp());
            samples.softmax = Some((top, sum));
        }
        samples
    }

    fn raw_weight(&self, s: usize) -> F {
        F::from_f64(self.args.weights.data.get(self.args.weights.at(self.at) + s))
    }

    fn raw_location(&self, s: usize, axis: usize) -> F {
        F::from_f64(self.args.locations.data.get(self.args.locations.at(self.at) + 2 * s + axis))
    }

    fn weight(&self, s: usize) -> F {
        let raw = self.raw_weight(s);
        self.softmax.map_or(raw, |(top, sum)| (raw - top).exp() / sum)
    }

    fn location(&self, l: usize, s: usize) -> [F; 2] {
        [0, 1].map(|axis| {
            let raw = self.raw_location(s, axis);
            match &self.args.reference {
                None => raw,
                Some((kind, reference)) => {
                    let base = reference.at([self.at[0], self.at[1], l]);
                    let start = F::from_f64(reference.data.get(base + axis));
                    start + raw * self.offset_scale(*kind, reference, l, axis)
                }
            }
        })
    }

    /// How much one unit of a raw offset moves the normalised location.
    fn offset_scale(&self, kind: ReferenceKind, reference: &Tensor<'_>, l: usize, axis: usize) -> F {
        let level = &self.p.levels()[l];
        if kind != ReferenceKind::Box {
            return F::ONE / F::from_f64([level.w, level.h][axis] as f64);
        }
        let base = reference.at([self.at[0], self.at[1], l]);
        F::from_f64(reference.data.get(base + 2 + axis)) * self.half_share(l)
    }

    /// A box's offsets are in units of half its size over the number of points.
    fn half_share(&self, l: usize) -> F {
        F::from_f64(0.5) / F::from_f64(self.p.points()[l] as f64)
    }

    /// Writes the gradient of a location and, in the fused form, of its offset and reference.
    fn chain(&self, l: usize, s: usize, location: [F; 2], d: [F; 2], grads: &mut Plane<F>, query: usize) {
        let to = &mut grads.locations[(query * self.p.samples() + s) * 2..][..2];
        let Some((kind, reference)) = &self.args.reference else {
            to.copy_from_slice(&d);
            return;
        };
        if !location.iter().all(|t| t.is_finite()) {
            return;
        }
        let sums = &mut grads.reference[(query * self.p.levels().len() + l) * kind.dim()..][..kind.dim()];
        for axis in 0..2 {
            to[axis] = d[axis] * self.offset_scale(*kind, reference, l, axis);
            sums[axis] += d[axis];
            if *kind == ReferenceKind::Box {
                sums[2 + axis] += d[axis] * self.raw_location(s, axis) * self.half_share(l);
            }
        }
    }

    /// Turns gradients of weights into gradients of logits, in the fused form.
    fn chain_softmax(&self, grads: &mut [F]) {
        if self.softmax.is_some() {
            let mean = grads.iter().enumerate().fold(F::ZERO, |sum, (s, &g)| sum + self.weight(s) * g);
            for (s, g) in grads.iter_mut().enumerate() {
                *g = self.weight(s) * (*g - mean);
            }
        }
    }
}

/// A pixel of a sample.
#[derive(Clone, Copy)]
struct Tap<F> {
    position: usize,
    weight: F,
    /// Derivatives of the weight by x and y of the normalised location.
    slopes: [Option<F>; 2],
}

/// The pixels of a sample that are on the map: up to four.
fn taps<F: Float>(p: &Problem, level: &Level, [x, y]: [F; 2]) -> [Option<Tap<F>>; 4] {
    let mut taps = [None; 4];
    if !x.is_finite() || !y.is_finite() {
        return taps;
    }
    let (xs, ys) = (neighbours(p, level.w, x), neighbours(p, level.h, y));
    for (j, y) in ys.into_iter().enumerate() {
        for (i, x) in xs.into_iter().enumerate() {
            if let (Some(x), Some(y)) = (x, y) {
                taps[2 * j + i] = Some(Tap {
                    position: level.position(y.index, x.index),
                    weight: y.weight * x.weight,
                    slopes: [x.slope.map(|slope| slope * y.weight), y.slope.map(|slope| slope * x.weight)],
                });
            }
        }
    }
    taps
}

/// A pixel on one axis.
#[derive(Clone, Copy)]
struct Neighbour<F> {
    index: usize,
    weight: F,
    /// The derivative of the weight; none where the coordinate is clamped or rounded.
    slope: Option<F>,
}

/// The pixels of a sample on one axis of `side` pixels: two, or one with nearest sampling.
fn neighbours<F: Float>(p: &Problem, side: usize, t: F) -> [Option<Neighbour<F>>; 2] {
    let (scale, shift) = p.pixel_transform(side);
    let (scale, last) = (F::from_f64(scale), F::from_f64(side as f64 - 1.0));
    let (mut c, mut slope) = (t * scale + F::from_f64(shift), Some(scale));
    if p.padding() == Padding::Border && (c <= F::ZERO || c >= last) {
        (c, slope) = (if c <= F::ZERO { F::ZERO } else { last }, None);
    }
    let on_map = |index: F, weight, slope| {
        let index = index.to_f64();
        let inside = index >= 0.0 && index < side as f64;
        inside.then_some(Neighbour { index: index as usize, weight, slope })
    };
    if p.sampling() == Sampling::Nearest {
        return [on_map(c.round_ties_even(), F::ONE, None), None];
    }
    // The test also refuses a coordinate that overflowed.
    if !(c > -F::ONE && c < last + F::ONE) {
        return [None; 2];
    }
    let low = c.floor();
    let part = c - low;
    [on_map(low, F::ONE - part, slope.map(|s| -s)), on_map(low + F::ONE, part, slope)]
}

/// Writes the rows of a gradient in the type of its tensor, on all threads.
fn store<'g, F: Float>(
    p: &Problem,
    role: Role,
    to: Option<ViewMut<'_>>,
    from: impl Fn([usize; 3]) -> &'g [F] + Sync,
) {
    fn copy<'g, T: Element, F: Float>(
        p: &Problem,
        role: Role,
        to: ViewMut<'_>,
        from: impl Fn([usize; 3]) -> &'g [F] + Sync,
    ) {
        fill(
            p,
            role,
            to,
            || (),
            |(), at, row: &mut [T]| {
                for (to, &from) in row.iter_mut().zip(from(at)) {
                    *to = T::from_f64(from.to_f64());
                }
            },
        );
    }
    let Some(to) = to else { return };
    match &to.data {
        SliceMut::F64(_) => copy::<f64, F>(p, role, to, from),
        SliceMut::F32(_) => copy::<f32, F>(p, role, to, from),
        SliceMut::F16(_) => copy::<msda::f16, F>(p, role, to, from),
        SliceMut::Bf16(_) => copy::<msda::bf16, F>(p, role, to, from),
    }
}

/// Writes every row of a tensor, on all threads. A tensor with strides is copied from a dense one.
fn fill<T: Element, S>(
    p: &Problem,
    role: Role,
    to: ViewMut<'_>,
    scratch: impl Fn() -> S + Sync + Send,
    write: impl Fn(&mut S, [usize; 3], &mut [T]) + Sync + Send,
) {
    let (extents, inner) = role.shape(p);
    let Some(data) = T::slice_mut(to.data) else {
        unreachable!("the destination was checked to have this type")
    };
    if inner == 0 {
        return;
    }
    let [_, n, k] = extents;
    let planar = role == Role::Value && p.layout() != Layout::Bshd;
    let fill_dense = |rows: &mut [T]| {
        rows.par_chunks_mut(inner).enumerate().for_each_init(scratch, |scratch, (i, row)| {
            let index = if planar { [i / n / k, i % n, i / n % k] } else { [i / k / n, i / k % n, i % k] };
            write(scratch, index, row);
        });
    };
    let Some(strides) = to.strides else {
        return fill_dense(data);
    };
    let mut rows = vec![T::default(); extents.iter().product::<usize>() * inner];
    fill_dense(&mut rows);
    let dense = role.dense(p);
    role.for_each_row(p, |index| {
        let (from, to) = (backend::offset(dense, index), backend::offset(strides, index));
        data[to..to + inner].copy_from_slice(&rows[from..from + inner]);
    });
}

#[cfg(test)]
mod tests {
    msda::conformance!(super::Plain);
}
