//! Promises of the CPU backend beyond the conformance tests.

use msda::rng::Rng;
use msda::{
    Backend, Buffer, Cpu, Dtype, Gradients, Inputs, Isa, Problem, ReferenceKind, Role, Spec, Strides, View,
    ViewMut,
};

/// A tensor of some role with strides of its own.
struct Tensor {
    data: Buffer,
    strides: Strides,
}

impl Tensor {
    /// Outer strides are `apart` times the dense ones: with 2, as much memory lies between rows as
    /// in them.
    fn new(p: &Problem, role: Role, dtype: Dtype, apart: usize, number: impl FnMut(usize) -> f64) -> Self {
        let (extents, inner) = role.shape(p);
        let len = apart * extents.iter().product::<usize>() * inner;
        Self { data: Buffer::from_fn(dtype, len, number), strides: role.dense(p).map(|s| apart * s) }
    }

    fn view(&self) -> View<'_> {
        View::from(self.data.as_slice()).strided(self.strides)
    }

    fn view_mut(&mut self) -> ViewMut<'_> {
        ViewMut::from(self.data.as_mut()).strided(self.strides)
    }
}

/// Everything that a forward and a backward call write, as bytes.
fn everything(p: &Problem, fused: bool, apart: usize) -> Vec<Vec<u8>> {
    let mut r = Rng::new(3);
    let t = p.types();
    let reference = Role::Reference(ReferenceKind::Box);
    let tensor =
        |role, dtype, number: &mut dyn FnMut(usize) -> f64| Tensor::new(p, role, dtype, apart, number);
    let value = tensor(Role::Value, t.value, &mut |_| r.normal());
    let locations = tensor(Role::Locations, t.locations, &mut |_| r.between(-0.1, 1.1));
    let weights = tensor(Role::Weights, t.weights, &mut |_| r.normal());
    let boxes = tensor(reference, t.locations, &mut |_| r.between(0.1, 0.9));
    let upstream = tensor(Role::Output, t.value, &mut |_| r.normal());
    let mut inputs = Inputs::plain(value.view(), locations.view(), weights.view());
    if fused {
        inputs.reference = Some(msda::Reference { kind: ReferenceKind::Box, view: boxes.view() });
    }
    let nan = |role, dtype| tensor(role, dtype, &mut |_| f64::NAN);
    let mut output = nan(Role::Output, t.value);
    let mut gradients = [
        nan(Role::Value, t.value),
        nan(Role::Locations, t.locations),
        nan(Role::Weights, t.weights),
        nan(reference, t.locations),
    ];
    let cpu = Cpu::new();
    cpu.forward(p, &inputs, output.view_mut()).unwrap();
    let [value, locations, weights, reference] = gradients.each_mut().map(|t| Some(t.view_mut()));
    let reference = reference.filter(|_| fused);
    let to = Gradients { value, locations, weights, reference };
    cpu.backward(p, &inputs, upstream.view(), to).unwrap();
    std::iter::once(&output).chain(&gradients).map(|t| t.data.to_le_bytes()).collect()
}

fn pyramid(heads: usize, queries: usize, points: [usize; 3]) -> Spec {
    Spec {
        batch: 2,
        queries,
        heads,
        channels: 32,
        levels: vec![(40, 60), (20, 30), (5, 7)],
        points: points.to_vec(),
        ..Spec::default()
    }
}

/// The number of threads does not change the bits.
#[cfg(feature = "rayon")]
mod same_bits {
    use msda::{Dtype, Layout, Problem, Spec, Types};

    use super::{everything, pyramid};

    fn assert_same_bits(p: &Problem, fused: bool, apart: usize) {
        let with = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| everything(p, fused, apart))
        };
        let one = with(1);
        for threads in [2, 3, 7, 16] {
            let same = one == with(threads);
            assert!(
                same,
                "{p} fused={fused} apart={apart}: got other bits with {threads} threads than with 1"
            );
        }
    }

    /// Few points: one thread takes several heads together, many threads one head each. Few heads:
    /// many threads divide the levels, and then the rows.
    #[test]
    fn with_few_points_and_few_heads() {
        for (heads, queries, points) in
            [(8, 200, [4, 4, 2]), (1, 900, [4, 4, 2]), (3, 7, [4, 4, 2]), (8, 50, [1, 1, 1])]
        {
            for dtype in [Dtype::F32, Dtype::Bf16] {
                let spec = Spec { types: Types::uniform(dtype), ..pyramid(heads, queries, points) };
                let p = Problem::new(spec).unwrap();
                for fused in [false, true] {
                    assert_same_bits(&p, fused, 1);
                }
            }
        }
    }

    #[test]
    fn with_other_types_layouts_and_strides() {
        for (heads, queries) in [(8, 60), (1, 900)] {
            for dtype in [Dtype::F16, Dtype::F64] {
                for layout in [Layout::Bshd, Layout::PlanarRing] {
                    let types = Types::uniform(dtype);
                    let p =
                        Problem::new(Spec { types, layout, ..pyramid(heads, queries, [4, 0, 2]) }).unwrap();
                    for (fused, apart) in [(false, 1), (true, 1), (false, 2)] {
                        assert_same_bits(&p, fused, apart);
                    }
                }
            }
        }
    }

    /// The sums of one plane exceed the working memory of a task: even one thread divides it by
    /// rows.
    #[test]
    fn with_large_planes() {
        let spec =
            Spec { batch: 1, channels: 128, levels: vec![(128, 100), (5, 7)], ..pyramid(1, 3500, [4, 4, 2]) };
        let p = Problem::new(Spec { points: vec![4, 2], ..spec }).unwrap();
        assert_same_bits(&p, false, 1);
    }
}

#[test]
fn concurrent_callers_get_the_same_bits() {
    let p = Problem::new(pyramid(2, 100, [4, 4, 2])).unwrap();
    let alone = everything(&p, false, 1);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..8).map(|_| scope.spawn(|| everything(&p, false, 1))).collect();
        for caller in callers {
            assert!(caller.join().unwrap() == alone, "got other bits from a concurrent call");
        }
    });
}

/// Inputs with stride 0 repeat an index: the same bits as from a dense copy.
#[test]
fn broadcast_inputs_equal_dense_copies() {
    let p = Problem::new(pyramid(3, 20, [4, 4, 2])).unwrap();
    let mut r = Rng::new(5);
    // One row per tensor; value repeats its image, the others repeat image and query.
    let roles = [Role::Value, Role::Locations, Role::Weights, Role::Output];
    let once = roles.map(|role| {
        let (extents, inner) = role.shape(&p);
        let dense = role.dense(&p);
        let kept = if role == Role::Value { [0, dense[1], dense[2]] } else { [0, 0, dense[2]] };
        let len = if role == Role::Value { extents[1] * extents[2] * inner } else { extents[2] * inner };
        Tensor { data: Buffer::from_fn(Dtype::F32, len, |_| r.between(0.0, 1.0)), strides: kept }
    });
    let copies: Vec<Tensor> = roles
        .into_iter()
        .zip(&once)
        .map(|(role, once)| {
            let numbers = role.read(&p, &once.view()).unwrap();
            Tensor::new(&p, role, Dtype::F32, 1, |i| numbers[i])
        })
        .collect();
    let run = |[value, locations, weights, upstream]: [&Tensor; 4]| {
        let inputs = Inputs::plain(value.view(), locations.view(), weights.view());
        let mut output = vec![f32::NAN; p.output_len()];
        let (mut gv, mut gl) = (vec![f32::NAN; p.value_len()], vec![f32::NAN; p.locations_len()]);
        let mut gw = vec![f32::NAN; p.weights_len()];
        Cpu::new().forward(&p, &inputs, (&mut output).into()).unwrap();
        let to = Gradients {
            value: Some((&mut gv).into()),
            locations: Some((&mut gl).into()),
            weights: Some((&mut gw).into()),
            reference: None,
        };
        Cpu::new().backward(&p, &inputs, upstream.view(), to).unwrap();
        [output, gv, gl, gw]
    };
    let [value, locations, weights, upstream] = &copies[..] else { unreachable!("one copy per role") };
    let broadcast = run(once.each_ref());
    assert!(broadcast.iter().flatten().all(|x| x.is_finite()));
    assert_eq!(broadcast, run([value, locations, weights, upstream]));
}

/// Sizes that no tensor bounds, because another size is zero, must not be allocated.
#[test]
fn empty_problems_allocate_nothing() {
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
fn missing_instruction_sets_are_refused() {
    let lacking =
        Isa::ALL.into_iter().find(|isa| !isa.is_available()).expect("no machine has both AVX and NEON");
    let error = Cpu::with_isa(lacking).unwrap_err().to_string();
    assert!(error.contains("one this machine has"), "{error}");
}

/// Where a sample reads nothing, a weight that is not finite makes no gradient. A nearest sample of
/// a huge value makes none either.
#[test]
fn samples_that_read_nothing_have_no_gradient() {
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

/// With `align_corners` a side of one pixel has a scale of 0, and `0 * inf` is NaN: the sample must
/// contribute nothing, as on any other level.
#[test]
fn locations_that_are_not_finite_read_nothing_on_a_side_of_one_pixel() {
    let spec = |levels, sampling, padding| Spec {
        batch: 1,
        queries: 1,
        heads: 1,
        channels: 1,
        levels: vec![levels],
        points: vec![1],
        align_corners: true,
        sampling,
        padding,
        ..Spec::default()
    };
    let run = |backend: &dyn Backend, p: &Problem, location: [f32; 2]| {
        let (value, weights) = (vec![2.0f32; p.value_len()], [3.0f32]);
        let inputs = Inputs::plain(&value, location.as_slice(), weights.as_slice());
        let (mut output, mut gv) = ([f32::NAN], vec![f32::NAN; p.value_len()]);
        let (mut gl, mut gw) = ([f32::NAN; 2], [f32::NAN]);
        backend.forward(p, &inputs, output.as_mut_slice().into()).unwrap();
        let to = Gradients {
            value: Some((&mut gv).into()),
            locations: Some(gl.as_mut_slice().into()),
            weights: Some(gw.as_mut_slice().into()),
            reference: None,
        };
        backend.backward(p, &inputs, [1.0f32].as_slice().into(), to).unwrap();
        [output.to_vec(), gv, gl.to_vec(), gw.to_vec()].concat()
    };
    for levels in [(1, 1), (1, 3), (3, 1)] {
        for sampling in [msda::Sampling::Bilinear, msda::Sampling::Nearest] {
            for padding in [msda::Padding::Zeros, msda::Padding::Border] {
                let p = Problem::new(spec(levels, sampling, padding)).unwrap();
                for x in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    for location in [[x, 0.5], [0.5, x], [x, x]] {
                        for isa in Isa::available() {
                            let numbers = run(&Cpu::with_isa(isa).unwrap(), &p, location);
                            assert!(numbers.iter().all(|&n| n == 0.0), "{isa} {p} {location:?}: {numbers:?}");
                        }
                        let numbers = run(&msda::oracle::Oracle, &p, location);
                        assert!(numbers.iter().all(|&n| n == 0.0), "oracle {p} {location:?}: {numbers:?}");
                    }
                }
                let numbers = run(&Cpu::new(), &p, [0.5; 2]);
                assert_eq!(numbers[0], 6.0, "{p}: a finite location reads the map");
                assert_eq!(numbers, run(&msda::oracle::Oracle, &p, [0.5; 2]), "{p}");
            }
        }
    }
}

/// Strides of an empty tensor, or of a dimension of size 1, are not used.
#[test]
fn unused_strides_may_be_anything() {
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
    // One pixel: the stride between positions is not used.
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
