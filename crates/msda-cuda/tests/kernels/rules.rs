//! Rules for the kernels of this crate.

use msda_bench::gpu::disassembly::Code;

use super::harness::rules::number;
use super::harness::{Case, Weight};

/// The rules that a kernel breaks.
pub(crate) fn broken(case: &Case, code: &Code) -> Vec<String> {
    if ["forward/streaming.cu", "forward/resident.cu"].contains(&case.unit.file) {
        broken_by_rows(case, code)
    } else {
        Vec::new()
    }
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
