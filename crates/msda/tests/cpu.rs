//! Promises of the CPU backend beyond the conformance tests.

mod common;

use common::{Tensors, sized};
use msda::{Backend, Cpu, Gradients, Inputs, Isa, Problem, ReferenceKind, Spec, View, ViewMut};

/// Everything that a forward and a backward call write, as bytes.
fn everything(p: &Problem, fused: bool, apart: usize) -> [Vec<u8>; 5] {
    let kind = fused.then_some(ReferenceKind::Box);
    Tensors::random_apart(p, kind, apart).run(&Cpu::new()).map(|written| written.to_le_bytes())
}

fn pyramid(heads: usize, queries: usize, points: [usize; 3]) -> Spec {
    sized([2, queries, heads, 32], &[(40, 60), (20, 30), (5, 7)], &points)
}

/// The number of threads does not change the bits.
#[cfg(feature = "rayon")]
mod same_bits {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use msda::{Dtype, Layout, Problem, Spec, Threads, Types};

    use super::{everything, pyramid, sized};

    /// Threads of the caller: three new ones for every loop. Counts the indices.
    struct Scoped(AtomicUsize);

    impl Threads for Scoped {
        fn count(&self) -> usize {
            3
        }

        fn for_each(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
            self.0.fetch_add(n, Ordering::Relaxed);
            std::thread::scope(|scope| {
                for first in 0..3 {
                    scope.spawn(move || (first..n).step_by(3).for_each(work));
                }
            });
        }
    }

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
        let threads = Arc::new(Scoped(AtomicUsize::new(0)));
        let same = one == msda::with_threads(threads.clone(), || everything(p, fused, apart));
        assert!(same, "{p} fused={fused} apart={apart}: got other bits with threads of the caller");
        assert!(threads.0.load(Ordering::Relaxed) > 0, "{p}: the threads of the caller did nothing");
    }

    /// A pool that calls some indices twice, some not at all, and others that do not exist.
    struct Wrong;

    impl Threads for Wrong {
        fn count(&self) -> usize {
            3
        }

        fn for_each(&self, n: usize, work: &(dyn Fn(usize) + Sync)) {
            (n / 2..n + 2).chain(0..n / 3).chain(0..n / 4).for_each(work);
        }
    }

    #[test]
    fn with_threads_that_do_not_keep_their_promise() {
        for (heads, queries) in [(8, 200), (1, 900)] {
            let p = Problem::new(pyramid(heads, queries, [4, 4, 2])).unwrap();
            let wrong = msda::with_threads(Arc::new(Wrong), || everything(&p, false, 1));
            assert!(wrong == everything(&p, false, 1), "{p}");
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
        let spec = sized([1, 3500, 1, 128], &[(128, 100), (5, 7)], &[4, 2]);
        let p = Problem::new(spec).unwrap();
        assert_same_bits(&p, false, 1);
    }
}

/// Planes that are divided by rows, beside the oracle.
#[cfg(feature = "rayon")]
mod bands {
    use msda::conformance::{Budget, compare};
    use msda::rng::Rng;
    use msda::{Buffer, Cpu, Dtype, Problem, Spec, Types};

    use super::{Tensors, sized};

    /// All samples lie in rows from `rows[0]` to `rows[1]` of their level, of height 1.
    fn check(spec: Spec, dtype: Dtype, rows: [f64; 2], threads: usize) {
        let p = Problem::new(Spec { types: Types::with_value(dtype), ..spec }).unwrap();
        let (mut r, [low, high]) = (Rng::new(6), rows);
        let place = |i| if i % 2 == 0 { r.between(-0.1, 1.1) } else { r.between(low, high) };
        let locations = Buffer::from_fn(p.types().locations, p.locations_len(), place);
        let tensors = Tensors { locations, ..Tensors::random(&p, None) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let got = pool.install(|| tensors.run(&Cpu::new()));
        let budget = Budget::new(&p, &tensors.inputs(), &tensors.upstream(), true).unwrap();
        for (i, (got, want)) in
            got.iter().zip(std::iter::once(&budget.output).chain(&budget.grads)).enumerate()
        {
            if let Err(why) = compare(&got.to_f64(), &want.exact, want.tolerance) {
                panic!("{p} rows={rows:?} threads={threads}: result {i}: {why}");
            }
        }
    }

    /// Bands by memory, with one thread, and by the number of threads.
    #[test]
    fn that_no_query_reaches_are_zero() {
        for dtype in Dtype::ALL {
            for rows in [[0.6, 0.9], [0.1, 0.3], [-0.1, 1.1]] {
                check(sized([1, 100, 1, 32], &[(200, 200)], &[4]), dtype, rows, 1);
                check(sized([2, 20, 3, 32], &[(40, 14)], &[4]), dtype, rows, 5);
                check(sized([1, 900, 1, 32], &[(40, 14), (5, 7)], &[4, 2]), dtype, rows, 16);
            }
        }
    }

    /// So many positions that no row has a slot.
    #[test]
    fn of_the_largest_planes_are_right() {
        check(sized([1, 300, 1, 1], &[(600, 600)], &[4]), Dtype::Bf16, [-0.1, 1.1], 1);
        check(sized([1, 3500, 1, 128], &[(128, 100), (5, 7)], &[4, 2]), Dtype::F32, [-0.1, 1.1], 1);
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
        let mut spec = sized([1, 2, 2, 4], &[(1, 1)], &[1]);
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

/// Strides of an empty tensor, or of a dimension of size 1, are not used.
#[test]
fn unused_strides_may_be_anything() {
    let p = Problem::new(sized([1, 2, 2, 4], &[(3, 3)], &[0])).unwrap();
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
