//! Jobs on threads outside rayon's pool, because they wait for a compiler or a device.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs every job on this many threads. Results have the order of the jobs.
pub fn in_parallel<J: Sync, R: Send>(workers: usize, jobs: &[J], work: impl Fn(&J) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        while let Some(i) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&i| i < jobs.len()) {
            done.push((i, work(&jobs[i])));
        }
        done
    };
    let mut all: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers.clamp(1, jobs.len().max(1))).map(|_| scope.spawn(take)).collect();
        let joined = threads.into_iter().flat_map(|thread| match thread.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        joined.collect()
    });
    all.sort_by_key(|(i, _)| *i);
    all.into_iter().map(|(_, result)| result).collect()
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
