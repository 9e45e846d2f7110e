//! The rungs of the ladder as engines: `cuda:ladder:NAME`, `cuda@N:ladder:NAME`.

use crate::ladder;
use anyhow::{Context, Result};
use msda::Backend;
use msda_bench::engines::{Engine, Registry, Source, is_cuda, split_cuda};
use msda_bench::gpu::Cuda;
use msda_cuda::driver::Device;
use msda_cuda::kernels::Kernel;

/// How the names of rungs begin among kernels, and among engines of the first GPU.
const LADDER: &str = "ladder:";
pub(crate) const RUNG: &str = "cuda:ladder:";

/// Whether an engine is a rung of the ladder.
pub fn is_rung(engine: &str) -> bool {
    is_cuda(engine) && matches!(split_cuda(engine), Ok((_, Some(kernel))) if kernel.starts_with(LADDER))
}

/// The kernel called `name`: a rung, or a kernel of the product.
pub fn kernel(name: &str) -> Result<Kernel> {
    match name.strip_prefix(LADDER) {
        Some(rung) => Ok(ladder::find(rung)?.kernel()),
        None => Ok(name.parse()?),
    }
}

/// The engines of the product and the rungs of the ladder.
pub fn registry() -> Registry {
    Registry::default().with(Rungs)
}

/// Names of the engines that show these rungs of the ladder, or all: the chosen kernel, then rungs.
pub fn names(rungs: &[String]) -> Result<Vec<String>> {
    let rungs = ladder::named(rungs)?.into_iter().map(|rung| format!("{RUNG}{}", rung.name));
    Ok(std::iter::once("cuda".to_owned()).chain(rungs).collect())
}

/// The rungs of the ladder as a source of engines.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rungs;

impl Rungs {
    fn parse(name: &str) -> Result<(usize, Kernel)> {
        let (ordinal, rung) = split_cuda(name)?;
        let kernel = kernel(rung.unwrap_or_default()).with_context(|| format!("engine {name}"))?;
        Ok((ordinal, kernel))
    }
}

impl Source for Rungs {
    fn has(&self, name: &str) -> bool {
        is_rung(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn Engine>> {
        let (ordinal, kernel) = Self::parse(name)?;
        Ok(Box::new(Cuda::with_kernel(name, ordinal, kernel)?))
    }

    fn backend(&self, name: &str) -> Result<Box<dyn Backend + Send>> {
        let (ordinal, kernel) = Self::parse(name)?;
        let device = Device::open(ordinal).with_context(|| format!("engine {name}"))?;
        let backend = msda_cuda::Cuda::with_pick(&device, name, move |_| Some(kernel));
        // Rungs compute the forward pass only.
        Ok(Box::new(backend.forward_only()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rungs_are_engines_by_name() {
        assert!(is_rung("cuda:ladder:base") && is_rung("cuda@1:ladder:base"));
        assert!(!is_rung("cuda") && !is_rung("cuda:generic") && !is_rung("ladder:base"));
        for name in names(&[]).unwrap().split_off(1) {
            let (ordinal, kernel) = Rungs::parse(&name).unwrap();
            assert_eq!((ordinal, format!("cuda:{kernel}")), (0, name));
        }
        let exact = |name: &str| Rungs::parse(name).unwrap().1.is_exact();
        assert!(
            exact("cuda:ladder:base") && !exact("cuda@1:ladder:base+half") && !exact("cuda:ladder:texture")
        );
        let unknown = format!("{:#}", registry().backend("cuda:ladder:nonsense").err().unwrap());
        assert!(unknown.contains("base") && unknown.contains("nonsense"), "{unknown}");
        assert_eq!(kernel("generic").unwrap(), Kernel::Generic);
    }
}
