//! Tests of the kernels without a GPU: NVRTC compiles the chosen kernels for every architecture,
//! and the result is compared with rules and with the snapshots in `tests/snapshots/`.
//!
//! Without NVRTC or nvdisasm the tests say so and skip that part. With `MSDA_NVRTC` or
//! `MSDA_PYTHON` (`MSDA_NVDISASM`) set, they fail instead. `MSDA_UPDATE_SNAPSHOTS=1` updates the
//! snapshots.

mod cases;
mod probes;
mod rules;
mod snapshot;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use msda_cuda::choose::Tuned;
use msda_cuda::driver::Arch;
use msda_cuda::jit::{self, Compiled, cubin, disassembly};

use cases::{ARCHS, Case};
use disassembly::Code;
use snapshot::{Row, Snapshot};

/// The command that updates the snapshots.
const ACCEPT: &str = "MSDA_UPDATE_SNAPSHOTS=1 cargo test -p msda-cuda --test kernels";

/// Kernels that take longer to compile are listed.
const SLOW: Duration = Duration::from_secs(1);

/// The compiler's name and the disassembler, if there is a compiler.
fn tools() -> Option<(String, Option<PathBuf>)> {
    let set = |name: &str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let nvrtc = match jit::nvrtc() {
        Ok(nvrtc) => nvrtc,
        Err(why) if set("MSDA_NVRTC") || set("MSDA_PYTHON") => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped: {why}");
            return None;
        }
    };
    let (major, minor) = nvrtc.version();
    let nvdisasm = match disassembly::nvdisasm(nvrtc.path()) {
        Ok(path) => Some(path),
        Err(why) if set("MSDA_NVDISASM") => panic!("{why}"),
        Err(why) => {
            eprintln!("skipped what needs a disassembler: {why}");
            None
        }
    };
    Some((format!("NVRTC {major}.{minor}"), nvdisasm))
}

/// A compiled case.
struct Built {
    case: Case,
    compiled: Compiled,
    took: Duration,
    code: Option<Code>,
}

impl Built {
    fn compile(case: &Case) -> Result<Self, String> {
        let start = Instant::now();
        let compiled = jit::compile(&case.unit).map_err(|error| format!("{}: {error}", place(case)))?;
        Ok(Self { case: case.clone(), compiled, took: start.elapsed(), code: None })
    }

    fn broken_rules(&self) -> Vec<String> {
        rules::broken(&self.case, &self.compiled, self.code.as_ref())
    }

    fn row(&self) -> Row {
        let code = self.code.clone().unwrap_or_default();
        let used = self.compiled.resources().into_iter().find(|used| used.entry == self.case.entry);
        let used = used.unwrap_or_default();
        let resources = [used.registers, used.spill_stores + used.spill_loads, used.stack, used.shared];
        let loads = [128, 64, 32, 16].map(|bits| code.count_bits("LDG", bits));
        let others = ["LDS", "STS", "SHFL", "HADD2", "FFMA", "IMAD"].map(|name| code.count(name));
        let numbers = resources.iter().map(|&n| n as usize).chain([code.len()]).chain(loads).chain(others);
        let numbers = numbers.collect::<Vec<_>>().try_into().unwrap();
        Row { name: self.case.name.clone(), key: self.case.unit.key.clone(), numbers }
    }
}

/// Names a case in messages.
fn place(case: &Case) -> String {
    format!("{} {} ({})", case.unit.arch.target(), case.name, case.unit.key)
}

/// Compiles cases of one architecture and disassembles them, if there is a disassembler. Returns
/// all errors.
fn build(cases: &[Case], nvdisasm: Option<&Path>) -> Result<Vec<Built>, Vec<String>> {
    let (good, bad): (Vec<_>, Vec<_>) =
        in_parallel(cases, Built::compile).into_iter().partition(Result::is_ok);
    if !bad.is_empty() {
        return Err(bad.into_iter().filter_map(Result::err).collect());
    }
    let mut built: Vec<Built> = good.into_iter().flatten().collect();
    if let (Some(nvdisasm), Some(first)) = (nvdisasm, cases.first()) {
        let code = |built: &Built| cubin::instructions(&built.compiled.cubin, built.case.entry).to_vec();
        let kernels: Vec<_> = built.iter().map(code).collect();
        let code = Code::of(&kernels, first.unit.arch, nvdisasm).map_err(|why| vec![why])?;
        for (built, code) in built.iter_mut().zip(code) {
            built.code = Some(code);
        }
    }
    Ok(built)
}

/// Calls `work` with every item, on all cores.
fn in_parallel<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let take = || {
        let mut done = Vec::new();
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return done };
            done.push((i, work(item)));
        }
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    results.sort_by_key(|(i, _)| *i);
    results.into_iter().map(|(_, result)| result).collect()
}

#[test]
fn chosen_kernels_match_the_snapshots() {
    let Some((compiler, nvdisasm)) = tools() else { return };
    // This machine's tuned kernels would be chosen first. Run the test in a process that does not
    // read them.
    if Tuned::path().is_some_and(|path| path.exists()) {
        let name = thread::current().name().unwrap_or_default().to_owned();
        let child = Command::new(env::current_exe().unwrap())
            .args(["--exact", &name, "--nocapture"])
            .env("MSDA_TUNED", "")
            .status();
        assert!(child.unwrap().success(), "see above");
        return;
    }
    let (mut wrong, mut kernels) = (Vec::new(), 0);
    let mut broken: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for arch in ARCHS {
        let built = match build(&cases::cases(arch), nvdisasm.as_deref()) {
            Ok(built) => built,
            Err(why) => {
                wrong.extend(why);
                continue;
            }
        };
        kernels += built.len();
        for slow in built.iter().filter(|built| built.took > SLOW) {
            eprintln!("{}: {:.1} s to compile", place(&slow.case), slow.took.as_secs_f64());
        }
        for built in &built {
            for rule in built.broken_rules() {
                broken.entry(rule).or_default().push(place(&built.case));
            }
        }
        let now = Snapshot { compiler: compiler.clone(), rows: built.iter().map(Built::row).collect() };
        wrong.extend(compare(&arch.target(), &now, nvdisasm.is_some()));
    }
    // A broken rule often concerns many kernels.
    wrong.extend(broken.iter().map(|(rule, places)| match places.len() {
        0..=4 => format!("{rule}: {}", places.join(", ")),
        n => format!("{rule}: {} and {} more", places[..4].join(", "), n - 4),
    }));
    assert!(wrong.is_empty(), "of {kernels} kernels:\n{}", wrong.join("\n"));
}

/// The rules notice wrong kernels.
#[test]
fn wrong_kernels_are_noticed() {
    let Some((_, nvdisasm)) = tools() else { return };
    let good = cases::case("detr-encoder-f16", Arch::new(9, 0));
    let built = |name: &str, value: &str| {
        let mut case = good.clone();
        case.unit.defines.retain(|(define, _)| define != name);
        case.unit = case.unit.define(name, value);
        build(&[case], nvdisasm.as_deref()).unwrap().remove(0)
    };
    let notices = |built: Built, message: &str| {
        let broken = built.broken_rules().join("; ");
        assert!(broken.contains(message), "'{message}' is not in '{broken}'");
    };
    // Host and kernel disagree about a size: it does not compile.
    for (name, value, message) in [
        ("LEVELS", "5", "disagree about the argument"),
        ("ARGS_BYTES", "8", "disagree about the argument"),
        ("SAMPLES_PER_LANE", "2", "disagree about staging"),
    ] {
        let mut case = good.clone();
        case.unit.defines.retain(|(define, _)| define != name);
        case.unit = case.unit.define(name, value);
        let error = build(&[case], None).err().expect(name).join("; ");
        assert!(error.contains(message), "'{message}' is not in '{error}'");
    }
    notices(built("BLOCKS_PER_SM", "5"), "registers, at most");
    let mut warned = built("VEC", "8");
    warned.compiled.log += "streaming.cu(7): warning #177-D: declared but never referenced";
    notices(warned, "warning #177-D");
    // The kernel loads half of each row, and the case says all of it.
    if nvdisasm.is_some() {
        notices(Built { case: good.clone(), ..built("VEC", "8") }, "loads of 128 bits, but");
        // The case says persistent, and the kernel is another one.
        let rung = cases::case("ladder:persistent-seed", Arch::new(9, 0));
        notices(Built { case: rung, ..built("VEC", "16") }, "items taken from the counter: 0");
    }
}

/// Compares a snapshot with the recorded one, or records it.
fn compare(arch: &str, now: &Snapshot, disassembled: bool) -> Option<String> {
    let path = Snapshot::path(arch);
    if env::var_os("MSDA_UPDATE_SNAPSHOTS").is_some_and(|value| value == "1") {
        assert!(disassembled, "snapshots need nvdisasm\nhint: `cargo xtask setup` installs it");
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, now.to_string()).unwrap();
        return None;
    }
    let recorded = fs::read_to_string(&path).map_err(|error| error.to_string());
    let recorded = match recorded.and_then(|text| Snapshot::parse(&text)) {
        Ok(recorded) => recorded,
        Err(error) => return Some(format!("{}: {error}\nhint: record it: {ACCEPT}", path.display())),
    };
    if recorded.compiler == now.compiler && disassembled {
        let difference = recorded.difference(now);
        return (!difference.is_empty())
            .then(|| format!("{} differs:\n{difference}to accept: {ACCEPT}", path.display()));
    }
    eprintln!(
        "{arch}: recorded with {}, this is {}{}: only limits are compared",
        recorded.compiler,
        now.compiler,
        if disassembled { "" } else { " without nvdisasm" }
    );
    let broken = recorded.limits(now, disassembled);
    (!broken.is_empty()).then(|| format!("{}: {}", path.display(), broken.join("; ")))
}
