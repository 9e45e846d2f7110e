//! Rules for the kernels of the ladder.

use msda_bench::gpu::disassembly::Code;

use super::harness::Case;
use super::harness::rules::number;

/// The rules that a kernel breaks.
pub(crate) fn broken(case: &Case, code: &Code) -> Vec<String> {
    let mut broken = broken_by_rungs(case, code);
    if let Some(rung) = case.unit.file.strip_prefix("ladder/").filter(|_| case.entry == "msda_forward") {
        broken.extend(broken_by_rung(rung, case, code));
    }
    broken
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
        ("ladder/distributed_best.cu", _) => &[
            ("UCGABAR_ARV", 2, "blocks of a cluster wait before they read, and before they leave"),
            ("UCGABAR_WAIT", 2, "blocks of a cluster wait before they read, and before they leave"),
            ("LD", taps, "taps are read from the cluster"),
            ("LDGSTS", 1, "rows are copied past the registers"),
        ],
        ("ladder/async_multilevel.cu", _) => &[
            ("LDGSTS", 2, "the first tile, and the next while one is processed"),
            ("LDS", taps, "taps are read from shared memory"),
        ],
        ("ladder/distributed.cu", _) => &[("LDS", taps, "taps are read from shared memory")],
        ("ladder/tma_windows.cu", _) => {
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
            let bits = if define("INT8") == 1 { 8 } else { bits };
            at_least("taps from shared memory", code.count_bits("LDS", bits), taps);
            if define("TEXTURE") == 1 {
                at_least("samples from textures", code.count("TEX"), 1);
            } else if define("PREFETCH") == 1 {
                at_least("copies to shared memory", code.count("LDGSTS"), taps);
            } else {
                at_least("taps from device memory", code.count_bits("LDG", bits), taps);
            }
            if define("SAMPLES_PER_LOAD") == 4 && define("VEC") <= 4 && define("UNIFORM_POINTS") == 8 {
                at_least("wide loads of locations", code.count_bits("LDG", 128), 5);
                at_least("wide loads of weights", code.count_bits("LDG", 64), 1);
            }
            if define("LOADERS") > 0 {
                at_least("barriers that are arrived at", code.count("SYNCS") + code.count("ATOMS"), 2);
            }
        }
        "direct.cu" if define("ELEMENT_LOADS") == 1 => {
            at_least("loads of one element", code.count_bits("LDG", 16), taps * define("VEC") / 2);
            return broken;
        }
        "direct.cu" if define("TABLE") > 0 => {
            let (name, memory) =
                if define("TABLE") == 1 { ("LD", "memory") } else { ("LDS", "shared memory") };
            at_least(&format!("loads of the table from {memory}"), code.count(name), 1);
            return broken;
        }
        "distributed.cu" if define("ASYNC") == 1 => {
            at_least("copies past the registers", code.count("LDGSTS"), 1);
            return broken;
        }
        "loading_warps.cu" => {
            at_least("barriers that are arrived at", code.count("SYNCS") + code.count("ATOMS"), 2);
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
                // Two at a time, for sums of two channels.
                _ if define("HALF_WEIGHTS") == 1 => ("PRMT", taps * piece.min(define("D")) / 2),
                _ => ("PRMT", taps * piece.min(define("D"))),
            };
            at_least("bytes made numbers", code.count(name), wanted);
        }
        _ => return broken,
    }
    if file == "persistent.cu" {
        let taken = code.count("ATOM") + code.count("ATOMG");
        at_least("items taken from the counter", taken, if define("STATIC") == 1 { 0 } else { 2 });
    }
    let vague = code.count("LD") + code.count("ST");
    if vague > 0 {
        broken.push(format!(
            "{vague} generic loads and stores: the compiler did not find out which memory it is"
        ));
    }
    broken
}
