//! Numbers that are not finite, and numbers that are very large, in the backward pass. Training in
//! f16 overflows now and then: all gradients of such a step are infinite or NaN.

use msda::conformance::compare;
use msda::{Backend, Buffer, Dtype, ReferenceKind, Spec};
use msda_cuda::Cuda;
use msda_cuda::driver::Device;

use crate::calls::{Given, MANY_BINS, spec};
use crate::common::device;

/// Every way to add up the gradient of value.
fn scatters(device: &Device) -> [Cuda; 5] {
    [
        Cuda::new(device),
        Cuda::named(device, "sorted").unwrap(),
        Cuda::named(device, "atomic").unwrap(),
        Cuda::named(device, "levels").unwrap(),
        Cuda::named(device, "generic").unwrap(),
    ]
}

/// The gradient of value is infinite or NaN exactly where the oracle's is. Tensor cores multiply by
/// shares of 0, so other pixels of the same strip and image row become NaN unless a kernel computes
/// them again.
fn check_value(backends: &[Cuda], given: &Given, what: &str) {
    let want = &given.gradients()[0];
    // In f64 the oracle rounds as often as the kernel does, and adds in another order.
    let oracle_rounds = given.problem.types().value == Dtype::F64;
    let allowed = if oracle_rounds { 2.0 * want.tolerance } else { want.tolerance };
    for backend in backends {
        let got = given.run(backend)[0].to_f64();
        if let Err(why) = compare(&got, &want.exact, allowed) {
            panic!("{what}: {} on {}: {why}", backend.name(), given.problem);
        }
    }
}

/// A call whose locations are multiples of 1/256: all types and the oracle find the same pixels,
/// and some shares are 0.
fn placed(sizes: Spec) -> Given {
    let mut given = Given::new(sizes);
    let places = given.locations.to_f64();
    let dtype = given.locations.dtype();
    given.locations = Buffer::from_fn(dtype, places.len(), |i| (places[i] * 256.0).floor() / 256.0);
    given.exact = true;
    given
}

/// Few queries, many, and so many that the warps of a block share all of its work.
fn calls(dtype: Dtype) -> impl Iterator<Item = Given> {
    let levels = vec![MANY_BINS, (10, 15), (5, 8)];
    let sizes = [
        Spec { heads: 2, levels: levels.clone(), ..spec(300, dtype) },
        Spec { heads: 2, levels, ..spec(2000, dtype) },
        Spec { heads: 1, levels: vec![(5, 8)], points: vec![4], ..spec(6000, dtype) },
    ];
    sizes.into_iter().map(placed)
}

const NUMBERS: [f64; 3] = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN];

/// The same call, but one of so many gradients of the output is not finite.
fn damaged(mut given: Given, every: usize) -> Given {
    let usual = given.grad_output.to_f64();
    let number = |i: usize| if i.is_multiple_of(every) { NUMBERS[i / every % 3] } else { usual[i] };
    given.grad_output = Buffer::from_fn(given.grad_output.dtype(), usual.len(), number);
    given
}

/// Some or all gradients of the output are not finite.
fn check_gradients_that_are_not_finite(dtype: Dtype) {
    let Some(device) = device() else { return };
    let backends = scatters(&device);
    for every in [1, 7, 997, 30_011] {
        for given in calls(dtype) {
            check_value(&backends, &damaged(given, every), &format!("one of {every}"));
        }
    }
    for all in NUMBERS {
        for mut given in calls(dtype) {
            given.grad_output = Buffer::filled(dtype, given.grad_output.len(), all);
            check_value(&backends, &given, &format!("all {all}"));
        }
    }
}

/// One level and many heads: a warp takes 10 to 16 image rows at a time, on a GPU with 132 SMs.
#[test]
fn gradients_of_tall_units_that_are_not_finite() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F16, Dtype::F32] {
        for height in [40, 48, 56, 64] {
            let sizes = Spec {
                heads: 300,
                channels: 8,
                levels: vec![(height, 8)],
                points: vec![4],
                ..spec(100, dtype)
            };
            check_value(&[Cuda::named(&device, "sorted").unwrap()], &damaged(placed(sizes), 7), "one of 7");
        }
    }
}

// A test per type, because a sanitizer takes minutes for each.
#[test]
fn gradients_that_are_not_finite_in_f64() {
    check_gradients_that_are_not_finite(Dtype::F64);
}

#[test]
fn gradients_that_are_not_finite_in_f32() {
    check_gradients_that_are_not_finite(Dtype::F32);
}

#[test]
fn gradients_that_are_not_finite_in_f16() {
    check_gradients_that_are_not_finite(Dtype::F16);
}

#[test]
fn gradients_that_are_not_finite_in_bf16() {
    check_gradients_that_are_not_finite(Dtype::Bf16);
}

/// In f16, shares are scaled by 256 before they are multiplied: such weights become infinite.
#[test]
fn weights_may_be_large() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F16, Dtype::F32] {
        for mut given in calls(dtype) {
            let usual = given.weights.to_f64();
            let large = |i: usize| if i.is_multiple_of(61) { 300.0 } else { usual[i] };
            given.weights = Buffer::from_fn(dtype, usual.len(), large);
            check_value(&scatters(&device), &given, "large weights");
        }
    }
}

/// Offsets and reference points as large as their type allows, and not finite ones: no sample is on
/// the map, and no gradient is infinite or NaN.
#[test]
fn fused_samples_far_outside_have_finite_gradients() {
    let Some(device) = device() else { return };
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for kind in [ReferenceKind::Point, ReferenceKind::Box] {
            let far = if dtype == Dtype::F16 { 6e4 } else { 3e38 };
            for (reference, offset) in
                [(far, 1.0), (-far, -1.0), (0.5, far), (far, far), (far, f64::INFINITY)]
            {
                let mut given = Given::fused(spec(300, dtype), kind);
                let len = given.problem.reference_len(kind.dim());
                given.reference = Some((kind, Buffer::filled(dtype, len, reference)));
                // Every second query stays on the map.
                let row = given.problem.locations_len() / given.problem.queries() / given.problem.batch();
                let near = given.locations.to_f64();
                given.locations = Buffer::from_fn(dtype, near.len(), |i| {
                    if offset.abs() > 1.0 && (i / row).is_multiple_of(2) { near[i] } else { offset }
                });
                for backend in [
                    Cuda::new(&device),
                    Cuda::named(&device, "atomic").unwrap(),
                    Cuda::named(&device, "levels").unwrap(),
                ] {
                    let results = given.run(&backend);
                    let what = format!("{} with {reference} and {offset}", backend.name());
                    for (i, gradient) in results.iter().enumerate() {
                        let bad = gradient.to_f64().iter().filter(|x| !x.is_finite()).count();
                        assert_eq!(bad, 0, "{what}: gradient {i} of {}", given.problem);
                    }
                    // The gradients of logits, which every sample of a query shares.
                    given.check(&what, given.backward(), &results);
                }
            }
        }
    }
}
