//! Display names of engines and machines.

use super::group::{is_own, is_pinned, is_torch};
use super::number::count;
use crate::engines::BASELINE;
use crate::record::{Device, Machine, Record};

/// Other implementations: engine and name, in the order of charts.
const OTHERS: [(&str, &str); 11] = [
    ("peer:dcnv4-safe", "FlashDeformAttn"),
    ("peer:dcnv4", "FlashDeformAttn, as published"),
    ("peer:triton", "msda-triton"),
    ("peer:triton-query-block", "query-block Triton"),
    ("peer:mmcv", "mmcv"),
    ("peer:original", "original"),
    ("peer:hub", "hub kernel"),
    (PLAIN, "plain loop"),
    (BASELINE, "portable code"),
    ("torch-cuda", "torch"),
    ("torch", "torch"),
];

/// A baseline of older records.
const PLAIN: &str = "plain";

/// The display name of an engine.
pub(super) fn engine(name: &str) -> String {
    match OTHERS.iter().find(|other| other.0 == name) {
        Some(other) => other.1.into(),
        None => name.strip_prefix("peer:").unwrap_or(name).into(),
    }
}

/// The implementation that an engine runs, however it is launched.
pub(super) fn implementation(name: &str) -> String {
    let article = if name == PLAIN { "a " } else { "" };
    format!("{article}{}", engine(name).trim_end_matches(", as published"))
}

/// The position of an engine in charts and lists: ours, pinned kernels, others, torch.
pub(super) fn order(name: &str) -> (usize, usize) {
    let known = OTHERS.iter().position(|other| other.0 == name);
    match known {
        _ if is_own(name) => (0, 0),
        _ if is_pinned(name) => (1, 0),
        Some(at) if is_torch(name) => (4, at),
        Some(at) => (2, at),
        None => (3, 0),
    }
}

/// The kind of a device, in capitals.
pub(super) fn place(device: Device) -> &'static str {
    if device == Device::Cuda { "GPU" } else { "CPU" }
}

/// The processor that a record's times on a device belong to.
pub(super) fn processor(record: &Record, device: Device) -> String {
    let machine = &record.machine;
    match (device, &machine.gpu) {
        (Device::Cuda, Some(gpu)) => gpu.name.clone(),
        (Device::Cuda, None) => "GPU".into(),
        (Device::Cpu, _) => cpu(machine),
    }
}

/// The processor without trademark signs, and how many logical processors it has.
pub(super) fn cpu(machine: &Machine) -> String {
    let name = machine.cpu.replace("(R)", "").replace("(TM)", "");
    format!("{name}, {}", count(machine.cores, "logical CPU"))
}

/// The time of a run: `2026-11-16 09:04:46 UTC`.
pub(super) fn date(run: &Record) -> String {
    run.created.replace('T', " ").replace('Z', " UTC")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_the_names_of_their_projects() {
        assert_eq!(engine("peer:dcnv4-safe"), "FlashDeformAttn");
        assert_eq!(implementation("peer:dcnv4"), "FlashDeformAttn");
        assert_eq!(engine("torch-cuda"), "torch");
        assert_eq!(engine("peer:mine"), "mine");
        assert!(order("cuda") < order("peer:mmcv") && order("peer:mmcv") < order("torch-cuda"));
    }
}
