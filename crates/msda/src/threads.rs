//! Work on several threads: on the current rayon pool, or on the calling thread alone without the
//! feature `rayon`.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

/// Number of threads that share the work.
pub(crate) fn count() -> usize {
    #[cfg(feature = "rayon")]
    let count = rayon::current_num_threads();
    #[cfg(not(feature = "rayon"))]
    let count = 1;
    count
}

/// Calls `work` with every index below `n`. Neighbouring indices tend to run on one thread.
pub(crate) fn for_each(n: usize, work: impl Fn(usize) + Sync + Send) {
    #[cfg(feature = "rayon")]
    (0..n).into_par_iter().for_each(work);
    #[cfg(not(feature = "rayon"))]
    (0..n).for_each(work);
}

/// Calls `work` with every index below `n`. The indices start in increasing order, so that the
/// longest tasks can go first.
pub(crate) fn for_each_in_order(n: usize, work: impl Fn(usize) + Sync + Send) {
    #[cfg(feature = "rayon")]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let next = AtomicUsize::new(0);
        (0..n.min(count())).into_par_iter().with_max_len(1).for_each(|_| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= n {
                    break;
                }
                work(task);
            }
        });
    }
    #[cfg(not(feature = "rayon"))]
    (0..n).for_each(work);
}

/// Calls `work` with every chunk of `slice` and its number.
pub(crate) fn for_each_chunk<T: Send>(
    slice: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    #[cfg(feature = "rayon")]
    slice.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
    #[cfg(not(feature = "rayon"))]
    slice.chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
}
