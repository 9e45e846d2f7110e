//! Rules for every kernel, independent of the snapshots.

use msda_cuda::jit::Compiled;

use super::cases::{Case, Weight};
use super::cubin;
use super::disassembly::Code;

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
        if ["forward/streaming.cu", "forward/resident.cu"].contains(&case.unit.file) {
            broken.extend(broken_by_rows(case, code));
        }
        broken.extend(broken_by_rungs(case, code));
        if let Some(rung) = case.unit.file.strip_prefix("ladder/").filter(|_| case.entry == "msda_forward") {
            broken.extend(broken_by_rung(rung, case, code));
        }
    }
    broken
}

/// Streaming and resident load 16 bytes of a row at a time, each tap once, and staged weights in
/// one load.
fn broken_by_rows(case: &Case, code: &Code) -> Vec<String> {
    let define = |name| number(case, name).unwrap_or(0);
    let mut broken = Vec::new();
    let staged = code.count_bits("LDS", 128) + code.count_bits("LDS", 64);
    // A nearest sample has one weight.
    if staged == 0 && define("NEAREST") == 0 {
        broken.push("staged weights are not loaded at once: neither LDS.128 nor LDS.64".into());
    }
    if define("VEC") < 16 {
        return broken;
    }
    let lanes = define("LANES_PER_ROW") * define("TAP_COLUMNS") * define("SAMPLE_GROUPS");
    let pass = lanes * define("SAMPLES_PER_LANE");
    let samples = pass.min(define("SAMPLES")) / define("SAMPLE_GROUPS");
    let taps = if define("NEAREST") == 1 { 1 } else { 4 / define("TAP_COLUMNS") };
    let wide = code.count_bits("LDG", 128);
    // Samples that load from global memory, and from shared memory. If the compiler does not know
    // which samples lie on resident levels, all have code for both.
    let (first, levels, points) = (define("FIRST_RESIDENT"), define("LEVELS"), define("UNIFORM_POINTS"));
    let known = points > 0 && points % define("SAMPLES_PER_LANE") == 0;
    let (global, shared) = match first < levels {
        true if known => (first * points, (levels - first) * points),
        true => (samples, samples),
        false => (samples, 0),
    };
    if wide < global * taps {
        broken.push(format!("{wide} loads of 128 bits, but {global} samples of {taps} taps"));
    }
    // A lane with both tap columns loads four weights, which are 128 bits too.
    let weights = if define("TAP_COLUMNS") == 1 && shared > 0 { global + shared } else { 0 };
    let from_shared = code.count_bits("LDS", 128);
    if from_shared < shared * taps + weights {
        let wanted = format!("{shared} samples of {taps} taps and {weights} of weights");
        broken.push(format!("{from_shared} loads of 128 bits from shared memory, but {wanted}"));
    }
    if case.weight == Weight::Workload && spills_among(code, global * taps) {
        broken.push("local memory is used between taps".into());
    }
    // Narrower loads: locations and weights, at worst number by number, of this pass, the next pass
    // and the exact sum; the order of queries; and in the exact sum the taps of lanes that share
    // channels.
    let narrow = code.count("LDG") - wide;
    let exact = match (define("TAP_COLUMNS") * define("SAMPLE_GROUPS"), define("NEAREST")) {
        (1, _) => 0,
        (_, nearest) => 4 - 3 * nearest,
    };
    let most = 3 * (2 * define("SAMPLES_PER_LANE") + 1) + define("ORDERED") + exact;
    if define("FUSED") == 0 && narrow > most {
        broken.push(format!("{narrow} loads of less than 128 bits, at most {most} are needed"));
    }
    broken
}

/// Whether local memory is used between the taps: where so many loads of 128 bits are closest
/// together.
fn spills_among(code: &Code, loads: usize) -> bool {
    let opcodes = code.opcodes();
    let is_wide = |opcode: &str| opcode.starts_with("LDG") && opcode.split('.').any(|part| part == "128");
    let wide: Vec<usize> = (0..opcodes.len()).filter(|&i| is_wide(&opcodes[i])).collect();
    let span = |from: &&[usize]| from[from.len() - 1] - from[0];
    let Some(taps) = wide.windows(loads.max(1)).min_by_key(span) else { return false };
    opcodes[taps[0]..=taps[taps.len() - 1]].iter().any(|o| o.starts_with("LDL") || o.starts_with("STL"))
}

/// Rungs contain the instructions that they exist for.
fn broken_by_rungs(case: &Case, code: &Code) -> Vec<String> {
    let taps = if number(case, "NEAREST") == Some(1) { 1 } else { 4 };
    let wanted: &[(&str, usize, &str)] = match (case.unit.file, case.entry) {
        ("ladder/distributed.cu", _) if number(case, "LOCAL") == Some(0) => &[
            ("UCGABAR_ARV", 2, "blocks of a cluster wait before they read, and before they leave"),
            ("UCGABAR_WAIT", 2, "blocks of a cluster wait before they read, and before they leave"),
            ("LD", taps, "taps are read from other blocks"),
        ],
        ("ladder/distributed.cu", _) => &[("LDS", taps, "taps are read from shared memory")],
        ("ladder/tma_multilevel.cu", _) => {
            &[("UTMALDG", 1, "the TMA copies windows"), ("SYNCS", 4, "warps wait for stages")]
        }
        ("ladder/tensor_core.cu", _) => {
            &[("HMMA", 2, "weights have several 16-bit terms"), ("LDSM", 1, "rows are loaded transposed")]
        }
        ("ladder/texture.cu", "msda_forward") => &[("TEX", 1, "samples are fetched from textures")],
        _ => &[],
    };
    let short = wanted.iter().filter(|(name, least, _)| code.count(name) < *least);
    short.map(|(name, least, why)| format!("{} {name}, at least {least}: {why}", code.count(name))).collect()
}

/// Rungs load taps in the way that their file says.
fn broken_by_rung(file: &str, case: &Case, code: &Code) -> Vec<String> {
    let define = |name| number(case, name).unwrap_or(0);
    let taps = if define("NEAREST") == 1 { 1 } else { 4 };
    let mut broken = Vec::new();
    let mut at_least = |what: &str, got: usize, wanted: usize| {
        if got < wanted {
            broken.push(format!("{what}: {got}, at least {wanted} are needed"));
        }
    };
    let bits = define("VEC") as u32 * 8;
    match file {
        "shared.cu" | "persistent.cu" => {
            at_least("taps from shared memory", code.count_bits("LDS", bits), taps);
            at_least("taps from device memory", code.count_bits("LDG", bits), taps);
        }
        "specialised.cu" => {
            // Before sm_90 arriving is an atomic, and waiting a load.
            at_least("barriers that are arrived at", code.count("SYNCS") + code.count("ATOMS"), 2);
            at_least(
                "taps from device memory",
                code.count_bits("LDG", bits),
                taps * define("SAMPLES_PER_PASS"),
            );
        }
        "quantised.cu" => {
            let piece = define("PIECE");
            at_least("taps of whole pieces", code.count_bits("LDG", piece as u32 * 8), taps);
            // e4m3 is converted two at a time; integers are picked byte by byte, only those that
            // are used.
            let (name, wanted) = match define("FP8") {
                1 => ("F2FP", taps * piece.min(define("D")) / 2),
                _ => ("PRMT", taps * piece.min(define("D"))),
            };
            at_least("bytes made numbers", code.count(name), wanted);
        }
        _ => return broken,
    }
    if file == "persistent.cu" {
        let taken = code.count("ATOM") + code.count("ATOMG");
        at_least("items taken from the counter", taken, 2);
    }
    let vague = code.count("LD") + code.count("ST");
    if vague > 0 {
        broken.push(format!(
            "{vague} generic loads and stores: the compiler did not find out which memory it is"
        ));
    }
    broken
}

/// A macro whose value is a number.
fn number(case: &Case, name: &str) -> Option<usize> {
    case.unit.defines.iter().find(|(define, _)| define == name)?.1.parse().ok()
}
