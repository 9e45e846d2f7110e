//! Engines and backends by name, of this crate and of others.

use anyhow::{Context, Result, bail};
use msda::oracle::Oracle;
use msda::{Backend, Cpu, Isa};

use super::{Engine, Local, Torch, is_cuda, peers};
use crate::gpu;

/// Engines of another crate.
pub trait Source: Send + Sync {
    /// Whether the engine called `name` comes from this source.
    fn has(&self, name: &str) -> bool;

    /// Names of its engines.
    fn names(&self) -> Vec<String>;

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

    /// Names of the engines on this machine, in the order in which they are measured.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = Isa::available().into_iter().map(|isa| format!("cpu-{isa}")).collect();
        if gpu::count() > 0 {
            names.push("cuda".into());
            names.extend(self.sources.iter().flat_map(|source| source.names()));
        }
        names.extend(["torch".into(), "oracle".into()]);
        names
    }

    /// Opens the engine called `name` with that many threads: torch, a peer, a GPU, or a backend of
    /// this process.
    pub fn open(&self, name: &str, threads: usize) -> Result<Box<dyn Engine>> {
        if let Some(source) = self.source(name) {
            return source.open(name);
        }
        match name {
            "torch" => Ok(Box::new(Torch::start(threads)?)),
            "torch-cuda" => Ok(Box::new(Torch::cuda()?)),
            _ if is_cuda(name) => gpu::open(name),
            _ if name.starts_with(peers::PREFIX) => Ok(Box::new(Torch::peer(peers::find(name)?, threads)?)),
            _ => Ok(Box::new(Local::new(self.backend(name)?, threads)?)),
        }
    }

    /// Opens the backend called `name`. `cpu` is the best instruction set of this machine, `cuda`
    /// its GPU.
    pub fn backend(&self, name: &str) -> Result<Box<dyn Backend + Send>> {
        if let Some(source) = self.source(name) {
            return source.backend(name);
        }
        match name {
            "oracle" => Ok(Box::new(Oracle)),
            "cpu" => Ok(Box::new(Cpu::new())),
            _ if is_cuda(name) => gpu::backend(name),
            _ => {
                let Some(isa) = name.strip_prefix("cpu-") else {
                    let local: Vec<String> = Registry::default().names();
                    let local: Vec<String> = local.into_iter().filter(|n| n != "torch").collect();
                    bail!("engine: got '{name}', expected cpu, {}", local.join(", "));
                };
                let isa: Isa = isa.parse().with_context(|| format!("engine {name}"))?;
                Ok(Box::new(Cpu::with_isa(isa)?))
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

    /// A source whose engines are the oracle under another name.
    struct Others;

    impl Source for Others {
        fn has(&self, name: &str) -> bool {
            name.starts_with("cuda:others:")
        }
        fn names(&self) -> Vec<String> {
            vec!["cuda:others:oracle".into()]
        }
        fn open(&self, name: &str) -> Result<Box<dyn Engine>> {
            Ok(Box::new(Local::new(self.backend(name)?, 1)?))
        }
        fn backend(&self, name: &str) -> Result<Box<dyn Backend + Send>> {
            if name != "cuda:others:oracle" {
                bail!("engine: got '{name}', expected cuda:others:oracle");
            }
            Ok(Box::new(Oracle))
        }
    }

    #[test]
    fn a_source_opens_its_engines_and_only_those() {
        let registry = Registry::default().with(Others);
        assert_eq!(registry.backend("cuda:others:oracle").unwrap().name(), Oracle.name());
        assert_eq!(registry.open("cuda:others:oracle", 1).unwrap().name(), Oracle.name());
        let wrong = registry.backend("cuda:others:x").err().unwrap().to_string();
        assert!(wrong.contains("expected cuda:others:oracle"), "{wrong}");
        assert!(registry.backend("cpu").unwrap().name().starts_with("cpu-"));
        assert!(Registry::default().backend("cuda:others:oracle").is_err());
    }
}
