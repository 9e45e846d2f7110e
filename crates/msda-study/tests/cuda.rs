//! Rungs of the ladder as engines on a GPU.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead.

#[path = "../../msda-cuda/tests/common/mod.rs"]
mod common;

use common::device;
use msda::Dtype;
use msda_bench::bench::{self, Silent};
use msda_cuda::driver::Arch;
use msda_study::registry;

#[test]
fn rungs_that_refuse_a_workload_are_listed_and_the_others_are_measured() {
    let Some(gpu) = device() else { return };
    let (base, half, matrix) = ("cuda:ladder:base", "cuda:ladder:base+half", "cuda:ladder:tensor_core");
    // Their plans have hooks, which run before each launch, also while a graph is captured.
    let (window, tma) = ("cuda:ladder:base+window", "cuda:ladder:tma_windows");
    let options = bench::Options {
        workloads: vec!["small".into()],
        engines: [half, matrix, base, window, tma].map(String::from).into(),
        dtypes: vec![Dtype::F32, Dtype::F16],
        quick: true,
        ..bench::Options::default()
    };
    let record = bench::run(&options, &registry(), &mut Silent).unwrap();
    let of = |engine: &str| record.measurements.iter().filter(|m| m.engine == engine).collect::<Vec<_>>();
    assert_eq!((of(base).len(), of(half).len(), of(matrix).len()), (2, 1, 1), "{:?}", record.skipped);
    if gpu.arch() >= Arch::new(9, 0) {
        let right = |engine: &str| of(engine).iter().all(|m| m.check.max_error <= m.check.tolerance);
        assert!(!of(window).is_empty() && !of(tma).is_empty(), "{:?}", record.skipped);
        assert!(right(window) && right(tma));
    }
    assert!(of(base).iter().all(|m| !m.check.inexact && m.check.compared > 0));
    assert!(of(half).iter().all(|m| m.check.inexact));
    let said = |engine: &str| record.skipped.iter().any(|s| s.what == format!("small {engine} f32"));
    assert!(said(half) && said(matrix) && !said(base), "{:?}", record.skipped);
}
