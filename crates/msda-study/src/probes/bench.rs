//! Repeated runs of a probe, timed.

use msda::Result;
use msda_bench::gpu::measure::{Flush, time};
use msda_cuda::driver::{Device, Stream, StreamHandle};

/// A device with a stream and buffers for timing.
#[derive(Debug)]
pub(super) struct Bench {
    device: Device,
    stream: Stream,
    flush: Flush,
    /// Timed runs per probe.
    runs: usize,
}

impl Bench {
    pub(super) fn new(device: &Device, quick: bool) -> Result<Self> {
        let runs = if quick { 5 } else { 30 };
        let (stream, flush) = (device.stream()?, Flush::new(device)?);
        Ok(Self { device: device.clone(), stream, flush, runs })
    }

    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// Times runs of some work, after a few warm-up runs.
    pub(super) fn time(
        &self,
        work: f64,
        cold: bool,
        queue: impl Fn(StreamHandle<'_>) -> Result<()>,
    ) -> Result<Timed> {
        const WARM_UP: usize = 2;
        time(&self.stream, &self.flush, WARM_UP, cold, &queue)?;
        let mut us: Vec<f64> = time(&self.stream, &self.flush, self.runs, cold, &queue)?;
        us.iter_mut().for_each(|time| *time *= 1e3);
        us.sort_by(f64::total_cmp);
        Ok(Timed { us, work })
    }

    /// Runs work once and waits for it.
    pub(super) fn run(&self, queue: impl Fn(StreamHandle<'_>) -> Result<()>) -> Result<()> {
        queue(self.stream.handle())?;
        self.stream.synchronize()
    }
}

/// Repeated runs of the same work.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Timed {
    /// Microseconds of each run, the fastest first.
    us: Vec<f64>,
    /// The work of a run: bytes that it reads, or floating-point operations.
    work: f64,
}

impl Timed {
    /// The median in microseconds.
    pub(super) fn median(&self) -> f64 {
        self.us.get(self.us.len().saturating_sub(1) / 2).copied().unwrap_or(f64::NAN)
    }

    /// The time that a part of the runs, between 0 and 1, is at least as fast as.
    pub(super) fn quantile(&self, part: f64) -> f64 {
        let last = self.us.len().saturating_sub(1) as f64;
        self.us.get((part * last).round() as usize).copied().unwrap_or(f64::NAN)
    }

    /// The standard deviation in microseconds.
    pub(super) fn deviation(&self) -> f64 {
        let n = self.us.len().max(1) as f64;
        let mean = self.us.iter().sum::<f64>() / n;
        (self.us.iter().map(|time| (time - mean).powi(2)).sum::<f64>() / n).sqrt()
    }

    /// Work per second, by the median.
    pub(super) fn rate(&self) -> f64 {
        self.work / (self.median() / 1e6)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_summed_up() {
        let timed = Timed { us: vec![1.0, 2.0, 2.0, 3.0, 12.0], work: 4e6 };
        assert_eq!(
            (timed.median(), [0.0, 0.1, 0.9, 1.0].map(|part| timed.quantile(part))),
            (2.0, [1.0, 1.0, 12.0, 12.0])
        );
        assert!((timed.rate() - 2e12).abs() < 1.0 && (timed.deviation() - 4.049_691).abs() < 1e-6);
        let none = Timed { us: Vec::new(), work: 1.0 };
        assert!(none.median().is_nan() && none.rate().is_nan());
    }
}
