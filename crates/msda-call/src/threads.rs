//! Thread pools: as many threads as the framework is set to, and new ones after a fork. Or threads
//! of the framework itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::{process, ptr};

use msda::{Cpu, MOST_THREADS, Problem, Threads};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Kind, Refused, Result};

/// The pools of one process, by their number of threads.
struct Pools {
    process: u32,
    by_threads: Mutex<HashMap<usize, Arc<ThreadPool>>>,
}

/// The pools of the process that used them last. A forked child has the memory of its parent's
/// pools but not their threads, and another thread may have held the lock at the fork: the child
/// makes pools of its own, and never touches the parent's, which stay in memory.
static POOLS: AtomicPtr<Pools> = AtomicPtr::new(ptr::null_mut());

/// Pools that are stored. Their threads wait, and a process may have few threads left.
const MOST_POOLS: usize = 2;

/// The threads that a call runs on.
#[derive(Clone)]
pub enum OnThreads {
    /// So many threads of ours; `None` means as many as the environment says, else one per core.
    Count(Option<usize>),
    /// Threads of the framework.
    Framework(Arc<dyn Threads>),
}

/// Runs `work` with the backend for a problem.
pub fn run<T: Send>(threads: OnThreads, problem: &Problem, work: impl FnOnce(Cpu) -> T + Send) -> Result<T> {
    let cpu = Cpu::new();
    if cpu.runs_alone(problem) {
        return Ok(work(cpu));
    }
    let threads = match threads {
        OnThreads::Count(threads) => threads,
        OnThreads::Framework(threads) => return Ok(msda::with_threads(threads, || work(cpu))),
    };
    match threads.map_or_else(default, Ok)? {
        0 | 1 => Ok(work(cpu.on_calling_thread())),
        threads if threads > MOST_THREADS => {
            Err(Refused::value("threads", threads, format!("at most {MOST_THREADS}")))
        }
        threads => Ok(pool(threads)?.install(|| work(cpu))),
    }
}

/// The number of threads where the framework does not say one.
pub fn default() -> Result<usize> {
    let cores = || std::thread::available_parallelism().ok().map(usize::from);
    Ok(msda::threads_wanted()?.or_else(cores).unwrap_or(1))
}

/// The pools of this process. No lock is taken: a fork could have left it locked.
#[allow(unsafe_code)]
fn pools() -> &'static Pools {
    let here = process::id();
    let mut found = POOLS.load(Ordering::Acquire);
    loop {
        // SAFETY: the pointer is null or comes from `Box::into_raw` below, and is never freed.
        match unsafe { found.as_ref() } {
            Some(pools) if pools.process == here => return pools,
            _ => {}
        }
        let new = Box::into_raw(Box::new(Pools { process: here, by_threads: Mutex::default() }));
        match POOLS.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => found = new,
            Err(other) => {
                // SAFETY: `new` comes from `Box::into_raw`, and nobody else has seen it.
                drop(unsafe { Box::from_raw(new) });
                found = other;
            }
        }
    }
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    let mut by_threads = pools().by_threads.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(pool) = by_threads.get(&threads) {
        return Ok(pool.clone());
    }
    let named = |i| format!("msda-{i}");
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(named).build();
    let pool = pool
        .map_err(|error| Refused::new(Kind::Runtime, format!("cannot start {threads} threads: {error}")))?;
    let pool = Arc::new(pool);
    // Calls that still run keep theirs.
    if by_threads.len() >= MOST_POOLS {
        by_threads.clear();
    }
    by_threads.insert(threads, pool.clone());
    Ok(pool)
}
