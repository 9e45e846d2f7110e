//! The kernels of the probes: each contains the instructions that it measures, and no others that
//! would count.

use msda_cuda::driver::Arch;
use msda_study::probes::{self, Kernel};

use super::harness::{Built, Case, OTHERS, USUAL, Weight, build, place, tools};

/// Bytes of stack that a kernel with TMA copies may have: on newer architectures it contains a call
/// for targets in other blocks, which never happens.
const COPY_STACK: u32 = 8;

fn case(kernel: Kernel) -> Case {
    Case {
        name: kernel.unit.key.clone(),
        weight: Weight::Workload,
        entry: Kernel::ENTRY,
        threads: kernel.threads,
        argument: kernel.argument,
        shared: 0,
        unit: kernel.unit,
    }
}

/// The instructions that a probe measures: name, bits of a load or store, least and most.
fn wanted(key: &str) -> Vec<(&'static str, Option<u32>, usize, usize)> {
    const ANY: usize = usize::MAX;
    match key.trim_start_matches("probe-") {
        "fill" => vec![("STG", Some(32), 1, ANY), ("LDG", None, 0, 0)],
        "stream" | "gather-64" | "gather-128" => vec![("LDG", Some(128), 8, 8), ("LDG", None, 8, 8)],
        "fma-f32" => vec![("FFMA", None, 128, ANY)],
        "fma-f16" => vec![("HFMA2", None, 128, ANY)],
        "shared-4" => vec![("LDS", Some(32), 8, 8)],
        "shared-16" => vec![("LDS", Some(128), 8, 8)],
        "claims-thread" | "claims-block" => vec![("STG", Some(32), 1, 1), ("LDG", None, 0, 0)],
        "tile-scalar" | "tile-maps-scalar" => vec![("LDG", Some(16), 32, 32), ("LDG", None, 32, 32)],
        "copies-halves" => vec![("LDG", Some(16), 4, 5), ("STS", Some(16), 4, 5)],
        "tile-tma" | "tile-tma-64" | "tile-maps-tma-64" | "tile-warp-tma" => {
            vec![("UTMALDG", None, 1, 1), ("SYNCS", None, 3, ANY)]
        }
        "tile-manual" | "tile-warp-manual" => vec![("LDG", Some(128), 1, 1), ("STS", Some(128), 1, 1)],
        "tile-warp-prefetch" => vec![("LDG", Some(128), 4, 4), ("STS", Some(128), 4, 4)],
        "tile-async" | "tile-warp-async" => vec![("LDGSTS", Some(128), 1, 4), ("LDG", None, 0, 0)],
        "copies-words" | "copies-channels" => vec![("LDG", Some(32), 4, 5), ("STS", Some(32), 4, 5)],
        "copies-vectors" => vec![("LDG", Some(128), 4, 5), ("STS", Some(128), 4, 5)],
        "copies-async" => vec![("LDGSTS", Some(128), 4, 5), ("LDG", None, 0, 0)],
        "copies-channels-async" => vec![("LDGSTS", Some(32), 4, 5), ("LDG", None, 0, 0)],
        "copies-bulk" => vec![("UBLKCP", None, 1, 5), ("LDG", None, 0, 0)],
        "copies-tensor" => vec![("UTMALDG", None, 1, 5), ("LDG", None, 0, 0)],
        // A barrier before the first load and one before the exit. Remote loads are generic loads
        // (LD).
        "clusters-8-remote" | "clusters-16-remote" => {
            vec![("UCGABAR_ARV", None, 2, 2), ("UCGABAR_WAIT", None, 2, 2), ("LD", Some(128), 10, 10)]
        }
        // The same without the barrier before the exit.
        "clusters-8-unguarded" | "clusters-16-unguarded" => {
            vec![("UCGABAR_ARV", None, 1, 1), ("UCGABAR_WAIT", None, 1, 1), ("LD", Some(128), 10, 10)]
        }
        "clusters-8-local" | "clusters-16-local" => {
            vec![("UCGABAR_ARV", None, 2, 2), ("UCGABAR_WAIT", None, 2, 2), ("LDS", Some(128), 10, 10)]
        }
        other => panic!("no instructions are listed for {other}"),
    }
}

fn broken(built: &Built) -> Vec<String> {
    let key = &built.case.unit.key;
    let mapped = key.contains("tma") || key.contains("tensor");
    let mut broken = built.broken_rules(|_, _| Vec::new());
    // A tensor map is aligned, so the argument has gaps that the cubin does not count.
    broken.retain(|why| !(mapped && why.contains("the host passes")));
    if built.compiled.spills() > 0 {
        broken.push(format!("{} bytes of spills", built.compiled.spills()));
    }
    let may = if mapped { COPY_STACK } else { 0 };
    if built.compiled.stack() > may {
        broken.push(format!("{} bytes of stack", built.compiled.stack()));
    }
    if let Some(code) = &built.code {
        for (name, bits, fewest, most) in wanted(key) {
            let count = bits.map_or_else(|| code.count(name), |bits| code.count_bits(name, bits));
            if !(fewest..=most).contains(&count) {
                broken.push(format!("{count} of {name} {bits:?}, expected {fewest} to {most}"));
            }
        }
    }
    broken
}

fn check(archs: &[Arch]) {
    let Some((_, nvdisasm)) = tools() else { return };
    let mut wrong = Vec::new();
    for &arch in archs {
        let cases: Vec<Case> = probes::kernels(arch).into_iter().map(case).collect();
        match build(&cases, nvdisasm.as_deref()) {
            Ok(built) => {
                for built in &built {
                    wrong.extend(broken(built).iter().map(|why| format!("{}: {why}", place(&built.case))));
                }
            }
            Err(why) => wrong.extend(why),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn probes_contain_what_they_measure() {
    check(USUAL);
}

#[test]
#[ignore = "it takes a minute: `cargo xtask kernels` runs it"]
fn probes_of_other_architectures_contain_what_they_measure() {
    check(OTHERS);
}

/// A probe with other loads, or without loads, is noticed.
#[test]
fn wrong_probes_are_noticed() {
    let Some((_, Some(nvdisasm))) = tools() else { return };
    let all = probes::kernels(Arch::new(9, 0));
    let of = |key: &str| all.iter().find(|kernel| kernel.unit.key == key).unwrap();
    for (key, instead) in [
        ("probe-tile-tma", "probe-tile-manual"),
        ("probe-clusters-8-remote", "probe-clusters-8-local"),
        ("probe-shared-16", "probe-shared-4"),
        ("probe-copies-async", "probe-copies-vectors"),
    ] {
        let mut case = case(of(instead).clone());
        case.unit.key = key.into();
        let built = build(&[case], Some(&nvdisasm)).unwrap().remove(0);
        assert!(!broken(&built).is_empty(), "{key}");
    }
}
