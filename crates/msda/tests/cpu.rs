//! What the CPU backend promises beyond the battery.

use msda::rng::Rng;
use msda::{
    Backend, Buffer, Cpu, Dtype, Gradients, Inputs, Isa, Problem, ReferenceKind, Spec, Types, View, ViewMut,
};

/// Everything a call writes, as bytes.
fn everything(p: &Problem, fused: bool) -> Vec<Vec<u8>> {
    let mut r = Rng::new(3);
    let t = p.types();
    let value = Buffer::from_fn(t.value, p.value_len(), |_| r.normal());
    let locations = Buffer::from_fn(t.locations, p.locations_len(), |_| r.between(-0.1, 1.1));
    let weights = Buffer::from_fn(t.weights, p.weights_len(), |_| r.normal());
    let reference = Buffer::from_fn(t.locations, p.reference_len(4), |_| r.between(0.1, 0.9));
    let upstream = Buffer::from_fn(t.value, p.output_len(), |_| r.normal());
    let mut inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
    if fused {
        let kind = ReferenceKind::Box;
        inputs.reference = Some(msda::Reference { kind, view: reference.as_slice().into() });
    }
    let mut out = Buffer::filled(t.value, p.output_len(), f64::NAN);
    let mut grads = [
        Buffer::filled(t.value, p.value_len(), f64::NAN),
        Buffer::filled(t.locations, p.locations_len(), f64::NAN),
        Buffer::filled(t.weights, p.weights_len(), f64::NAN),
        Buffer::filled(t.locations, p.reference_len(4), f64::NAN),
    ];
    let cpu = Cpu::new();
    cpu.forward(p, &inputs, out.as_mut().into()).unwrap();
    let [value, locations, weights, reference] = grads.each_mut().map(|b| Some(ViewMut::from(b.as_mut())));
    let reference = reference.filter(|_| fused);
    let to = Gradients { value, locations, weights, reference };
    cpu.backward(p, &inputs, upstream.as_slice().into(), to).unwrap();
    std::iter::once(&out).chain(&grads).map(Buffer::to_le_bytes).collect()
}

#[test]
fn the_bits_do_not_depend_on_the_number_of_threads() {
    // With few points one thread takes heads together, and many threads take them one by one.
    for (heads, queries, points) in
        [(8, 200, [4, 4, 2]), (1, 900, [4, 4, 2]), (3, 7, [4, 4, 2]), (8, 50, [1, 1, 1])]
    {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            let p = Problem::new(Spec {
                batch: 2,
                queries,
                heads,
                channels: 32,
                levels: vec![(40, 60), (20, 30), (5, 7)],
                points: points.to_vec(),
                types: Types::uniform(dtype),
                ..Spec::default()
            })
            .unwrap();
            for fused in [false, true] {
                let with = |threads| {
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| everything(&p, fused))
                };
                let one = with(1);
                for threads in [2, 3, 7] {
                    assert!(
                        one == with(threads),
                        "{p} fused={fused}: {threads} threads give other bits than 1"
                    );
                }
            }
        }
    }
}

/// Sizes that no tensor bounds, because another one is zero, must not be allocated.
#[test]
fn nothing_to_compute_takes_nothing() {
    let huge = 1 << 40;
    for change in [
        |s: &mut Spec| (s.queries, s.points) = (0, vec![1 << 40]),
        |s: &mut Spec| (s.heads, s.points) = (0, vec![1 << 40]),
        |s: &mut Spec| (s.batch, s.positions) = (0, Some(1 << 40)),
        |s: &mut Spec| (s.batch, s.heads, s.positions) = (2, 0, Some(1 << 40)),
    ] {
        let mut spec = Spec {
            batch: 1,
            queries: 2,
            heads: 2,
            channels: 4,
            levels: vec![(1, 1)],
            points: vec![1],
            ..Spec::default()
        };
        change(&mut spec);
        let p = Problem::new(spec).unwrap();
        assert!(p.samples() == huge || p.positions() == huge);
        let none: &[f32] = &[];
        let value = vec![1.0f32; p.value_len()];
        let mut grad_value = vec![f32::NAN; p.value_len()];
        let inputs = Inputs::plain(&value, none, none);
        Cpu::new().forward(&p, &inputs, (&mut [] as &mut [f32]).into()).unwrap();
        let to = Gradients { value: Some((&mut grad_value).into()), ..Gradients::default() };
        Cpu::new().backward(&p, &inputs, none.into(), to).unwrap();
        assert!(grad_value.iter().all(|&x| x == 0.0));
    }
}

#[test]
fn an_instruction_set_the_machine_lacks_is_refused() {
    let lacking =
        Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no machine has both AVX and NEON");
    let error = Cpu::with_isa(lacking).unwrap_err().to_string();
    assert!(error.contains("one this machine has"), "{error}");
}

/// Weights that are not finite make no gradient where nothing was read, nor do nearest samples of huge values.
#[test]
fn what_reads_nothing_has_no_gradient() {
    let spec = Spec {
        batch: 1,
        queries: 1,
        heads: 1,
        channels: 1,
        levels: vec![(2, 2)],
        points: vec![1],
        ..Spec::default()
    };
    let gradient = |spec: Spec, value: f32, location: f32, weight: f32| {
        let p = Problem::new(spec).unwrap();
        let (value, locations, weights) = ([value; 4], [location; 2], [weight]);
        let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
        let mut grad = [f32::NAN; 2];
        let to = Gradients { locations: Some(grad.as_mut_slice().into()), ..Gradients::default() };
        Cpu::new().backward(&p, &inputs, [1e25f32].as_slice().into(), to).unwrap();
        grad
    };
    for location in [f32::NAN, f32::INFINITY, 9.0] {
        for weight in [f32::NAN, f32::INFINITY] {
            assert_eq!(gradient(spec.clone(), 1.0, location, weight), [0.0; 2], "{location} {weight}");
        }
    }
    let nearest = Spec { sampling: msda::Sampling::Nearest, ..spec };
    assert_eq!(gradient(nearest, 1e25, 0.3, 1.0), [0.0; 2]);
}

/// An empty tensor's strides lead nowhere, whatever they are.
#[test]
fn strides_that_are_never_taken_may_be_anything() {
    let spec = Spec {
        batch: 1,
        queries: 2,
        heads: 2,
        channels: 4,
        levels: vec![(3, 3)],
        points: vec![0],
        ..Spec::default()
    };
    let p = Problem::new(spec).unwrap();
    let (value, none) = (vec![1.0f32; p.value_len()], Vec::<f32>::new());
    let mut output = vec![f32::NAN; p.output_len()];
    for strides in [[8, 4, 2], [usize::MAX; 3]] {
        let inputs =
            Inputs::plain(&value, View::from(&none).strided(strides), View::from(&none).strided(strides));
        Cpu::new().forward(&p, &inputs, (&mut output).into()).unwrap();
        assert!(output.iter().all(|&x| x == 0.0));
        let (mut gl, mut gw) = (Vec::<f32>::new(), Vec::<f32>::new());
        let to = Gradients {
            locations: Some(ViewMut::from(&mut gl).strided(strides)),
            weights: Some(ViewMut::from(&mut gw).strided(strides)),
            ..Gradients::default()
        };
        Cpu::new().backward(&p, &inputs, (&output.clone()).into(), to).unwrap();
    }
    // One pixel: the position's stride is never taken.
    let p = p.with(|s| (s.levels, s.points, s.batch, s.queries) = (vec![(1, 1)], vec![1], 1, 1)).unwrap();
    let (value, locations, weights) = ([2.0f32; 8], [0.5f32; 4], [1.0f32; 2]);
    let mut output = [0.0f32; 8];
    let inputs = Inputs::plain(
        View::from(value.as_slice()).strided([9, usize::MAX, 4]),
        locations.as_slice(),
        weights.as_slice(),
    );
    Cpu::new().forward(&p, &inputs, output.as_mut_slice().into()).unwrap();
    assert_eq!(output, [2.0; 8]);
}
