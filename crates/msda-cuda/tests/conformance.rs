//! The battery on a GPU, for the kernels that are chosen and for each family with many knobs.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails
//! instead. `MSDA_GROUPS=layouts,points` leaves it at those groups and the first seed: a sanitizer
//! takes its time.

mod common;

use msda::conformance::{Group, run};
use msda_cuda::Cuda;

use common::{device, groups, named_groups};

/// Every seed of so many, or only the first where groups are named.
fn seeds(all: u64) -> std::ops::RangeInclusive<u64> {
    1..=if named_groups().is_empty() { all } else { 1 }
}

/// Every group of the battery, or those that are named; nothing may fail.
fn battery(backend: &Cuda, seed: u64) {
    let groups = groups();
    let least = if groups.len() == Group::ALL.len() { 300 } else { 0 };
    // Most of the time goes into compiling: a thread a group.
    let summaries: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || run(backend, group, seed))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let passed: usize = summaries.iter().map(|s| s.passed).sum();
    let failed: Vec<String> = summaries.iter().flat_map(|s| &s.failed).map(ToString::to_string).collect();
    let worst = summaries.iter().fold(0.0, |worst: f64, s| worst.max(s.worst));
    eprintln!("{}: {passed} passed, worst error {worst:.2} of what is allowed", msda::Backend::name(backend));
    assert!(failed.is_empty(), "{passed} passed, {} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(passed > least, "only {passed} cases ran");
}

/// Tests by name: the battery with so many seeds, on the backend of a device and a seed.
macro_rules! conform {
    ($($name:ident($seeds:literal): |$device:ident, $seed:pat_param| $backend:expr;)*) => {$(
        #[test]
        fn $name() {
            let Some($device) = &device() else { return };
            for seed in seeds($seeds) {
                let $seed = seed;
                battery(&$backend, seed);
            }
        }
    )*};
}

conform! {
    the_chosen_kernels_conform(2): |device, _| Cuda::new(device);
    the_generic_kernel_conforms(1): |device, _| Cuda::named(device, "generic").unwrap();
    sums_of_f16_conform_to_what_they_are_held_to(1): |device, _| Cuda::named(device, "half").unwrap();
    kernels_for_one_size_conform(1): |device, _| Cuda::named(device, "fixed").unwrap();
    kernels_that_read_level_sizes_conform(1): |device, _| Cuda::named(device, "levels").unwrap();
    kernels_that_sort_few_samples_conform(1): |device, _| Cuda::named(device, "sorted").unwrap();
    kernels_with_atomic_additions_conform(1): |device, _| Cuda::named(device, "atomic").unwrap();
    the_rows_kernel_conforms_with_any_knobs(2): |device, seed| Cuda::sweep(device, seed);
}
