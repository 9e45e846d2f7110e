//! The sentences that end a benchmark: how fast, compared with what, and how to see more.

use super::group::{is_own, is_plain, is_torch, positive};
use super::number::{count, times};
use crate::record::{Device, Measurement, Pass, Record};

/// How fast a run found this project's engines to be, compared with the plain loop and torch.
pub fn verdict(record: &Record) -> Vec<String> {
    [Device::Cpu, Device::Cuda].into_iter().filter_map(|device| of_device(record, device)).collect()
}

/// How to measure what this run left out for want of torch or a GPU.
pub fn advice(record: &Record) -> Option<String> {
    let is_missing = |what: &str| record.skipped.iter().any(|s| s.what == what);
    let torch = "To compare with torch, run `cargo xtask setup` in the project's folder, or set MSDA_PYTHON to \
                 a Python that has torch.";
    let gpu = "To measure a GPU, install NVIDIA's driver and NVRTC; `msda doctor` shows what is missing.";
    let all: Vec<&str> = [("torch", torch), ("cuda", gpu)]
        .into_iter()
        .filter(|(what, _)| is_missing(what))
        .map(|a| a.1)
        .collect();
    (!all.is_empty()).then(|| all.join(" "))
}

/// Where speeds are compared: one dtype, one number of threads.
struct Place<'a> {
    record: &'a Record,
    device: Device,
    dtype: &'a str,
    threads: usize,
}

fn of_device(record: &Record, device: Device) -> Option<String> {
    let own = |m: &&Measurement| m.device == device && is_own(&m.engine);
    let ours: Vec<&Measurement> = record.measurements.iter().filter(own).collect();
    let threads = ours.iter().map(|m| m.threads).max()?;
    // f32 is what everybody has; on a GPU models run in f16.
    let usual = if device == Device::Cpu { "f32" } else { "f16" };
    let dtype = ours.iter().map(|m| m.dtype.as_str()).find(|d| *d == usual).unwrap_or(&ours[0].dtype);
    let place = Place { record, device, dtype, threads };
    let base: fn(&str) -> bool = if device == Device::Cpu { is_plain } else { is_torch };
    let engine = place.fastest(&ours, base)?;
    let mut said = place.compare(engine, base).map(|(gain, workloads)| {
        let name = if device == Device::Cpu { "the plain loop" } else { "torch" };
        let threads =
            if device == Device::Cpu { format!(", {}", count(threads, "thread")) } else { String::new() };
        let mean = if workloads > 1 { format!(", mean of {workloads} workloads") } else { String::new() };
        format!("{engine} is {gain} {name} ({dtype}{threads}{mean}).")
    });
    if device == Device::Cpu
        && let Some((gain, _)) = place.compare(engine, is_torch)
    {
        let torch = format!("It is {gain} torch.");
        said = Some(said.map_or_else(|| torch.clone(), |said| format!("{said} {torch}")));
    }
    said
}

impl Place<'_> {
    /// Our engine with the largest gain over a baseline, forward if that was measured.
    fn fastest<'m>(&self, ours: &[&'m Measurement], base: fn(&str) -> bool) -> Option<&'m str> {
        let forward = ours.iter().any(|m| m.pass == Pass::Forward);
        let pass = if forward { Pass::Forward } else { Pass::Backward };
        let gain = |m: &&Measurement| self.gain(&m.engine, base, pass).map_or(0.0, |(gain, _)| gain);
        let best =
            ours.iter().copied().filter(|m| m.pass == pass).max_by(|a, b| gain(a).total_cmp(&gain(b)))?;
        Some(&best.engine)
    }

    /// `6.1x as fast forward and 4.2x as fast backward as`, and the number of workloads.
    fn compare(&self, engine: &str, base: impl Fn(&str) -> bool + Copy) -> Option<(String, usize)> {
        let gains = [Pass::Forward, Pass::Backward].map(|pass| (pass, self.gain(engine, base, pass)));
        let said: Vec<String> = gains
            .iter()
            .filter_map(|(pass, gain)| Some(format!("{} as fast {pass}", times(Some((*gain)?.0)))))
            .collect();
        let workloads = gains.iter().filter_map(|(_, gain)| Some((*gain)?.1)).max()?;
        Some((said.join(" and ") + " as", workloads))
    }

    /// The geometric mean of an engine's speeds over a baseline's, and over how many workloads.
    fn gain(&self, engine: &str, base: impl Fn(&str) -> bool, pass: Pass) -> Option<(f64, usize)> {
        let here = |m: &&Measurement| {
            (m.device, m.pass, m.dtype.as_str(), m.threads) == (self.device, pass, self.dtype, self.threads)
        };
        let all = || self.record.measurements.iter().filter(here);
        let ratio = |m: &Measurement| {
            let base = all().find(|b| b.workload == m.workload && b.cold == m.cold && base(&b.engine))?;
            positive(base.time.median / m.time.median)
        };
        let ratios: Vec<f64> = all().filter(|m| m.engine == engine).filter_map(ratio).collect();
        let mean = ratios.iter().map(|r| r.ln()).sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty()).then(|| (mean.exp(), ratios.len()))
    }
}
