//! Display names of engines and machines, and the marks of engines in plots.

use super::chart::Mark;
use super::group::{is_own, is_pinned, is_torch};
use super::number::count;
use super::svg::Shape;
use crate::engines::{Plain, peers};
use crate::record::{Device, Machine, Record};

/// Other implementations: engine, name, class and shape of the mark. The order is that of legends.
const OTHERS: [(&str, &str, &str, Shape); 10] = [
    ("peer:dcnv4-safe", "FlashDeformAttn", "k k4", Shape::Square),
    ("peer:dcnv4", "FlashDeformAttn, as published", "k k4 hollow", Shape::Square),
    ("peer:triton", "msda-triton", "k k1", Shape::Triangle),
    ("peer:triton-query-block", "query-block Triton", "k k5", Shape::Triangle),
    ("peer:mmcv", "mmcv", "k k2", Shape::Diamond),
    ("peer:original", "original", "k k3", Shape::Circle),
    ("peer:hub", "transformers", "k k5", Shape::Diamond),
    (Plain::NAME, "plain loop", "k kt hollow", Shape::Diamond),
    ("torch-cuda", "torch", "k kt", Shape::Circle),
    ("torch", "torch", "k kt", Shape::Circle),
];

/// The display name of an engine.
pub(super) fn engine(name: &str) -> String {
    match OTHERS.iter().find(|other| other.0 == name) {
        Some(other) => other.1.into(),
        None => name.strip_prefix(peers::PREFIX).unwrap_or(name).into(),
    }
}

/// The implementation that an engine runs, however it is launched.
pub(super) fn implementation(name: &str) -> String {
    let article = if name == Plain::NAME { "a " } else { "" };
    format!("{article}{}", engine(name).trim_end_matches(", as published"))
}

/// The position of an engine in legends and columns: ours, pinned kernels, others, torch.
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

/// A mark with the class, the shape and the position of an engine.
pub(super) fn mark(name: &str) -> Mark {
    let (class, shape) = match OTHERS.iter().find(|other| other.0 == name) {
        Some(other) => (other.2, other.3),
        None if is_own(name) => ("k k0", Shape::Circle),
        None => ("k kt hollow", Shape::Diamond),
    };
    Mark { class, shape, order: order(name), ..Mark::default() }
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
