//! Probes: the limits of a device, and the experiments of the founding documents.
//!
//! - [`ceilings`]: copying, reading in order, random rows from every level of memory,
//!   multiply-adds;
//! - [`tile`]: windows of 2 x 2 pixels loaded into shared memory, by threads and by the copy engine
//!   (TMA);
//! - [`copies`]: eight ways to fill shared memory;
//! - [`claims`]: the outputs that a persistent kernel writes, by the way it takes work;
//! - [`clusters`]: blocks that read the shared memory of other blocks; [`unguarded`] runs the same
//!   without the last barrier, in a process of its own;
//! - [`banks`]: bank conflicts of loads from shared memory, counted and timed.
//!
//! Every kernel writes checksums of the data it read. The host knows the data and computes the same
//! sums. A wrong sum is
//! an error, so code that the compiler removed cannot pass as fast.

pub mod banks;
pub mod ceilings;
pub mod claims;
pub mod clusters;
pub mod copies;
mod kernel;
pub mod tile;
pub mod unguarded;
mod words;

pub use kernel::Kernel;

use msda::{Error, ErrorKind, Result};

use msda_bench::gpu::measure::Flush;
use msda_bench::gpu::measure::time;
use msda_cuda::driver::{Arch, Device, Stream, StreamHandle};

/// Every kernel of the probes that an architecture supports.
pub fn kernels(arch: Arch) -> Vec<Kernel> {
    let all = [
        ceilings::kernels(arch),
        tile::kernels(arch),
        copies::kernels(arch),
        clusters::kernels(arch),
        claims::kernels(arch),
    ];
    all.into_iter().flatten().filter(|kernel| arch >= kernel.since).collect()
}

/// A device with a stream and buffers for timing.
#[derive(Debug)]
pub struct Bench {
    device: Device,
    stream: Stream,
    flush: Flush,
    runs: usize,
}

impl Bench {
    /// Takes the number of timed runs.
    pub fn new(device: &Device, runs: usize) -> Result<Self> {
        let (stream, flush) = (device.stream()?, Flush::new(device)?);
        Ok(Self { device: device.clone(), stream, flush, runs })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Times runs of some work, after a few warm-up runs.
    fn time(&self, work: f64, cold: bool, queue: impl Fn(StreamHandle<'_>) -> Result<()>) -> Result<Timed> {
        const WARM_UP: usize = 2;
        time(&self.stream, &self.flush, WARM_UP, cold, &queue)?;
        let mut us: Vec<f64> = time(&self.stream, &self.flush, self.runs, cold, &queue)?;
        us.iter_mut().for_each(|time| *time *= 1e3);
        us.sort_by(f64::total_cmp);
        Ok(Timed { us, work })
    }

    /// Runs work once and waits for it.
    fn run(&self, queue: impl Fn(StreamHandle<'_>) -> Result<()>) -> Result<()> {
        queue(self.stream.handle())?;
        self.stream.synchronize()
    }
}

/// Repeated runs of the same work.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// Microseconds of each run, the fastest first.
    us: Vec<f64>,
    /// The work of a run: bytes that it reads, or floating-point operations.
    work: f64,
}

impl Timed {
    /// The median in microseconds.
    pub fn median(&self) -> f64 {
        self.us.get(self.us.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
    }

    /// The time that a part of the runs, between 0 and 1, is at least as fast as.
    pub fn quantile(&self, part: f64) -> f64 {
        let last = self.us.len().saturating_sub(1) as f64;
        self.us.get((part * last).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The fastest run in microseconds.
    pub fn min(&self) -> f64 {
        self.us.first().copied().unwrap_or(f64::NAN)
    }

    /// The slowest run in microseconds.
    pub fn max(&self) -> f64 {
        self.us.last().copied().unwrap_or(f64::NAN)
    }

    /// The standard deviation in microseconds.
    pub fn deviation(&self) -> f64 {
        let n = self.us.len().max(1) as f64;
        let mean = self.us.iter().sum::<f64>() / n;
        (self.us.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / n).sqrt()
    }

    /// Work per second, by the median.
    pub fn rate(&self) -> f64 {
        self.work / (self.median() / 1e6)
    }
}

/// Refuses a kernel that the device is too old for.
fn needs(device: &Device, kernel: &Kernel) -> Result<()> {
    if device.arch() >= kernel.since {
        return Ok(());
    }
    let expected = format!("{} or newer", kernel.since);
    Err(Error::new(ErrorKind::Unsupported, format!("probe {}", kernel.unit.key), device.arch(), expected))
}

/// Refuses a checksum that differs from the host's.
fn agree(what: &str, at: impl std::fmt::Display, got: u32, want: u32) -> Result<()> {
    if got == want {
        return Ok(());
    }
    let (subject, got) = (format!("probe {what}"), format!("the sum {got:#010x} at {at}"));
    Err(Error::new(ErrorKind::Device, subject, got, format!("{want:#010x}, which the host computed"))
        .hint("the kernel or the device is wrong: its time would mean nothing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let timed = Timed { us: vec![1.0, 2.0, 2.0, 3.0, 12.0], work: 4e6 };
        assert_eq!((timed.min(), timed.median(), timed.max()), (1.0, 2.0, 12.0));
        assert_eq!((timed.quantile(0.1), timed.quantile(0.9)), (1.0, 12.0));
        assert!((timed.rate() - 2e12).abs() < 1.0 && (timed.deviation() - 4.049_691).abs() < 1e-6);
        let none = Timed { us: Vec::new(), work: 1.0 };
        assert!(none.median().is_nan() && none.rate().is_nan());
    }

    #[test]
    fn what_is_wrong_or_too_new_is_refused() {
        agree("x", 3, 7, 7).unwrap();
        let error = agree("gather", "thread 3", 7, 8).unwrap_err().to_string();
        assert!(error.contains("thread 3") && error.contains("0x00000008"), "{error}");
        // TMA and clusters came with Hopper, cp.async with Ampere.
        let count = |major, minor| kernels(Arch::new(major, minor)).len();
        assert!(count(7, 5) < count(8, 0) && count(8, 0) == count(8, 9) && count(8, 9) < count(9, 0));
        assert_eq!(count(9, 0), count(12, 0));
    }
}
