//! The kernels of the study without a GPU: NVRTC compiles the ladder and the probes. The machine
//! code is compared with rules and with the snapshots in `tests/snapshots/`.

mod cases;
#[path = "../../../msda-cuda/tests/harness/mod.rs"]
mod harness;
mod probes;
mod rules;

use msda_cuda::driver::Arch;

use harness::{Built, OTHERS, USUAL, build, check, tools};

#[test]
fn rungs_match_the_snapshots() {
    check(USUAL, cases::cases, rules::broken);
}

#[test]
#[ignore = "it takes minutes: `cargo xtask kernels` runs it"]
fn rungs_of_other_architectures_match_the_snapshots() {
    check(OTHERS, cases::cases, rules::broken);
}

/// The rules notice a rung that is another kernel.
#[test]
fn wrong_rungs_are_noticed() {
    let Some((_, Some(nvdisasm))) = tools() else { return };
    let arch = Arch::new(9, 0);
    let [direct, persistent] =
        ["base", "persistent"].map(|name| cases::case(&format!("ladder:{name}-seed"), arch));
    let built = build(&[direct], Some(&nvdisasm)).unwrap().remove(0);
    let broken = Built { case: persistent, ..built }.broken_rules(rules::broken).join("; ");
    assert!(broken.contains("items taken from the counter: 0"), "{broken}");
}
