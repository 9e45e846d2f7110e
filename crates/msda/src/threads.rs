//! Work on several threads: on the current rayon pool, or on the calling thread alone without the
//! feature `rayon`.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

use std::cell::Cell;

thread_local! {
    static ALONE: Cell<bool> = const { Cell::new(false) };
}

/// Runs `work` on the calling thread alone, if `alone` says so: other threads take microseconds to
/// wake.
pub(crate) fn run<R>(alone: bool, work: impl FnOnce() -> R) -> R {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            ALONE.set(self.0);
        }
    }
    let _restore = Restore(ALONE.replace(alone || ALONE.get()));
    work()
}

/// Number of threads that share the work.
pub(crate) fn count() -> usize {
    #[cfg(feature = "rayon")]
    let count = if ALONE.get() { 1 } else { rayon::current_num_threads() };
    #[cfg(not(feature = "rayon"))]
    let count = 1;
    count
}

/// Calls `work` with every index below `n`. Neighbouring indices tend to run on one thread.
pub(crate) fn for_each(n: usize, work: impl Fn(usize) + Sync + Send) {
    #[cfg(feature = "rayon")]
    if n > 1 && count() > 1 {
        return (0..n).into_par_iter().for_each(work);
    }
    (0..n).for_each(work);
}

/// Calls `work` with every index below `n`. The indices start in increasing order, so that the
/// longest tasks can go first.
pub(crate) fn for_each_in_order(n: usize, work: impl Fn(usize) + Sync + Send) {
    #[cfg(feature = "rayon")]
    if n > 1 && count() > 1 {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let next = AtomicUsize::new(0);
        return (0..n.min(count())).into_par_iter().with_max_len(1).for_each(|_| {
            loop {
                let task = next.fetch_add(1, Ordering::Relaxed);
                if task >= n {
                    break;
                }
                work(task);
            }
        });
    }
    (0..n).for_each(work);
}

/// Calls `work` with every chunk of `slice` and its number.
pub(crate) fn for_each_chunk<T: Send>(
    slice: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    #[cfg(feature = "rayon")]
    if slice.len() > chunk && count() > 1 {
        return slice.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
    }
    slice.chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
}
