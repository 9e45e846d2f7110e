//! Rungs of the ladder as engines on a GPU.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.

use msda::Dtype;
use msda_bench::bench::{self, Progress};
use msda_cuda::driver::Device as Gpu;
use msda_study::registry;

struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _total: usize) {}
    fn step(&mut self, _what: &str) {}
    fn note(&mut self, _what: &str) {}
}

#[test]
fn rungs_that_refuse_a_workload_are_listed_and_the_others_are_measured() {
    if let Err(why) = Gpu::open(0) {
        assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    let (base, half, matrix) = ("cuda:ladder:base", "cuda:ladder:base+half", "cuda:ladder:tensor_core");
    let options = bench::Options {
        workloads: vec!["small".into()],
        engines: [half, matrix, base].map(String::from).into(),
        dtypes: vec![Dtype::F32, Dtype::F16],
        device: None,
        pass: None,
        threads: Vec::new(),
        quick: true,
        command: "test".into(),
    };
    let record = bench::run(&options, &registry(), &mut Silent).unwrap();
    let of = |engine: &str| record.measurements.iter().filter(|m| m.engine == engine).collect::<Vec<_>>();
    assert_eq!((of(base).len(), of(half).len(), of(matrix).len()), (2, 1, 1), "{:?}", record.skipped);
    assert!(of(base).iter().all(|m| !m.check.inexact && m.check.compared > 0));
    assert!(of(half).iter().all(|m| m.check.inexact));
    let said = |engine: &str| record.skipped.iter().any(|s| s.what == format!("small {engine} f32"));
    assert!(said(half) && said(matrix) && !said(base), "{:?}", record.skipped);
}
