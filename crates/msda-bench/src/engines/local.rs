//! A backend in this process, with its own thread pool.

use anyhow::Result;
use msda::Backend;
use rayon::ThreadPool;

use super::Engine;
use crate::record::Pass;
use crate::task::{Results, Task};
use crate::timing::{Effort, repeat};

/// A backend and its threads.
pub struct Local {
    backend: Box<dyn Backend + Send>,
    pool: ThreadPool,
}

impl Local {
    /// The backend on `threads` threads.
    pub fn new(backend: Box<dyn Backend + Send>, threads: usize) -> Result<Self> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build()?;
        Ok(Self { backend, pool })
    }
}

impl Engine for Local {
    fn name(&self) -> String {
        self.backend.name()
    }

    fn refuses(&self, task: &Task<'_>) -> Option<String> {
        self.backend.supports(&task.problem).err().map(|e| e.to_string())
    }

    fn computes(&self, pass: Pass) -> bool {
        pass == Pass::Forward || self.backend.computes_gradients()
    }

    fn run(&mut self, task: &Task<'_>) -> Result<Results> {
        let mut results = task.poisoned();
        self.pool.install(|| task.run(&*self.backend, &mut results))?;
        Ok(results)
    }

    fn time(&mut self, task: &Task<'_>, effort: Effort) -> Result<Vec<f64>> {
        let mut results = task.poisoned();
        Ok(self.pool.install(|| repeat(effort, || task.run(&*self.backend, &mut results)))?)
    }
}
