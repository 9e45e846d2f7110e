//! Compiles kernels with NVRTC, without a GPU, and compares the machine code with rules and
//! snapshots.
//!
//! Without NVRTC or nvdisasm the tests say so and skip that part. With `MSDA_NVRTC` or
//! `MSDA_PYTHON` (`MSDA_NVDISASM`) set, they fail instead. `MSDA_UPDATE_SNAPSHOTS=1` updates the
//! snapshots in `tests/snapshots/`. `cargo xtask kernels` includes the tests that are ignored.

pub(crate) mod rules;
pub(crate) mod snapshot;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use msda_bench::gpu::cubin;
use msda_bench::gpu::disassembly::{self, Code};
use msda_cuda::driver::Arch;
use msda_cuda::jit::{self, Compiled, Unit};
use msda_cuda::kernels::Prepared;

use snapshot::{Row, Snapshot};

/// Rules for some kernels: the ones that a kernel breaks.
pub(crate) type Rules = fn(&Case, &Code) -> Vec<String>;

/// The command that updates the snapshots.
const ACCEPT: &str = "MSDA_UPDATE_SNAPSHOTS=1 cargo xtask kernels";

/// All cases are compiled for this architecture. The others get the workloads and a few options.
pub(crate) const FULL: Arch = Arch::new(9, 0);

/// The oldest architecture, [`FULL`] and the newest: every test run compiles for these.
pub(crate) const USUAL: &[Arch] = &[Arch::new(7, 5), FULL, Arch::new(12, 0)];

/// One architecture of each other generation: `cargo xtask kernels` compiles for these too.
pub(crate) const OTHERS: &[Arch] = &[Arch::new(8, 0), Arch::new(8, 6), Arch::new(8, 9), Arch::new(10, 0)];

/// The number of SMs of the targets.
pub(crate) const SMS: u32 = 132;

/// For which architectures a case is compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weight {
    /// All of them, and with the rule for workloads: hardly any local memory, and none between
    /// taps.
    Workload,
    /// All of them.
    Everywhere,
    /// One of them.
    Once,
}

/// A kernel to compile.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) weight: Weight,
    pub(crate) unit: Unit,
    pub(crate) entry: &'static str,
    /// Threads per block.
    pub(crate) threads: u32,
    /// Bytes of the argument.
    pub(crate) argument: usize,
    /// Bytes of shared memory that the launch asks for.
    pub(crate) shared: usize,
}

impl Case {
    pub(crate) fn new(name: String, weight: Weight, prepared: &Prepared) -> Self {
        Self {
            name,
            weight,
            entry: prepared.entry,
            shared: prepared.launch.shared as usize,
            threads: prepared.launch.block.iter().product(),
            argument: prepared.args.bytes().len(),
            unit: prepared.unit.clone(),
        }
    }
}

/// Kernels that take longer to compile are listed.
const SLOW: Duration = Duration::from_secs(1);

/// The compiler's name and the disassembler, if there is a compiler.
pub(crate) fn tools() -> Option<(String, Option<PathBuf>)> {
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
pub(crate) struct Built {
    pub(crate) case: Case,
    pub(crate) compiled: Compiled,
    pub(crate) took: Duration,
    pub(crate) code: Option<Code>,
}

/// The cases of one unit, compiled once: a file may have several kernels.
fn compile(cases: &[&Case]) -> Result<Vec<Built>, String> {
    let start = Instant::now();
    let compiled = jit::compile(&cases[0].unit).map_err(|error| format!("{}: {error}", place(cases[0])))?;
    let took = start.elapsed();
    let built = |case: &&Case| Built { case: (*case).clone(), compiled: compiled.clone(), took, code: None };
    Ok(cases.iter().map(built).collect())
}

impl Built {
    /// The rules that it breaks: those that hold for all kernels, and some more.
    pub(crate) fn broken_rules(&self, more: Rules) -> Vec<String> {
        let mut broken = rules::broken(&self.case, &self.compiled, self.code.as_ref());
        broken.extend(self.code.iter().flat_map(|code| more(&self.case, code)));
        broken
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
pub(crate) fn place(case: &Case) -> String {
    format!("{} {} ({})", case.unit.arch.target(), case.name, case.unit.key)
}

/// Compiles cases of one architecture and disassembles them, if there is a disassembler. Returns
/// all errors.
pub(crate) fn build(cases: &[Case], nvdisasm: Option<&Path>) -> Result<Vec<Built>, Vec<String>> {
    let mut units: Vec<Vec<&Case>> = Vec::new();
    for case in cases {
        match units.iter_mut().find(|unit| unit[0].unit == case.unit) {
            Some(unit) => unit.push(case),
            None => units.push(vec![case]),
        }
    }
    let (good, bad): (Vec<_>, Vec<_>) =
        in_parallel(&units, |unit| compile(unit)).into_iter().partition(Result::is_ok);
    if !bad.is_empty() {
        return Err(bad.into_iter().filter_map(Result::err).collect());
    }
    let mut built: Vec<Built> = good.into_iter().flatten().flatten().collect();
    let index = |built: &Built| cases.iter().position(|case| case.name == built.case.name);
    built.sort_by_key(index);
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

/// Compiles cases for these architectures and compares them with rules and snapshots.
pub(crate) fn check(archs: &[Arch], cases: impl Fn(Arch) -> Vec<Case>, more: Rules) {
    let Some((compiler, nvdisasm)) = tools() else { return };
    let (mut wrong, mut kernels) = (Vec::new(), 0);
    let mut broken: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for &arch in archs {
        let built = match build(&cases(arch), nvdisasm.as_deref()) {
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
            for rule in built.broken_rules(more) {
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
