//! Engines and backends by name, of this crate and of others.

use anyhow::{Context, Result};
use msda::oracle::Oracle;
use msda::{Backend, Cpu, Isa};

use super::external::is_external;
use super::{Engine, Local, is_cuda};
use crate::{Unknown, gpu};

/// Engines that run in this process, besides the instruction sets of `cpu`.
const IN_PROCESS: [&str; 3] = ["cpu", "oracle", "cuda"];

fn in_process() -> Vec<String> {
    let isas = Isa::available().into_iter().map(|isa| format!("cpu-{isa}"));
    IN_PROCESS.map(String::from).into_iter().chain(isas).collect()
}

/// Engines of another crate.
pub trait Source: Send + Sync {
    /// Whether the engine called `name` comes from this source.
    fn has(&self, name: &str) -> bool;

    /// Opens one of its engines.
    fn open(&self, name: &str) -> Result<Box<dyn Engine>>;

    /// Opens one of its engines as a backend of this process.
    fn backend(&self, name: &str) -> Result<Box<dyn Backend + Send>>;
}

/// Opens engines and backends by name. Its default has those of this crate alone.
#[derive(Default)]
pub struct Registry {
    sources: Vec<Box<dyn Source>>,
}

impl Registry {
    /// The same with the engines of another crate.
    pub fn with(mut self, source: impl Source + 'static) -> Self {
        self.sources.push(Box::new(source));
        self
    }

    /// Refuses a name that no engine has. Opens nothing: torch or the GPU may still be missing, and
    /// only Python knows the peers.
    pub fn check(&self, name: &str) -> Result<()> {
        if is_external(name) {
            return Ok(());
        }
        self.check_among(name, "engine", &["torch", "torch-cuda", "msda", "peer:NAME"])
    }

    /// The same for backends of this process.
    pub fn check_backend(&self, name: &str) -> Result<()> {
        self.check_among(name, "engine of this process", &[])
    }

    fn check_among(&self, name: &str, kind: &str, others: &[&str]) -> Result<()> {
        if self.source(name).is_some() {
            return Ok(());
        }
        if is_cuda(name) {
            return gpu::check(name).map_err(|why| Unknown::because(&why).into());
        }
        let isa = name.strip_prefix("cpu-").is_some_and(|isa| isa.parse::<Isa>().is_ok());
        if isa || IN_PROCESS.contains(&name) {
            return Ok(());
        }
        let others = others.iter().map(ToString::to_string);
        Err(Unknown::new(kind, name, &in_process().into_iter().chain(others).collect::<Vec<_>>()).into())
    }

    /// Opens the engine called `name` with that many threads: a GPU, or a backend of this process.
    pub fn open(&self, name: &str, threads: usize) -> Result<Box<dyn Engine>> {
        self.check_backend(name)?;
        if let Some(source) = self.source(name) {
            return source.open(name);
        }
        match name {
            _ if is_cuda(name) => gpu::open(name),
            _ => Ok(Box::new(Local::new(self.backend(name)?, threads)?)),
        }
    }

    /// Opens the backend called `name`. `cpu` is the best instruction set of this machine, `cuda`
    /// its GPU.
    pub fn backend(&self, name: &str) -> Result<Box<dyn Backend + Send>> {
        self.check_backend(name)?;
        if let Some(source) = self.source(name) {
            return source.backend(name);
        }
        match name {
            "oracle" => Ok(Box::new(Oracle)),
            "cpu" => Ok(Box::new(Cpu::new())),
            _ if is_cuda(name) => gpu::backend(name),
            _ => {
                let isa = name.strip_prefix("cpu-").unwrap_or(name).parse::<Isa>()?;
                Ok(Box::new(Cpu::with_isa(isa).with_context(|| format!("engine {name}"))?))
            }
        }
    }

    fn source(&self, name: &str) -> Option<&dyn Source> {
        self.sources.iter().find(|source| source.has(name)).map(|source| &**source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_name_gets_the_list_of_right_ones() {
        let registry = Registry::default();
        for (name, words) in [
            ("gpu", &["cpu", "cuda", "oracle", "torch", "peer:NAME"][..]),
            ("oracel", &["did you mean oracle?"]),
            ("cpu-avx1024", &["cpu-portable"]),
        ] {
            let why = registry.check(name).unwrap_err();
            assert!(why.downcast_ref::<Unknown>().is_some(), "{why}");
            assert!(words.iter().all(|word| why.to_string().contains(word)), "{why}");
        }
        assert!(
            ["cpu", "oracle", "torch", "peer:x", "cuda@7", "cpu-neon"]
                .iter()
                .all(|name| registry.check(name).is_ok())
        );
        assert!(registry.backend("torch").err().unwrap().to_string().contains("engine of this process"));
    }
}
