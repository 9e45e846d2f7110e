//! Calls that are accepted and refused: allocating calls, numbers that are not finite, overlapping
//! destinations.

mod common;

use common::{Tensors, sized};
use msda::oracle::{self, Oracle};
use msda::rng::Rng;
use msda::{
    Backend, Buffer, Cpu, Dtype, ErrorKind, Gradients, Inputs, Isa, Padding, Problem, ReferenceKind, Role,
    Sampling, Spec, Types, View, ViewMut,
};

fn spec() -> Spec {
    sized([2, 5, 3, 9], &[(6, 5), (3, 2)], &[2, 1])
}

#[test]
fn allocating_calls_give_the_same_bits_as_calls_with_destinations() {
    for dtype in Dtype::ALL {
        for kind in [None, Some(ReferenceKind::Box)] {
            let types = Types::with_value(dtype);
            let t = Tensors::random(&Problem::new(Spec { types, ..spec() }).unwrap(), kind);
            let mut output = Buffer::filled(dtype, t.p.output_len(), f64::NAN);
            Cpu::new().forward(&t.p, &t.inputs(), output.as_mut().into()).unwrap();
            let allocated = msda::forward(&t.p, &t.inputs()).unwrap();
            assert_eq!(allocated.to_le_bytes(), output.to_le_bytes());

            let mut value = Buffer::filled(dtype, t.p.value_len(), f64::NAN);
            let mut weights = Buffer::filled(types.weights, t.p.weights_len(), f64::NAN);
            let to = Gradients {
                value: Some(value.as_mut().into()),
                weights: Some(weights.as_mut().into()),
                ..Gradients::default()
            };
            Cpu::new().backward(&t.p, &t.inputs(), View::from(&t.upstream), to).unwrap();
            let all = msda::backward(&t.p, &t.inputs(), &t.upstream).unwrap();
            assert_eq!(all.value.to_le_bytes(), value.to_le_bytes());
            assert_eq!(all.weights.to_le_bytes(), weights.to_le_bytes());
            assert_eq!(all.locations.len(), t.p.locations_len());
            assert_eq!(all.reference.map(|r| r.len()), kind.map(|_| t.p.reference_len(4)));
        }
    }
}

#[test]
fn allocating_calls_refuse_what_does_not_fit_before_they_allocate() {
    // Results of 2^57 bytes, with inputs that are too short: the length is what the error names.
    let huge = Problem::new(Spec { queries: 1 << 50, channels: 32, heads: 1, batch: 1, ..spec() }).unwrap();
    let none: [f32; 0] = [];
    let inputs = Inputs::plain(&none, &none, &none);
    assert_eq!(msda::forward(&huge, &inputs).unwrap_err().kind(), ErrorKind::Shape);
    assert_eq!(msda::backward(&huge, &inputs, &none).unwrap_err().kind(), ErrorKind::Shape);
    // With inputs that repeat one element the call is legal, and only memory is missing.
    let t = Tensors::random(&huge.with(|s| s.queries = 1).unwrap(), None);
    let inputs = Inputs::plain(
        &t.value,
        View::from(&t.locations).strided([0; 3]),
        View::from(&t.weights).strided([0; 3]),
    );
    assert_eq!(msda::forward(&huge, &inputs).unwrap_err().kind(), ErrorKind::Memory);
    let upstream = View::from(&t.upstream).strided([0; 3]);
    assert_eq!(msda::backward(&huge, &inputs, upstream).unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(oracle::forward::<f64>(&huge, &inputs).unwrap_err().kind(), ErrorKind::Memory);
    assert_eq!(oracle::backward::<f64>(&huge, &inputs, &upstream).unwrap_err().kind(), ErrorKind::Memory);
}

/// Every instruction set of this machine, and the oracle.
fn backends() -> Vec<Box<dyn Backend>> {
    let sets = Isa::available().into_iter().map(|isa| Cpu::with_isa(isa).unwrap());
    sets.map(|cpu| Box::new(cpu) as Box<dyn Backend>).chain([Box::new(Oracle) as Box<dyn Backend>]).collect()
}

/// The results of one sample of a level whose pixels all hold `value`: the output and the gradients
/// of value, locations and weights.
fn sample(backend: &dyn Backend, p: &Problem, location: [f64; 2], numbers: [f64; 3]) -> [Vec<f64>; 4] {
    let (t, [value, weight, upstream]) = (p.types(), numbers);
    let tensors = Tensors {
        value: Buffer::filled(t.value, p.value_len(), value),
        locations: Buffer::from_fn(t.locations, 2, |axis| location[axis]),
        weights: Buffer::filled(t.weights, 1, weight),
        upstream: Buffer::filled(t.value, 1, upstream),
        ..Tensors::random(p, None)
    };
    let [output, value, locations, weights, _] = tensors.run(backend);
    [output, value, locations, weights].map(|buffer| buffer.to_f64())
}

/// Where the operator has no gradient, numbers that are not finite do not make one: `0 * inf` is
/// NaN.
#[test]
fn without_a_gradient_the_result_is_exactly_0() {
    let spec = sized([1; 4], &[(2, 2)], &[1]);
    let nearest = Spec { sampling: Sampling::Nearest, ..spec.clone() };
    let border = Spec { padding: Padding::Border, ..spec.clone() };
    // Problem, location, and which of its coordinates have no gradient.
    let cases = [
        (&nearest, [0.3, 0.3], [true, true]),
        (&border, [-1.0, 0.5], [true, false]),
        (&border, [0.5, 2.0], [false, true]),
        (&border, [2.0, -1.0], [true, true]),
        (&spec, [9.0, 0.5], [true, true]),
        (&spec, [f64::NAN, 0.5], [true, true]),
        (&spec, [f64::INFINITY, 0.5], [true, true]),
        (&border, [0.5, f64::INFINITY], [true, true]),
    ];
    for (backend, dtype) in backends().iter().flat_map(|b| [(b, Dtype::F32), (b, Dtype::F64)]) {
        for (spec, location, none) in cases {
            let p = Problem::new(Spec { types: Types::uniform(dtype), ..spec.clone() }).unwrap();
            let off_the_map = !location.iter().all(|t| t.is_finite()) || location[0] == 9.0;
            // The products of 1e25 overflow in f32.
            for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e25] {
                for numbers in
                    [[x, 1.0, 1.0], [1.0, x, 1.0], [1.0, 1.0, x], [x, 1.0, x], [1.0, x, 1e25], [x; 3]]
                {
                    let [output, value, locations, weights] = sample(&**backend, &p, location, numbers);
                    let what = format!("{} {p} {location:?} {numbers:?}: {locations:?}", backend.name());
                    assert!((0..2).all(|axis| !none[axis] || locations[axis] == 0.0), "{what}");
                    let zero = [output, value, weights].concat().iter().all(|x| *x == 0.0);
                    assert!(zero || !off_the_map, "{what}");
                }
            }
        }
    }
}

/// With `align_corners` a side of one pixel has a scale of 0, and `0 * inf` is NaN: the sample must
/// contribute nothing, as on any other level.
#[test]
fn locations_that_are_not_finite_read_nothing_on_a_side_of_one_pixel() {
    let options = [Sampling::Bilinear, Sampling::Nearest]
        .into_iter()
        .flat_map(|sampling| [Padding::Zeros, Padding::Border].map(|padding| (sampling, padding)));
    for ((sampling, padding), level) in options.flat_map(|o| [(1, 1), (1, 3), (3, 1)].map(|level| (o, level)))
    {
        let spec = Spec { align_corners: true, sampling, padding, ..sized([1; 4], &[level], &[1]) };
        let p = Problem::new(spec).unwrap();
        for backend in backends() {
            let run = |location| sample(&*backend, &p, location, [2.0, 3.0, 1.0]);
            for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                for location in [[x, 0.5], [0.5, x], [x, x]] {
                    let numbers = run(location).concat();
                    let name = backend.name();
                    assert!(numbers.iter().all(|&n| n == 0.0), "{name} {p} {location:?}: {numbers:?}");
                }
            }
            let numbers = run([0.5; 2]);
            assert_eq!(numbers[0], [6.0], "{p}: a finite location reads the map");
            assert_eq!(numbers, sample(&Oracle, &p, [0.5; 2], [2.0, 3.0, 1.0]), "{p}");
        }
    }
}

/// No destination in which two indices share an element is accepted, and a refusal writes nothing.
#[test]
fn overlapping_destinations_are_found() {
    let p = Problem::new(Spec { batch: 2, queries: 3, heads: 2, channels: 2, ..spec() }).unwrap();
    let t = Tensors::random(&p, None);
    let (extents, inner) = Role::Output.shape(&t.p);
    let mut rng = Rng::new(11);
    let (mut accepted, mut refused) = (0, 0);
    for _ in 0..3000 {
        let strides = [0; 3].map(|_| rng.below(16));
        let mut seen = std::collections::HashSet::new();
        let mut overlap = false;
        Role::Output.for_each_row(&t.p, |index| {
            let at = msda::backend::offset(strides, index);
            (at..at + inner).for_each(|element| overlap |= !seen.insert(element));
        });
        let len = strides.iter().zip(extents).map(|(s, n)| s * (n - 1)).sum::<usize>() + inner;
        let mut output = vec![f32::NAN; len];
        let view = ViewMut::from(&mut output).strided(strides);
        match Cpu::new().forward(&t.p, &t.inputs(), view) {
            Ok(()) => {
                assert!(!overlap, "strides {strides:?} overlap");
                assert_eq!(output.iter().filter(|x| !x.is_nan()).count(), seen.len());
                accepted += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Shape);
                assert!(output.iter().all(|x| x.is_nan()), "refused, but written");
                refused += usize::from(overlap);
            }
        }
    }
    assert!(accepted > 100 && refused > 100, "{accepted} accepted, {refused} refused");
}

/// Tensors that do not fit a problem are an error of `Role::read` and not a panic.
#[test]
fn reading_a_tensor_that_does_not_fit_is_an_error() {
    let p = Problem::new(spec()).unwrap();
    let value = vec![0.0f32; p.value_len()];
    assert!(Role::Value.read(&p, &View::from(&value)).is_ok());
    let cases = [
        (View::from(&value[1..]), ErrorKind::Shape),
        (View::from(&value).strided([usize::MAX; 3]), ErrorKind::Overflow),
        (View::from(&value).strided([1 << 20, 1, 1]), ErrorKind::Shape),
    ];
    for (view, kind) in cases {
        assert_eq!(Role::Value.read(&p, &view).unwrap_err().kind(), kind);
    }
    let double = vec![0.0f64; p.value_len()];
    assert_eq!(Role::Value.read(&p, &View::from(&double)).unwrap_err().kind(), ErrorKind::Type);
}
