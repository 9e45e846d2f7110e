//! The ladder on a GPU: every rung through the battery, and the same bits in every run.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use msda::conformance::{Group, run};
use msda::rng::Rng;
use msda::{Backend, Buffer, Cpu, Dtype, Inputs, Layout, Padding, Problem, Spec, Types};
use msda_cuda::variants::{Kernel, Rung, ladder};
use msda_cuda::{Cuda, Operands, Request, Target};

use common::device;

/// The battery, by a rung where it takes a case and by the generic kernel elsewhere; says how many it took.
fn battery(rung: &'static Rung) -> Option<(usize, Vec<String>, f64)> {
    let device = device()?;
    let target = Target::of(&device);
    let taken = Arc::new(AtomicUsize::new(0));
    let count = taken.clone();
    let backend = Cuda::with_pick(&device, rung.name, move |request| {
        let kernel = Kernel::Ladder(rung);
        let takes = kernel.refuses(request, &target).is_none();
        count.fetch_add(usize::from(takes), Ordering::Relaxed);
        takes.then_some(kernel)
    });
    let backend = &backend;
    let summaries: Vec<_> = std::thread::scope(|scope| {
        let threads = Group::ALL.map(|group| scope.spawn(move || run(backend, group, 1)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let failed = summaries.iter().flat_map(|s| &s.failed).map(ToString::to_string).collect();
    let worst = summaries.iter().fold(0.0, |worst: f64, s| worst.max(s.worst));
    Some((taken.load(Ordering::Relaxed), failed, worst))
}

#[test]
fn every_exact_rung_conforms() {
    let mut wrong = Vec::new();
    for rung in ladder::RUNGS.iter().filter(|rung| Kernel::Ladder(rung).is_exact()) {
        let Some((taken, failed, worst)) = battery(rung) else { return };
        eprintln!(
            "{}: took {taken} cases, {} wrong, worst error {worst:.2} of what is allowed",
            rung.name,
            failed.len()
        );
        if taken < 20 {
            wrong.push(format!("{} took only {taken} cases", rung.name));
        }
        wrong.extend(failed.iter().take(5).map(|why| format!("{}: {why}", rung.name)));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Values are at most 1 and weights add up to at most 1, so a distance that is off by half of 1/256 on both axes makes an
/// error of at most 1/128; roundings to `f16` make less than a quarter of that.
const CLOSE: f64 = 1.25 / 128.0;

/// The others, which have weights of 8 bits or products in `f16`, are close, and the same in every run.
#[test]
fn every_other_rung_is_close() {
    let Some(device) = device() else { return };
    for rung in ladder::RUNGS.iter().filter(|rung| !Kernel::Ladder(rung).is_exact()) {
        let target = Target::of(&device);
        let backend = Cuda::with_pick(&device, rung.name, move |request| {
            let kernel = Kernel::Ladder(rung);
            kernel.refuses(request, &target).is_none().then_some(kernel)
        });
        let mut taken = 0;
        for (dtype, layout, padding, channels) in [
            (Dtype::F16, Layout::Bshd, Padding::Zeros, 32),
            (Dtype::F32, Layout::Planar, Padding::Zeros, 24),
            (Dtype::F16, Layout::Planar, Padding::Border, 64),
        ] {
            let problem = Problem::new(Spec {
                batch: 2,
                queries: 301,
                heads: 3,
                channels,
                levels: vec![(13, 21), (7, 9), (1, 3)],
                points: vec![3, 0, 5],
                padding,
                layout,
                types: Types::with_f32_coordinates(dtype),
                ..Spec::default()
            })
            .unwrap();
            let operands = Operands::dense(&problem, None);
            let request = Request::new(&problem, &operands);
            taken += usize::from(Kernel::Ladder(rung).refuses(&request, &target).is_none());
            let mut rng = Rng::new(3);
            let value = Buffer::from_fn(dtype, problem.value_len(), |_| rng.unit() * 2.0 - 1.0);
            let locations = Buffer::from_fn(Dtype::F32, problem.locations_len(), |i| match i % 97 {
                0 => f64::NAN,
                _ => rng.unit() * 1.4 - 0.2,
            });
            let share = 1.0 / problem.samples() as f64;
            let weights = Buffer::from_fn(Dtype::F32, problem.weights_len(), |_| rng.unit() * share);
            let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
            let run = |backend: &dyn Backend| {
                let mut output = Buffer::filled(dtype, problem.output_len(), f64::NAN);
                backend.forward(&problem, &inputs, output.as_mut().into()).unwrap();
                output
            };
            let (expected, got) = (run(&Cpu::new()).to_f64(), run(&backend));
            assert_eq!(got.to_le_bytes(), run(&backend).to_le_bytes(), "{}: {problem} twice", rung.name);
            let errors = expected.iter().zip(got.to_f64()).map(|(a, b)| (a - b).abs());
            let worst = errors.fold(0.0, |worst: f64, e| if e > worst || e.is_nan() { e } else { worst });
            eprintln!("{}: {problem}: off by {worst:.5} at most", rung.name);
            assert!(worst <= CLOSE, "{}: {problem}: off by {worst}, at most {CLOSE}", rung.name);
        }
        assert!(taken > 0, "{} took nothing", rung.name);
    }
}
