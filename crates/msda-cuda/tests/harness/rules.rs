//! Rules for every kernel, independent of the snapshots.

use msda_bench::gpu::cubin;
use msda_bench::gpu::disassembly::Code;
use msda_cuda::Target;
use msda_cuda::jit::Compiled;

use super::{Case, Weight};

/// Registers per SM, and the most per thread.
const REGISTERS: (usize, usize) = (65536, 255);

/// Bytes that the kernel of a workload may spill, with any compiler: a few numbers per query. The
/// snapshots have the exact number for one compiler.
const MAY_SPILL: u32 = 64;

/// The rules that a kernel breaks.
pub(crate) fn broken(case: &Case, compiled: &Compiled, code: Option<&Code>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut rule = |holds: bool, message: String| {
        if !holds {
            broken.push(message);
        }
    };
    let warnings: Vec<_> =
        compiled.log.lines().filter(|line| line.contains("warning") && !line.starts_with("Remark")).collect();
    rule(warnings.is_empty(), format!("warnings: {}", warnings.join("; ")));

    let used = compiled.resources().into_iter().find(|used| used.entry == case.entry);
    rule(used.is_some(), format!("the log has no kernel {}", case.entry));
    let used = used.unwrap_or_default();

    let blocks = number(case, "BLOCKS_PER_SM").unwrap_or(1);
    let most = (REGISTERS.0 / (case.threads as usize * blocks) / 8 * 8).min(REGISTERS.1);
    let registers = used.registers as usize;
    rule((1..=most).contains(&registers), format!("{registers} registers, at most {most} fit"));

    let room = Target { arch: case.unit.arch, sms: 1 }.shared();
    let shared = used.shared as usize + case.shared;
    rule(shared <= room, format!("{shared} bytes of shared memory, at most {room} fit"));

    let (spills, stack) = (used.spill_stores + used.spill_loads, used.stack);
    if case.weight == Weight::Workload {
        rule(spills <= MAY_SPILL, format!("{spills} bytes of spills, at most {MAY_SPILL} are allowed"));
        rule(stack <= MAY_SPILL, format!("{stack} bytes of stack, at most {MAY_SPILL} are allowed"));
    }

    let counted = cubin::registers(&compiled.cubin, case.entry);
    rule(counted == Some(registers), format!("the cubin has {counted:?} registers, the log {registers}"));

    let parameters = cubin::parameter_bytes(&compiled.cubin, case.entry);
    rule(
        parameters == Some(case.argument),
        format!("the kernel takes {parameters:?} bytes, the host passes {}", case.argument),
    );

    if let Some(code) = code {
        let local = code.count("LDL") + code.count("STL");
        rule(
            local == 0 || spills + stack > 0,
            format!("{local} accesses to local memory that the log does not list"),
        );
    }
    broken
}

/// A macro whose value is a number.
pub(crate) fn number(case: &Case, name: &str) -> Option<usize> {
    case.unit.defines.iter().find(|(define, _)| define == name)?.1.parse().ok()
}
