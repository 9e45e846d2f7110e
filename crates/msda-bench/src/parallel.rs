//! Jobs on threads outside rayon's pool, because they wait for a compiler or a device; and
//! processes that may hang.

use std::io;
use std::process::{Child, ExitStatus};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

/// The number of logical processors that this process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Sets how many threads compute on the CPU: as many as the environment asks for, as in the Python
/// package, else what rayon does, one per core.
pub fn set_threads() -> Result<()> {
    if let Some(threads) = msda::threads_wanted()? {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build_global()?;
    }
    Ok(())
}

/// Waits for a process to end, but not longer than `limit`.
pub fn wait(child: &mut Child, limit: Duration) -> io::Result<Option<ExitStatus>> {
    let begin = Instant::now();
    loop {
        match child.try_wait()? {
            None if begin.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            status => return Ok(status),
        }
    }
}

/// Runs every job on this many threads. Results have the order of the jobs.
pub fn in_parallel<J: Sync, R: Send>(workers: usize, jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<R>>> = jobs.iter().map(|_| Mutex::new(None)).collect();
    let take = || {
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < jobs.len()) {
            *results[i].lock().expect("each result has one writer") = Some(work(&jobs[i]));
        }
    };
    std::thread::scope(|scope| {
        (0..workers.clamp(1, jobs.len().max(1))).for_each(|_| drop(scope.spawn(take)));
    });
    let done = |result: Mutex<Option<R>>| result.into_inner().ok().flatten().expect("every job was done");
    results.into_iter().map(done).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_runs_once_and_results_are_in_order() {
        let jobs: Vec<usize> = (0..100).collect();
        for workers in [0, 1, 7, 1000] {
            assert_eq!(
                in_parallel(workers, &jobs, |j| j * j),
                jobs.iter().map(|j| j * j).collect::<Vec<_>>()
            );
        }
        assert!(in_parallel(3, &[], |j: &usize| *j).is_empty());
    }
}
