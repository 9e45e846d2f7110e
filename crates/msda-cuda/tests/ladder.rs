//! The ladder on a GPU: every rung through the battery, and the same bits in every run.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use msda::conformance::{Group, run};
use msda_cuda::variants::{Kernel, Rung, ladder};
use msda_cuda::{Cuda, Target};

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
