//! The kernels of this project as engines on a GPU.
//!
//! Without a GPU every test prints that it skipped; with `MSDA_GPU=1` in the environment it fails.

#[path = "../../msda-cuda/tests/common/mod.rs"]
mod common;

use std::time::Duration;

use msda::Dtype;
use msda_bench::bench::{self, Silent};
use msda_bench::check::Expected;
use msda_bench::engines::{Engine as _, Registry};
use msda_bench::gpu::Cuda;
use msda_bench::gpu::measure::{Resident, Setup};
use msda_bench::gpu::tune::{self, Job};
use msda_bench::random;
use msda_bench::record::{Device, Pass};
use msda_bench::task::Task;
use msda_bench::timing::Effort;
use msda_bench::workload::Workload;
use msda_cuda::kernels::Kernel;
use msda_cuda::{Levels, choose};

use common::device as gpu;

#[test]
fn the_engine_is_right_and_names_its_kernel() {
    let Some(_) = gpu() else { return };
    let workload = Workload::find("small").unwrap();
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let data = workload.data(dtype).unwrap();
        let expected = Expected::new(&data, "small").unwrap();
        for name in ["cuda", "cuda:generic", "cuda@0", "cuda:levels", "cuda:atomic"] {
            let mut engine = Cuda::open(name).unwrap();
            assert_eq!(
                (engine.name().as_str(), engine.device(), engine.is_cold()),
                (name, Device::Cuda, true)
            );
            for pass in [Pass::Forward, Pass::Backward] {
                let task = Task::whole(&data, pass);
                if !engine.computes(pass) {
                    assert_eq!((name, pass), ("cuda:atomic", Pass::Forward));
                    assert!(engine.refuses(&task).unwrap().contains("forward pass"));
                    continue;
                }
                // What ran is known for the pass that ran.
                assert_eq!((engine.refuses(&task), engine.launching(&task).kernel), (None, None));
                let check = expected.check(&mut engine, &data, pass, true).unwrap();
                assert!(check.compared > 0 && !check.inexact);
                let kernel = engine.launching(&task).kernel.unwrap();
                assert_eq!(kernel == "generic", name == "cuda:generic", "{kernel}");
                let effort = Effort { budget: Duration::from_millis(50), at_most: 1000, ..Effort::FULL };
                let times = engine.time(&task, effort).unwrap();
                assert!((3..=200).contains(&times.len()) && times.iter().all(|t| *t > 0.0), "{times:?}");
                assert_eq!(engine.launching(&task).kernel, Some(kernel));
                let measured = engine.launching(&task);
                assert!(measured.host_us.is_some_and(|us| us > 0.0 && us < 1000.0));
                assert!(measured.replay.is_some_and(|r| r.cold > 0.0 && r.warm > 0.0));
            }
        }
    }
    let missing = Cuda::open("cuda@99").err().map(|why| format!("{why:#}"));
    assert!(missing.is_some_and(|why| why.contains("below")));
}

#[test]
fn cold_runs_are_slower_than_warm_ones_and_graphs_compute_the_same() {
    let Some(gpu) = gpu() else { return };
    let data = Workload::find("seed-encoder").unwrap().data(Dtype::F16).unwrap();
    let task = Task::whole(&data, Pass::Forward);
    let mut resident = Resident::new(&gpu, &Setup::forward(&task.problem, &task.inputs), None).unwrap();
    resident.poison().unwrap();
    assert!(resident.output().unwrap().to_f64().iter().all(|x| x.is_nan()));
    resident.run().unwrap();
    let output = resident.output().unwrap().to_f64();
    let median = |mut times: Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    let (cold, warm) = (resident.time(20, true).unwrap(), resident.time(20, false).unwrap());
    assert_eq!((cold.len(), warm.len()), (20, 20));
    assert!(median(cold) > median(warm));
    resident.poison().unwrap();
    assert_eq!(resident.time_graph(3, true).unwrap().len(), 3);
    assert_eq!(resident.output().unwrap().to_f64(), output);
    // Another kernel on the same tensors.
    resident.replan(Some(Kernel::Generic)).unwrap();
    resident.poison().unwrap();
    resident.run().unwrap();
    assert_eq!(resident.plan().choice().kernel, Kernel::Generic);
    assert!(resident.output().unwrap().to_f64().iter().all(|x| x.is_finite()));
}

/// Gradients are poisoned, written by each run, and the same from a graph.
#[test]
fn gradients_stay_on_the_device_and_have_the_same_bits_on_every_run() {
    let Some(gpu) = gpu() else { return };
    let data = Workload::find("small").unwrap().data(Dtype::F16).unwrap();
    let task = Task::whole(&data, Pass::Backward);
    for levels in [Levels::Host, Levels::Device] {
        let setup = Setup { levels, ..Setup::backward(&task.problem, &task.inputs, task.grad_output) };
        let mut resident = Resident::new(&gpu, &setup, None).unwrap();
        let bytes = |resident: &Resident| {
            resident.results().unwrap().iter().map(msda::Buffer::to_le_bytes).collect::<Vec<_>>()
        };
        resident.poison().unwrap();
        let results = resident.results().unwrap();
        assert_eq!(results.len(), 3);
        assert!(results.iter().all(|r| r.to_f64().iter().all(|x| x.is_nan())));
        assert!(resident.output().is_err(), "the backward pass has no output");
        resident.run().unwrap();
        let first = bytes(&resident);
        assert!(resident.results().unwrap().iter().all(|r| r.to_f64().iter().all(|x| x.is_finite())));
        assert!(resident.host_cost().unwrap() > 0.0);
        resident.poison().unwrap();
        assert_eq!(resident.time_graph(3, true).unwrap().len(), 3);
        assert!(bytes(&resident) == first);
        resident.replan(Some(Kernel::Generic)).unwrap();
        resident.poison().unwrap();
        resident.run().unwrap();
        assert!(resident.results().unwrap().iter().all(|r| r.to_f64().iter().all(|x| x.is_finite())));
    }
}

#[test]
fn the_benchmark_measures_both_passes_of_the_gpu_with_floors() {
    let Some(_) = gpu() else { return };
    let options = bench::Options {
        workloads: vec!["small".into(), "seed-decoder".into()],
        engines: ["cuda", "cuda:generic", "cuda:atomic"].map(String::from).into(),
        quick: true,
        ..bench::Options::default()
    };
    let record = bench::run(&options, &Registry::default(), &mut Silent).unwrap();
    let of = |pass, engine: &str| {
        record.measurements.iter().filter(|m| m.pass == pass && m.engine == engine).count()
    };
    for engine in ["cuda", "cuda:generic"] {
        let counts = (of(Pass::Forward, engine), of(Pass::Backward, engine));
        assert_eq!(counts, (2 * 3, 2 * 3), "{engine}: workloads, types");
    }
    assert_eq!((of(Pass::Forward, "cuda:atomic"), of(Pass::Backward, "cuda:atomic")), (0, 2 * 3));
    for m in &record.measurements {
        assert_eq!((m.device, m.cold), (Device::Cuda, true));
        assert!(m.kernel.is_some() && m.work.floor_ms > 0.0 && m.check.compared > 0, "{m:?}");
    }
    assert!(record.ceilings.iter().all(|c| c.device == Device::Cuda && c.rate > 0.0));
    let skipped: Vec<&str> = record.skipped.iter().map(|s| s.what.as_str()).collect();
    assert_eq!(skipped, ["cuda:atomic forward"]);
}

/// One pass where one is asked for. A kernel is checked by the call that is timed: it may refuse
/// the few queries which the oracle evaluates.
#[test]
fn what_is_asked_for_is_measured() {
    let Some(_) = gpu() else { return };
    for (workload, engine, pass) in
        [("small", "cuda", Pass::Backward), ("detr-encoder", "cuda:rows:walk=tiles", Pass::Forward)]
    {
        let options = bench::Options {
            workloads: vec![workload.into()],
            engines: vec![engine.into()],
            dtypes: vec![Dtype::F16],
            pass: Some(pass),
            quick: true,
            ..bench::Options::default()
        };
        let record = bench::run(&options, &Registry::default(), &mut Silent).unwrap();
        let passes: Vec<Pass> = record.measurements.iter().map(|m| m.pass).collect();
        assert_eq!(passes, [pass], "{engine}: {:?}", record.skipped);
    }
}

#[test]
fn tuning_checks_times_and_writes_a_line() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tuned.txt");
    let mut classes = Vec::new();
    for pass in [Pass::Forward, Pass::Backward] {
        let job = Job::new(&gpu, &Workload::find("small").unwrap(), Dtype::F16, pass, 6).unwrap();
        assert!(job.tried.len() == 6 && job.tried[0] == job.now);
        let tuned = job.run(&gpu, &mut Silent).unwrap();
        assert_eq!(tuned.timed + tuned.rejected.len(), 6, "{pass}: {:?}", tuned.rejected);
        assert!(tuned.timed > 1, "{pass}: {:?}", tuned.rejected);
        assert!(tuned.before.is_some() && tuned.best.windows(2).all(|w| w[0].1 <= w[1].1));
        tune::save(&path, &choose::Header::of(&gpu), &[tuned]).unwrap();
        classes.push(job.class.clone());
    }
    let read = choose::Tuned::parse_file(&std::fs::read_to_string(&path).unwrap(), &path);
    assert!(classes.iter().all(|class| read.find(class, gpu.sms()).is_some()), "{classes:?}");
    assert!(read.problems().is_empty(), "{:?}", read.problems());
}

#[test]
fn random_problems_are_checked_and_timed() {
    let Some(_) = gpu() else { return };
    let (workloads, engines) = (random::names(3, 6), vec!["cuda".into()]);
    let options = bench::Options { workloads, engines, brief: true, ..bench::Options::default() };
    let record = bench::run(&options, &Registry::default(), &mut Silent).unwrap();
    assert_eq!((record.measurements.len(), record.skipped.as_slice()), (12, &[][..]));
    assert!(record.measurements.iter().all(|m| m.cold && m.kernel.is_some() && m.host_us.is_none()));
}
