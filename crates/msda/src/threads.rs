//! Work on several threads: on the current rayon pool, on threads of the caller, or on the calling
//! thread alone. Without the feature `rayon` there is no pool.

#[cfg(feature = "rayon")]
use rayon::prelude::*;

use std::cell::RefCell;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, ErrorKind, Result};

/// Threads of the caller, for programs that have a pool of their own.
pub trait Threads: Send + Sync {
    /// How many threads share the work. Tasks are cut so that so many are busy.
    fn count(&self) -> usize;

    /// Calls `work` with every index below `n`, in any order and on any thread, and returns when
    /// all calls have returned.
    fn for_each(&self, n: usize, work: &(dyn Fn(usize) + Sync));
}

/// Runs `work` with the CPU backend on threads of the caller instead of the current rayon pool.
///
/// The result has the same bits on any threads.
pub fn with_threads<R>(threads: Arc<dyn Threads>, work: impl FnOnce() -> R) -> R {
    on(Pool::Caller(threads), work)
}

/// More threads than any machine has. Above this a number is a mistake: every one would be started.
pub const MOST_THREADS: usize = 4096;

/// The number of threads that the environment asks for: `MSDA_NUM_THREADS`, else `OMP_NUM_THREADS`.
pub fn threads_wanted() -> Result<Option<usize>> {
    let variable = |name| env::var(name).ok().filter(|text| !text.is_empty());
    let number = |text: &str| text.trim().parse().ok().filter(|n| (1..=MOST_THREADS).contains(n));
    let ours = "MSDA_NUM_THREADS";
    let Some(text) = variable(ours) else {
        // OpenMP also takes lists, which mean nothing here.
        return Ok(variable("OMP_NUM_THREADS").and_then(|text| number(&text)));
    };
    number(&text).map(Some).ok_or_else(|| {
        let expected = format!("a number from 1 to {MOST_THREADS}");
        Error::new(ErrorKind::Format, ours, format!("{text:?}"), expected).hint("unset it to use every core")
    })
}

/// The threads that loops of this thread run on.
#[derive(Clone)]
enum Pool {
    /// The current rayon pool, if there is the feature.
    Rayon,
    Alone,
    Caller(Arc<dyn Threads>),
}

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool::Rayon) };
}

fn pool() -> Pool {
    POOL.with_borrow(Clone::clone)
}

/// Runs `work` with loops on that pool.
fn on<R>(pool: Pool, work: impl FnOnce() -> R) -> R {
    struct Restore(Option<Pool>);
    impl Drop for Restore {
        fn drop(&mut self) {
            if let Some(pool) = self.0.take() {
                POOL.set(pool);
            }
        }
    }
    let _restore = Restore(Some(POOL.replace(pool)));
    work()
}

/// Runs `work` on the calling thread alone, if `alone` says so: other threads take microseconds to
/// wake.
pub(crate) fn run<R>(alone: bool, work: impl FnOnce() -> R) -> R {
    if alone { on(Pool::Alone, work) } else { work() }
}

/// Number of threads that share the work.
pub(crate) fn count() -> usize {
    match pool() {
        Pool::Caller(threads) => threads.count().max(1),
        #[cfg(feature = "rayon")]
        Pool::Rayon => rayon::current_num_threads(),
        _ => 1,
    }
}

/// Calls `work` with every index below `n`. Neighbouring indices tend to run on one thread.
pub(crate) fn for_each(n: usize, work: impl Fn(usize) + Sync + Send) {
    match pool() {
        _ if n <= 1 || count() == 1 => (0..n).for_each(work),
        Pool::Caller(threads) => on_caller(&*threads, n, work),
        #[cfg(feature = "rayon")]
        Pool::Rayon => (0..n).into_par_iter().for_each(work),
        _ => (0..n).for_each(work),
    }
}

/// Calls `work` with every index below `n`. On threads of the caller, fewer indices than threads
/// run one after the other, so that the loops inside `work` use all of these threads.
pub(crate) fn for_each_outer(n: usize, work: impl Fn(usize) + Sync + Send) {
    match pool() {
        // Pools of callers may not be entered twice.
        Pool::Caller(threads) if n < threads.count() => (0..n).for_each(work),
        _ => for_each(n, work),
    }
}

/// Loops in `work` run on the thread that they are on: pools of callers may not be entered twice.
///
/// Unsafe code relies on one call per index. A second call of an index does nothing, and neither
/// does a call with an index of `n` or more. Indices that the pool left out run at the end.
fn on_caller(threads: &dyn Threads, n: usize, work: impl Fn(usize) + Sync) {
    let called: Vec<AtomicBool> = (0..n).map(|_| AtomicBool::new(false)).collect();
    let once = |i: usize| {
        if called.get(i).is_some_and(|called| !called.swap(true, Ordering::Relaxed)) {
            on(Pool::Alone, || work(i));
        }
    };
    threads.for_each(n, &once);
    (0..n).for_each(once);
}

/// Calls `work` with every index below `n`. The indices start in increasing order, so that the
/// longest tasks can go first.
pub(crate) fn for_each_in_order(n: usize, work: impl Fn(usize) + Sync + Send) {
    let (count, next) = (n.min(count()), AtomicUsize::new(0));
    let worker = |_| {
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= n {
                break;
            }
            work(task);
        }
    };
    match pool() {
        _ if count <= 1 => (0..n).for_each(work),
        Pool::Caller(threads) => on_caller(&*threads, count, worker),
        #[cfg(feature = "rayon")]
        Pool::Rayon => (0..count).into_par_iter().with_max_len(1).for_each(worker),
        _ => (0..n).for_each(work),
    }
}

/// Calls `work` with every chunk of `slice` and its number.
pub(crate) fn for_each_chunk<T: Send>(
    slice: &mut [T],
    chunk: usize,
    work: impl Fn(usize, &mut [T]) + Sync + Send,
) {
    match pool() {
        Pool::Caller(threads) if slice.len() > chunk && count() > 1 => {
            let parts: Vec<_> = slice.chunks_mut(chunk).map(Mutex::new).collect();
            on_caller(&*threads, parts.len(), |i| {
                work(i, &mut parts[i].lock().unwrap_or_else(PoisonError::into_inner));
            });
        }
        #[cfg(feature = "rayon")]
        Pool::Rayon if slice.len() > chunk && count() > 1 => {
            slice.par_chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part));
        }
        _ => slice.chunks_mut(chunk).enumerate().for_each(|(i, part)| work(i, part)),
    }
}
