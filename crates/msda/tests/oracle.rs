//! The gradients of the oracle are the derivatives of its output.

mod common;

use common::{Tensors, sized};
use msda::{Buffer, Inputs, Padding, Problem, ReferenceKind, Sampling, Spec, Types, View, oracle};

fn input(t: &mut Tensors, which: usize) -> &mut Buffer {
    [&mut t.value, &mut t.locations, &mut t.weights, &mut t.reference].into_iter().nth(which).unwrap()
}

fn check(spec: Spec, kind: Option<ReferenceKind>) {
    let p = Problem::new(Spec { types: Types::uniform(msda::Dtype::F64), ..spec }).unwrap();
    let mut t = Tensors::random(&p, kind);
    let upstream = t.upstream.clone();
    let loss = |t: &Tensors| -> f64 {
        let output = oracle::forward::<f64>(&p, &t.inputs()).unwrap();
        output.iter().zip(upstream.to_f64()).map(|(a, b)| a * b).sum()
    };
    let grads = oracle::backward::<f64>(&p, &t.inputs(), &t.upstream()).unwrap();
    let analytic = [grads.value, grads.locations, grads.weights, grads.reference];
    let step = 1e-6;
    let mut compared = 0;
    for (which, grad) in analytic.iter().enumerate() {
        for i in 0..grad.len() {
            let x = input(&mut t, which).as_slice().get(i);
            let mut loss_at = |x: f64| {
                input(&mut t, which).as_mut().set(i, x);
                loss(&t)
            };
            let numeric = (loss_at(x + step) - loss_at(x - step)) / (2.0 * step);
            input(&mut t, which).as_mut().set(i, x);
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
