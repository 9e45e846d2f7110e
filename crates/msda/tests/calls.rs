//! Calls that are accepted and refused: allocating calls, strides of 0, overlapping destinations.

use msda::oracle::{self, Oracle};
use msda::rng::Rng;
use msda::{
    Backend, Buffer, Cpu, Dtype, ErrorKind, Gradients, Inputs, Problem, ReferenceKind, Role, Spec, Types,
    View, ViewMut,
};

fn spec() -> Spec {
    Spec {
        batch: 2,
        queries: 5,
        heads: 3,
        channels: 9,
        levels: vec![(6, 5), (3, 2)],
        points: vec![2, 1],
        ..Spec::default()
    }
}

fn random(dtype: Dtype, len: usize, rng: &mut Rng) -> Buffer {
    Buffer::from_fn(dtype, len, |_| rng.between(0.1, 0.9))
}

/// The tensors of a call, fused or plain.
struct Tensors {
    p: Problem,
    value: Buffer,
    locations: Buffer,
    weights: Buffer,
    reference: Option<Buffer>,
    upstream: Buffer,
}

impl Tensors {
    fn new(p: Problem, fused: bool) -> Self {
        let (t, r) = (p.types(), &mut Rng::new(5));
        Self {
            value: random(t.value, p.value_len(), r),
            locations: random(t.locations, p.locations_len(), r),
            weights: random(t.weights, p.weights_len(), r),
            reference: fused.then(|| random(t.locations, p.reference_len(4), r)),
            upstream: random(t.value, p.output_len(), r),
            p,
        }
    }

    fn inputs(&self) -> Inputs<'_> {
        match &self.reference {
            None => Inputs::plain(&self.value, &self.locations, &self.weights),
            Some(r) => Inputs::fused(&self.value, ReferenceKind::Box, r, &self.locations, &self.weights),
        }
    }
}

#[test]
fn allocating_calls_give_the_same_bits_as_calls_with_destinations() {
    for dtype in Dtype::ALL {
        for fused in [false, true] {
            let types = Types::with_value(dtype);
            let t = Tensors::new(Problem::new(Spec { types, ..spec() }).unwrap(), fused);
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
            assert_eq!(all.reference.map(|r| r.len()), fused.then(|| t.p.reference_len(4)));
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
    let t = Tensors::new(huge.with(|s| s.queries = 1).unwrap(), false);
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

/// An input whose stride is 0 gives the bits of the same input with its elements repeated.
#[test]
fn a_stride_of_0_repeats_elements() {
    let t = Tensors::new(Problem::new(spec()).unwrap(), true);
    let roles = [Role::Value, Role::Locations, Role::Weights, Role::Reference(ReferenceKind::Box)];
    for (which, role) in roles.into_iter().enumerate() {
        for dim in 0..3 {
            let mut strides = role.dense(&t.p);
            strides[dim] = 0;
            let mut inputs = t.inputs();
            let mut reference = inputs.reference.unwrap();
            let view = match which {
                0 => &mut inputs.value,
                1 => &mut inputs.locations,
                2 => &mut inputs.weights,
                _ => &mut reference.view,
            };
            *view = view.strided(strides);
            let repeated = role.read(&t.p, view).unwrap();
            let repeated = Buffer::from_fn(Dtype::F32, repeated.len(), |i| repeated[i]);
            inputs.reference = Some(reference);

            let mut copied = inputs;
            match which {
                0 => copied.value = View::from(&repeated),
                1 => copied.locations = View::from(&repeated),
                2 => copied.weights = View::from(&repeated),
                _ => copied.reference = Some(msda::Reference { view: View::from(&repeated), ..reference }),
            }
            for backend in [&Cpu::new() as &dyn Backend, &Oracle] {
                let bits = |inputs: &Inputs<'_>| {
                    let g = backend.gradients(&t.p, inputs, View::from(&t.upstream)).unwrap();
                    let output = backend.output(&t.p, inputs).unwrap();
                    let all = [output, g.value, g.locations, g.weights, g.reference.unwrap()];
                    all.map(|buffer| buffer.to_le_bytes())
                };
                assert!(
                    bits(&inputs) == bits(&copied),
                    "{}: {role:?} with strides {strides:?}",
                    backend.name()
                );
            }
        }
    }
}

/// A destination in which two indices share an element is refused, stride 0 included.
#[test]
fn a_destination_with_stride_0_is_refused() {
    let t = Tensors::new(Problem::new(spec()).unwrap(), false);
    for dim in 0..3 {
        let mut strides = Role::Output.dense(&t.p);
        strides[dim] = 0;
        let mut output = vec![7.0f32; t.p.output_len()];
        let view = ViewMut::from(&mut output).strided(strides);
        let error = Cpu::new().forward(&t.p, &t.inputs(), view).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Shape, "{error}");
        assert!(output.iter().all(|&x| x == 7.0));
    }
}

/// No destination in which two indices share an element is accepted, and a refusal writes nothing.
#[test]
fn overlapping_destinations_are_found() {
    let p = Problem::new(Spec { batch: 2, queries: 3, heads: 2, channels: 2, ..spec() }).unwrap();
    let t = Tensors::new(p, false);
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
