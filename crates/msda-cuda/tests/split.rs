//! One GPU given several times: the parts of a call are put together correctly.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.

mod common;

use msda::conformance::run;
use msda::rng::Rng;
use msda::{Backend as _, Buffer, Cpu, Dtype, ErrorKind, Inputs, Problem, Spec, Types};
use msda_cuda::Split;
use msda_cuda::driver::Device;

use common::{device, groups};

fn repeated(device: &Device, times: usize) -> Split {
    Split::new(&vec![device.clone(); times]).unwrap()
}

/// Two parts are images or heads, or all of a small call.
#[test]
fn one_device_given_twice_conforms() {
    let Some(device) = device() else { return };
    let split = &repeated(&device, 2);
    // Most of the time goes into compiling: one thread per group.
    let summaries: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups().into_iter().map(|group| scope.spawn(move || run(split, group, 1))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let failed: Vec<String> = summaries.iter().flat_map(|s| &s.failed).map(ToString::to_string).collect();
    let passed: usize = summaries.iter().map(|s| s.passed).sum();
    eprintln!("{}: {passed} passed", split.name());
    assert!(failed.is_empty() && passed > 0, "{passed} passed, failed:\n{}", failed.join("\n"));
}

/// Images alone, images and heads, more devices than planes.
#[test]
fn any_number_of_devices_gives_the_result_of_the_cpu() {
    let Some(device) = device() else { return };
    for (batch, heads, devices) in [(5, 3, 2), (2, 8, 5), (1, 4, 3), (1, 2, 4)] {
        let problem = Problem::new(Spec {
            batch,
            queries: 70,
            heads,
            channels: 16,
            levels: vec![(12, 17), (6, 9)],
            points: vec![4, 4],
            types: Types::uniform(Dtype::F32),
            ..Spec::default()
        })
        .unwrap();
        let mut rng = Rng::new(7);
        let mut random = |len| Buffer::from_fn(Dtype::F32, len, |_| rng.unit());
        let (value, locations, weights) =
            (random(problem.value_len()), random(problem.locations_len()), random(problem.weights_len()));
        let inputs = Inputs::plain(value.as_slice(), locations.as_slice(), weights.as_slice());
        let mut output = Buffer::filled(Dtype::F32, problem.output_len(), f64::NAN);
        repeated(&device, devices).run(&problem, &inputs, output.as_mut().into()).unwrap();
        let mut want = Buffer::filled(Dtype::F32, problem.output_len(), f64::NAN);
        Cpu::new().forward(&problem, &inputs, want.as_mut().into()).unwrap();
        for (i, (got, want)) in output.to_f64().iter().zip(want.to_f64()).enumerate() {
            assert!(
                (got - want).abs() <= 1e-4,
                "{problem} on {devices} devices, element {i}: got {got}, expected {want}"
            );
        }
    }
}

#[test]
fn no_device_is_refused() {
    let error = Split::new(&[]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
}
