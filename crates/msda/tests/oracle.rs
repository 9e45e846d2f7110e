//! The gradients of the oracle are the derivatives of its output.

use msda::rng::Rng;
use msda::{Inputs, Padding, Problem, Reference, ReferenceKind, Sampling, Spec, Types, View, oracle};

struct Tensors {
    value: Vec<f64>,
    locations: Vec<f64>,
    weights: Vec<f64>,
    reference: Vec<f64>,
}

impl Tensors {
    fn all(&mut self) -> [&mut Vec<f64>; 4] {
        [&mut self.value, &mut self.locations, &mut self.weights, &mut self.reference]
    }

    fn inputs(&self, kind: Option<ReferenceKind>) -> Inputs<'_> {
        let mut inputs = Inputs::plain(&self.value, &self.locations, &self.weights);
        inputs.reference = kind.map(|kind| Reference { kind, view: View::from(&self.reference) });
        inputs
    }
}

fn check(spec: Spec, kind: Option<ReferenceKind>) {
    let p = Problem::new(Spec { types: Types::uniform(msda::Dtype::F64), ..spec }).unwrap();
    let mut r = Rng::new(7);
    let dim = kind.map_or(0, ReferenceKind::dim);
    let mut t = Tensors {
        value: (0..p.value_len()).map(|_| r.normal()).collect(),
        locations: (0..p.locations_len())
            .map(|_| if kind.is_some() { r.normal() } else { r.between(-0.1, 1.1) })
            .collect(),
        weights: (0..p.weights_len()).map(|_| r.normal()).collect(),
        reference: (0..p.reference_len(dim)).map(|_| r.between(0.2, 0.8)).collect(),
    };
    let upstream: Vec<f64> = (0..p.output_len()).map(|_| r.normal()).collect();
    let loss = |t: &Tensors| -> f64 {
        let output = oracle::forward::<f64>(&p, &t.inputs(kind)).unwrap();
        output.iter().zip(&upstream).map(|(a, b)| a * b).sum()
    };
    let grads = oracle::backward::<f64>(&p, &t.inputs(kind), &View::from(&upstream)).unwrap();
    let analytic = [grads.value, grads.locations, grads.weights, grads.reference];
    let step = 1e-6;
    let mut compared = 0;
    for (which, grad) in analytic.iter().enumerate() {
        for i in 0..grad.len() {
            let x = t.all()[which][i];
            t.all()[which][i] = x + step;
            let above = loss(&t);
            t.all()[which][i] = x - step;
            let below = loss(&t);
            t.all()[which][i] = x;
            let numeric = (above - below) / (2.0 * step);
            let error = (numeric - grad[i]).abs();
            assert!(
                error < 2e-6 * (1.0 + grad[i].abs()),
                "{p} tensor {which} element {i}: {} against {numeric}",
                grad[i]
            );
            compared += 1;
        }
    }
    assert!(compared > 100);
}

fn small() -> Spec {
    Spec {
        batch: 2,
        queries: 3,
        heads: 2,
        channels: 3,
        levels: vec![(4, 6), (3, 2)],
        points: vec![2, 3],
        ..Spec::default()
    }
}

#[test]
fn plain_gradients_match_finite_differences() {
    for padding in [Padding::Zeros, Padding::Border] {
        for align_corners in [false, true] {
            check(Spec { padding, align_corners, ..small() }, None);
        }
    }
    check(Spec { sampling: Sampling::Nearest, ..small() }, None);
}

#[test]
fn fused_gradients_match_finite_differences() {
    for kind in [ReferenceKind::Point, ReferenceKind::Box] {
        for padding in [Padding::Zeros, Padding::Border] {
            check(Spec { padding, ..small() }, Some(kind));
        }
    }
}

/// One sample between four pixels, computed by hand.
#[test]
fn one_sample_has_the_results_computed_by_hand() {
    let spec = Spec {
        batch: 1,
        queries: 1,
        heads: 1,
        channels: 1,
        levels: vec![(2, 2)],
        points: vec![1],
        ..Spec::default()
    };
    let p = Problem::new(Spec { types: Types::uniform(msda::Dtype::F64), ..spec }).unwrap();
    // Pixel (x, y) = (0.25, 0.5): left 3/4, right 1/4, half of each row.
    let (value, location, weight) = (vec![1.0, 2.0, 3.0, 5.0], vec![0.375, 0.5], vec![2.0]);
    let inputs = Inputs::plain(&value, &location, &weight);
    let expected = 2.0 * (0.5 * (0.75 * 1.0 + 0.25 * 2.0) + 0.5 * (0.75 * 3.0 + 0.25 * 5.0));
    assert_eq!(oracle::forward::<f64>(&p, &inputs).unwrap(), [expected]);
    let upstream = vec![1.0];
    let g = oracle::backward::<f64>(&p, &inputs, &View::from(&upstream)).unwrap();
    assert_eq!(g.weights, [expected / 2.0]);
    assert_eq!(g.value, [0.75, 0.25, 0.75, 0.25]);
    // The scale is 2 pixels per unit: d/dx = 2 * 2 * (0.5 * (2 - 1) + 0.5 * (5 - 3)) and
    // d/dy = 2 * 2 * (0.75 * 2 + 0.25 * 3).
    assert_eq!(g.locations, [6.0, 9.0]);
}

/// Where the operator has no gradient, numbers that are not finite do not make one: `0 * inf` is
/// NaN.
#[test]
fn without_a_gradient_the_result_is_exactly_0() {
    let spec = Spec {
        batch: 1,
        queries: 1,
        heads: 1,
        channels: 1,
        levels: vec![(2, 2)],
        points: vec![1],
        types: Types::uniform(msda::Dtype::F64),
        ..Spec::default()
    };
    let nearest = Spec { sampling: Sampling::Nearest, ..spec.clone() };
    let border = Spec { padding: Padding::Border, ..spec.clone() };
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    // Problem, location, and which of its coordinates have no gradient.
    let cases = [
        (&nearest, [0.3, 0.3], [true, true]),
        (&border, [-1.0, 0.5], [true, false]),
        (&border, [0.5, 2.0], [false, true]),
        (&border, [2.0, -1.0], [true, true]),
        (&spec, [9.0, 0.5], [true, true]),
        (&spec, [f64::NAN, 0.5], [true, true]),
        (&border, [0.5, f64::INFINITY], [true, true]),
    ];
    for (spec, location, none) in cases {
        let p = Problem::new(spec.clone()).unwrap();
        for x in bad {
            for [value, weight, upstream] in [[x, 1.0, 1.0], [1.0, x, 1.0], [1.0, 1.0, x], [x, x, x]] {
                let (value, location, weight) = ([value; 4], location, [weight]);
                let inputs = Inputs::plain(&value, &location, &weight);
                let g = oracle::backward::<f64>(&p, &inputs, &View::from(&[upstream])).unwrap();
                for axis in 0..2 {
                    assert!(!none[axis] || g.locations[axis] == 0.0, "{p} {location:?}: {:?}", g.locations);
                }
                let off_the_map = !location.iter().all(|t| t.is_finite()) || location[0] == 9.0;
                if off_the_map {
                    assert_eq!(
                        (&g.value[..], &g.weights[..]),
                        (&[0.0; 4][..], &[0.0][..]),
                        "{p} {location:?}"
                    );
                    assert_eq!(oracle::forward::<f64>(&p, &inputs).unwrap(), [0.0]);
                }
            }
        }
    }
}
