//! The GPU, and the software that its kernels need.

use std::collections::BTreeSet;
use std::path::Path;

use msda_bench::record::Gpu;
use msda_cuda::choose::Tuned;
use msda_cuda::driver::{Device, driver_problem, driver_version};
use msda_cuda::jit;

use super::{Finding, failed, finding, split_hint};

/// Findings about the GPU, the compiler, the cache and tuned kernels.
pub(super) fn examine(driver: Option<&Gpu>) -> Vec<Finding> {
    let ahead = jit::Cache::global().ahead().iter().map(|folder| compiled_ahead(folder));
    let device = match Device::open(0) {
        Ok(device) => device,
        Err(why) => {
            let mut findings = vec![no_gpu(driver, &why.to_string())];
            findings.extend(ahead);
            // Without a GPU they are of interest to those who use them.
            findings.extend(std::env::var_os("MSDA_TUNED").map(|_| tuned()));
            return findings;
        }
    };
    let count = Device::count().unwrap_or(1);
    let mut says = format!(
        "{}, {}, {} SMs, {:.0} GiB",
        device.name(),
        device.arch(),
        device.sms(),
        device.total_memory() as f64 / f64::from(1 << 30)
    );
    if let Some(driver) = driver {
        says += &format!(", driver {}", driver.driver);
    }
    if let Ok((major, minor)) = driver_version() {
        says += &format!(", CUDA {major}.{minor}");
    }
    if count > 1 {
        says += &format!("; the first of {count}");
    }
    let mut findings = vec![finding("gpu", true, says, None), nvrtc(), cache()];
    findings.extend(ahead);
    findings.push(tuned());
    findings
}

/// A folder of `MSDA_KERNELS`.
fn compiled_ahead(folder: &Path) -> Finding {
    let cache = jit::Cache::at(Some(folder.to_owned()), jit::Jit::Off);
    let entries = cache.entries().unwrap_or_default();
    let archs: BTreeSet<&str> = entries.iter().map(|entry| entry.arch.as_str()).collect();
    let archs: Vec<&str> = archs.into_iter().collect();
    let says = match entries.len() {
        0 => format!("{}: no kernels", folder.display()),
        n => format!("{}: {n} kernels compiled ahead for {}", folder.display(), archs.join(", ")),
    };
    let empty = "`msda cache build --out DIR` fills a folder for MSDA_KERNELS";
    let hint = cache.warning().or(Some(empty).filter(|_| entries.is_empty())).map(str::to_owned);
    finding("kernels", hint.is_none(), says, hint)
}

fn no_gpu(driver: Option<&Gpu>, why: &str) -> Finding {
    let (why, hint) = split_hint(why);
    let says = match driver {
        Some(gpu) => format!("{} is there but cannot be used: {why}", gpu.name),
        None => match driver_problem() {
            Some(why) => format!("no NVIDIA driver was found ({why})"),
            None => format!("none: {why}"),
        },
    };
    finding("gpu", false, says, hint)
}

fn nvrtc() -> Finding {
    match jit::nvrtc() {
        Ok(nvrtc) => {
            let (major, minor) = nvrtc.version();
            let hint = jit::untrusted().first().map(|why| format!("not used: {why}"));
            finding("compiler", true, format!("NVRTC {major}.{minor} at {}", nvrtc.path()), hint)
        }
        Err(why) => failed("compiler", why, " (only needed for a GPU)"),
    }
}

fn tuned() -> Finding {
    let file = Tuned::path().filter(|path| path.exists());
    let says = match &file {
        Some(path) => format!("{}, and the kernels tuned in advance", path.display()),
        None => "kernels tuned in advance; `msda tune` adds some for this GPU".into(),
    };
    let problems = Tuned::global().problems();
    let hint = problems.first().map(|why| format!("ignored, {} in all: {why}", problems.len()));
    finding("tuned", problems.is_empty(), says, hint)
}

fn cache() -> Finding {
    let cache = jit::Cache::global();
    let Some(folder) = cache.folder() else {
        let empty = "MSDA_CACHE_DIR is empty: set it to a folder, or unset it";
        let hint = cache.warning().unwrap_or(empty).to_owned();
        return finding("cache", false, "none: every program compiles its kernels again", Some(hint));
    };
    match cache.entries() {
        Ok(entries) => {
            let mib = entries.iter().map(|e| e.bytes).sum::<u64>() as f64 / f64::from(1 << 20);
            let says = format!("{}: {} kernels, {mib:.1} MiB", folder.display(), entries.len());
            finding("cache", cache.warning().is_none(), says, cache.warning().map(str::to_owned))
        }
        Err(why) => failed("cache", why, ""),
    }
}
