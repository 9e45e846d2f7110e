//! Sizes and calls that several tests use.
#![allow(dead_code)] // each test uses some of it

use msda::{Backend, Buffer, Gradients, Inputs, Problem, Spec, View};

/// `[batch, queries, heads, channels]`, levels and points, with the usual options.
pub(crate) fn sized(
    [batch, queries, heads, channels]: [usize; 4],
    levels: &[(usize, usize)],
    points: &[usize],
) -> Spec {
    let (levels, points) = (levels.to_vec(), points.to_vec());
    Spec { batch, queries, heads, channels, levels, points, ..Spec::default() }
}

/// The output and the gradients of value, locations, weights and reference points, in memory that
/// held NaN.
pub(crate) fn run(
    backend: &dyn Backend,
    p: &Problem,
    inputs: &Inputs<'_>,
    upstream: View<'_>,
) -> [Buffer; 5] {
    let (t, dim) = (p.types(), inputs.reference.map_or(0, |reference| reference.kind.dim()));
    let mut all = [
        (t.value, p.output_len()),
        (t.value, p.value_len()),
        (t.locations, p.locations_len()),
        (t.weights, p.weights_len()),
        (t.locations, p.reference_len(dim)),
    ]
    .map(|(dtype, len)| Buffer::filled(dtype, len, f64::NAN));
    let [output, gradients @ ..] = &mut all;
    backend.forward(p, inputs, output.as_mut().into()).unwrap();
    let [value, locations, weights, reference] = gradients.each_mut().map(|b| Some(b.as_mut().into()));
    let reference = reference.filter(|_| dim > 0);
    backend.backward(p, inputs, upstream, Gradients { value, locations, weights, reference }).unwrap();
    all
}
