//! The compiled kernel: instructions by kind, registers, shared memory, and resident blocks per SM.

use std::collections::BTreeMap;

use anyhow::{Context, Result, anyhow};
use msda_bench::gpu::cubin;
use msda_bench::gpu::disassembly::{Code, nvdisasm};
use msda_cuda::Target;
use msda_cuda::jit::{self, Compiled, Resources};
use msda_cuda::kernels::Prepared;

use crate::found::Metric;

/// Registers and spilled bytes per thread, shared memory per block (static and dynamic) and
/// resident blocks per SM, as figures.
pub(super) fn resources(
    compiled: &Compiled,
    prepared: &Prepared,
    target: &Target,
) -> Result<[Metric<'static>; 4]> {
    // Some compilers print no resources: then the cubin has them.
    let told = compiled.resources().into_iter().find(|used| used.entry == prepared.entry);
    let found = || {
        let registers = cubin::registers(&compiled.cubin, prepared.entry)? as u32;
        let shared = cubin::shared_bytes(&compiled.cubin, prepared.entry).saturating_sub(RESERVED) as u32;
        Some(Resources { entry: prepared.entry.into(), registers, shared, ..Default::default() })
    };
    let used = told.or_else(found);
    let used = used.with_context(|| format!("kernel {}: not in the compiled module", prepared.entry))?;
    let shared = used.shared as usize + prepared.launch.shared as usize;
    let threads = prepared.launch.block.iter().map(|&n| n as usize).product();
    Ok([
        ("registers", f64::from(used.registers), ""),
        ("spills", f64::from(used.spill_stores + used.spill_loads), "B"),
        ("shared", shared as f64, "B"),
        ("resident-blocks", resident(target, threads, used.registers as usize, shared) as f64, ""),
    ])
}

/// The number of instructions of each kind.
type Kinds = BTreeMap<&'static str, usize>;

/// Instructions by kind. Loads from global memory are counted by width.
pub(super) fn kinds(compiled: &Compiled, prepared: &Prepared, target: &Target) -> Result<Kinds> {
    let disassembler = nvdisasm(jit::nvrtc()?.path()).map_err(|why| anyhow!(why))?;
    let code = cubin::instructions(&compiled.cubin, prepared.entry).to_vec();
    let code = Code::of(&[code], target.arch, &disassembler).map_err(|why| anyhow!(why))?;
    let mut kinds = BTreeMap::new();
    for kind in code[0].opcodes().iter().filter_map(|opcode| kind(opcode)) {
        *kinds.entry(kind).or_insert(0) += 1;
    }
    Ok(kinds)
}

/// Bytes of shared memory per block that the system reserves, since sm_80.
const RESERVED: usize = 1024;

/// Registers of an SM, on every architecture that kernels are compiled for.
const REGISTERS: usize = 65536;

/// Resident blocks per SM, as registers, shared memory and threads allow.
fn resident(target: &Target, threads: usize, registers: usize, shared: usize) -> usize {
    let warps = threads.div_ceil(32).max(1);
    // Registers are allocated to warps in units of 256.
    let of_warp = (registers * 32).next_multiple_of(256).max(256);
    let by_registers = REGISTERS / (of_warp * warps);
    let by_threads = target.threads() as usize / threads.max(1);
    let by_shared = (target.shared() + RESERVED) / (shared + RESERVED);
    by_registers.min(by_threads).min(by_shared).min(32)
}

/// The kind of an instruction; none for padding.
fn kind(opcode: &str) -> Option<&'static str> {
    let has = |modifier: &str| opcode.split('.').skip(1).any(|m| m == modifier);
    let name = opcode.split('.').next().unwrap_or_default();
    Some(match name {
        "NOP" => return None,
        "LDG" | "LD" if has("128") => "loads.128",
        "LDG" | "LD" if has("64") => "loads.64",
        "LDG" | "LD" if has("U16") || has("S16") || has("U8") || has("S8") => "loads.16",
        "LDG" | "LD" => "loads.32",
        "STG" | "ST" | "RED" | "ATOMG" | "ATOM" => "stores",
        "LDS" | "LDSM" => "shared-loads",
        "STS" | "LDGSTS" | "ATOMS" => "shared-stores",
        "LDL" | "STL" => "local",
        "LDC" | "ULDC" | "LDCU" => "constants",
        "SHFL" => "shuffles",
        // With .F32 it converts f16 to f32.
        "HADD2" if has("F32") => "conversions",
        "F2F" | "F2FP" | "I2F" | "I2FP" | "F2I" | "FRND" | "I2I" => "conversions",
        "HMMA" | "IMMA" | "QMMA" | "HGMMA" | "QGMMA" => "matrix",
        "TEX" | "TLD" | "TLD4" | "TXQ" => "texture",
        "BRA" | "BRX" | "JMP" | "EXIT" | "RET" | "CALL" | "BSSY" | "BSYNC" | "BREAK" => "branches",
        "BAR" | "WARPSYNC" | "SYNCS" | "MEMBAR" | "DEPBAR" | "UTMALDG" | "UBLKCP" => "waiting",
        _ if name.starts_with('F') || name == "MUFU" => "float",
        _ if name.starts_with('H') => "half",
        _ => "integer",
    })
}

#[cfg(test)]
mod tests {
    use msda_cuda::driver::Arch;

    use super::*;

    #[test]
    fn instructions_have_kinds() {
        for (opcode, expected) in [
            ("LDG.E.128.CONSTANT", Some("loads.128")),
            ("LDG.E.U16", Some("loads.16")),
            ("LDG.E", Some("loads.32")),
            ("HADD2.F32", Some("conversions")),
            ("HFMA2.MMA", Some("half")),
            ("FFMA", Some("float")),
            ("IMAD.WIDE", Some("integer")),
            ("UTMALDG.2D", Some("waiting")),
            ("NOP", None),
        ] {
            assert_eq!(kind(opcode), expected, "{opcode}");
        }
    }

    #[test]
    fn the_scarcest_resource_limits_resident_blocks() {
        let target = Target { arch: Arch::new(9, 0), sms: 132 };
        assert_eq!(resident(&target, 512, 40, 0), 3, "registers");
        assert_eq!(resident(&target, 1024, 32, 0), 2, "threads");
        assert_eq!(resident(&target, 128, 32, 100 << 10), 2, "shared memory");
        assert_eq!(resident(&target, 32, 16, 0), 32, "blocks");
    }
}
