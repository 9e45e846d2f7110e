//! The kernels of this crate without a GPU: NVRTC compiles the chosen kernels, and the machine code
//! is compared with rules and with the snapshots in `tests/snapshots/`.

mod cases;
#[path = "../harness/mod.rs"]
mod harness;
mod rules;

use std::process::Command;
use std::{env, thread};

use msda_cuda::choose::Tuned;
use msda_cuda::driver::Arch;

use harness::{Built, OTHERS, USUAL, build, check, tools};

/// Compares the chosen kernels with the snapshots. This machine's tuned kernels would be chosen
/// first: where there are some, a process that does not read them runs the test.
fn compare(archs: &[Arch]) {
    if Tuned::path().is_some_and(|path| path.exists()) {
        let name = thread::current().name().unwrap_or_default().to_owned();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", &name, "--include-ignored", "--nocapture"])
            .env("MSDA_TUNED", "")
            .status();
        assert!(child.unwrap().success(), "see above");
        return;
    }
    check(archs, cases::cases, rules::broken);
}

#[test]
fn chosen_kernels_match_the_snapshots() {
    compare(USUAL);
}

#[test]
#[ignore = "it takes minutes: `cargo xtask kernels` runs it"]
fn chosen_kernels_of_other_architectures_match_the_snapshots() {
    compare(OTHERS);
}

/// The rules notice wrong kernels.
#[test]
fn wrong_kernels_are_noticed() {
    let Some((_, nvdisasm)) = tools() else { return };
    let good = cases::case("detr-encoder-f16", Arch::new(9, 0));
    let changed = |name: &str, value: &str| {
        let mut case = good.clone();
        case.unit.defines.retain(|(define, _)| define != name);
        case.unit = case.unit.define(name, value);
        build(&[case], nvdisasm.as_deref())
    };
    let built = |name: &str, value: &str| changed(name, value).unwrap().remove(0);
    let notices = |built: &Built, message: &str| {
        let broken = built.broken_rules(rules::broken).join("; ");
        assert!(broken.contains(message), "'{message}' is not in '{broken}'");
    };
    // Host and kernel disagree about a size: it does not compile.
    for (name, value, message) in [
        ("LEVELS", "5", "disagree about the argument"),
        ("ARGS_BYTES", "8", "disagree about the argument"),
        ("ARGS_FIELDS", "ARG(heads, 128)", "disagree about the argument: heads"),
        ("SAMPLES_PER_LANE", "2", "disagree about staging"),
    ] {
        let error = changed(name, value).err().expect(name).join("; ");
        assert!(error.contains(message), "'{message}' is not in '{error}'");
    }
    notices(&built("BLOCKS_PER_SM", "5"), "registers, at most");
    let mut narrow = built("VEC", "8");
    narrow.compiled.log += "streaming.cu(7): warning #177-D: declared but never referenced";
    notices(&narrow, "warning #177-D");
    // The kernel loads half of each row, and the case says all of it.
    if nvdisasm.is_some() {
        notices(&Built { case: good, ..narrow }, "loads of 128 bits, but");
    }
}
