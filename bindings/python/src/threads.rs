//! Thread pools: as many threads as the framework is set to, and new ones after a fork.

use std::collections::HashMap;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use msda::{Cpu, Problem};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Kind, Refused, Result};

/// The pools of this process, by their number of threads, and the process that made them. A forked
/// child has the memory of its parent's pools but not their threads.
struct Pools {
    process: u32,
    by_threads: HashMap<usize, Arc<ThreadPool>>,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

/// Runs `work` with the backend for a problem on that many threads; `None` means one per core.
pub(crate) fn run<T: Send>(
    threads: Option<usize>,
    problem: &Problem,
    work: impl FnOnce(Cpu) -> T + Send,
) -> Result<T> {
    let cpu = Cpu::new();
    if cpu.runs_alone(problem) {
        return Ok(work(cpu));
    }
    match threads.map_or_else(default, Ok)? {
        0 | 1 => Ok(work(cpu.on_calling_thread())),
        threads => Ok(pool(threads)?.install(|| work(cpu))),
    }
}

/// The number of threads where the framework does not say one.
pub(crate) fn default() -> Result<usize> {
    let number = |text: &str| text.trim().parse().ok().filter(|&n: &usize| n > 0);
    let ours = "MSDA_NUM_THREADS";
    if let Some(text) = std::env::var(ours).ok().filter(|text| !text.is_empty()) {
        return number(&text).ok_or_else(|| Refused::value(ours, format!("{text:?}"), "a number above 0"));
    }
    // OpenMP also takes lists, which mean nothing here.
    let openmp = std::env::var("OMP_NUM_THREADS").ok().and_then(|text| number(&text));
    let cores = || std::thread::available_parallelism().ok().map(usize::from);
    Ok(openmp.or_else(cores).unwrap_or(1))
}

fn pool(threads: usize) -> Result<Arc<ThreadPool>> {
    let mut pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let here = process::id();
    if pools.as_ref().is_none_or(|pools| pools.process != here) {
        // Dropping the parent's pools would wait for threads that do not exist here.
        if let Some(old) = pools.take() {
            std::mem::forget(old);
        }
        *pools = Some(Pools { process: here, by_threads: HashMap::new() });
    }
    let by_threads =
        &mut pools.get_or_insert_with(|| Pools { process: here, by_threads: HashMap::new() }).by_threads;
    if let Some(pool) = by_threads.get(&threads) {
        return Ok(pool.clone());
    }
    let named = |i| format!("msda-{i}");
    let pool = ThreadPoolBuilder::new().num_threads(threads).thread_name(named).build();
    let pool = pool
        .map_err(|error| Refused::new(Kind::Runtime, format!("cannot start {threads} threads: {error}")))?;
    let pool = Arc::new(pool);
    by_threads.insert(threads, pool.clone());
    Ok(pool)
}
