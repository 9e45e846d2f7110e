//! The gradients of the oracle are the derivatives of its output.

mod common;

use common::sized;
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
    sized([2, 3, 2, 3], &[(4, 6), (3, 2)], &[2, 3])
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
    let spec = sized([1; 4], &[(2, 2)], &[1]);
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
