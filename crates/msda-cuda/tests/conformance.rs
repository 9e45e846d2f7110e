//! The battery on a GPU, for the kernels that are chosen and for each family with many knobs.
//!
//! Without a GPU every test says that it skipped; with `MSDA_GPU=1` in the environment it fails instead.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use msda::conformance::{Group, run};
use msda_cuda::driver::Device;
use msda_cuda::variants::Kernel;
use msda_cuda::variants::rows::{Division, Rows, Walk};
use msda_cuda::{Cuda, Request, Target};

fn device() -> Option<Device> {
    match Device::open(0) {
        Ok(device) => Some(device),
        Err(why) => {
            assert!(std::env::var_os("MSDA_GPU").is_none(), "{why}");
            eprintln!("skipped: {why}");
            None
        }
    }
}

/// Every group of the battery; nothing may fail.
fn battery(backend: &Cuda, seed: u64) {
    // Most of the time goes into compiling: a thread a group.
    let summaries: Vec<_> = std::thread::scope(|scope| {
        let threads = Group::ALL.map(|group| scope.spawn(move || run(backend, group, seed)));
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let passed: usize = summaries.iter().map(|s| s.passed).sum();
    let failed: Vec<String> = summaries.iter().flat_map(|s| &s.failed).map(ToString::to_string).collect();
    let worst = summaries.iter().fold(0.0, |worst: f64, s| worst.max(s.worst));
    eprintln!("{}: {passed} passed, worst error {worst:.2} of what is allowed", msda::Backend::name(backend));
    assert!(failed.is_empty(), "{passed} passed, {} failed:\n{}", failed.len(), failed.join("\n"));
    assert!(passed > 300, "only {passed} cases ran");
}

#[test]
fn the_chosen_kernels_conform() {
    if let Some(device) = device() {
        for seed in 1..=2 {
            battery(&Cuda::new(&device), seed);
        }
    }
}

#[test]
fn the_generic_kernel_conforms() {
    if let Some(device) = device() {
        battery(&Cuda::with_pick(&device, "generic", |_| Some(Kernel::Generic)), 1);
    }
}

/// Knobs that put the rows kernel through all of its paths, whatever the problem is: those that take it.
fn many_knobs(request: &Request<'_>, target: &Target) -> Vec<Kernel> {
    let division = Division::of(request);
    let mut all = Vec::new();
    for (walk, _) in Walk::ALL {
        for sides in [1, 2] {
            for split in [1, 2, 8] {
                for (heads, round) in [(1, 1), (2, 2), (1, 3), (4, 4)] {
                    let lanes = division.lanes * sides * split;
                    let block = if walk == Walk::Tiles { 64 * heads * lanes } else { 32.max(heads * lanes) };
                    let knobs = Rows { sides, split, heads, block, blocks: 1, round, walk };
                    all.push(Kernel::Rows(knobs));
                }
            }
        }
    }
    all.retain(|kernel| kernel.refuses(request, target).is_none());
    all
}

#[test]
fn the_rows_kernel_conforms_with_any_knobs() {
    let Some(device) = device() else { return };
    let target = Target::of(&device);
    // Each case meets another choice of knobs, the same whenever it is run; where none takes it, the generic kernel does.
    for turn in 1..=2 {
        let pick = move |request: &Request<'_>| {
            let all = many_knobs(request, &target);
            let mut hash = DefaultHasher::new();
            format!("{turn} {} {:?}", request.problem, request.operands).hash(&mut hash);
            let kernel = (!all.is_empty()).then(|| all[hash.finish() as usize % all.len()]);
            if std::env::var_os("MSDA_SHOW_KERNELS").is_some() {
                let name = kernel.map_or_else(|| "generic".into(), |k| k.to_string());
                eprintln!("{} fused {}: {name}", request.problem, request.operands.reference_numbers());
            }
            kernel
        };
        battery(&Cuda::with_pick(&device, format!("rows, turn {turn}"), pick), turn);
    }
}
