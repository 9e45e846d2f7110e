//! This computer: its processor, memory, GPU and load.

use msda::Isa;

use crate::gpu;
use crate::parallel::cores;
use crate::record::{Load, Machine};

/// The load per logical processor above which a run counts as disturbed.
const BUSY: f64 = 0.5;

/// Describes this computer and the GPU of this number. Call it before the run starts, so that the
/// load is not our own.
pub fn describe(gpu: usize) -> Machine {
    let cores = cores();
    Machine {
        cpu: cpu_name(),
        cores,
        memory_gib: memory_gib(),
        os: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        isas: Isa::available().into_iter().map(|isa| isa.name().to_owned()).collect(),
        torch: None,
        gpu: gpu::describe(gpu),
        load: load(cores),
    }
}

/// The value of the first line with this key, in a file such as /proc/cpuinfo.
fn field(path: &str, key: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find(|l| l.starts_with(key))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn cpu_name() -> String {
    field("/proc/cpuinfo", "model name")
        .or_else(|| {
            let out = std::process::Command::new("sysctl")
                .args(["-n", "machdep.cpu.brand_string"])
                .output()
                .ok()?;
            Some(String::from_utf8(out.stdout).ok()?.trim().to_owned()).filter(|s| !s.is_empty())
        })
        .unwrap_or_else(|| format!("unknown {}", std::env::consts::ARCH))
}

/// Memory of this computer in GiB; 0 if the system does not report it.
pub fn memory_gib() -> f64 {
    let kib = field("/proc/meminfo", "MemTotal")
        .and_then(|s| s.split_whitespace().next()?.parse::<f64>().ok())
        .unwrap_or(0.0);
    (kib / (1024.0 * 1024.0) * 10.0).round() / 10.0
}

/// The load of the last minute, if the system reports it.
fn load(cores: usize) -> Option<Load> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(load_of(text.split_whitespace().next()?.parse().ok()?, cores))
}

fn load_of(average: f64, cores: usize) -> Load {
    let per_core = average / cores.max(1) as f64;
    Load { per_core: (per_core * 100.0).round() / 100.0, busy: per_core > BUSY }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_busy_from_half_a_program_per_core() {
        assert_eq!(load_of(1.0, 2), Load { per_core: 0.5, busy: false });
        assert_eq!(load_of(12.0, 16), Load { per_core: 0.75, busy: true });
    }
}
