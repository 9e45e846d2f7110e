//! Checks of the ladder: every rung runs the battery, and every number of its output on a workload
//! is compared.
//!
//! Each result is a figure: `verify.battery.ladder:NAME.*`, and
//! `verify.WORKLOAD.DTYPE.ladder:NAME.*`. The chosen kernel is called `chosen`.

mod whole;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use msda::conformance::{self, Group, Summary};
use msda::{Dtype, Problem};
use msda_bench::bench::Progress;
use msda_bench::gpu::measure::{Resident, Setup};
use msda_bench::parallel::{cores, in_parallel};
use msda_bench::record::{Pass, Record};
use msda_bench::task::Task;
use msda_bench::terminal::groups;
use msda_bench::workload::{Data, Workload};
use msda_cuda::driver::Device as Gpu;
use msda_cuda::jit::Unit;
use msda_cuda::kernels::{Call, Kernel};
use msda_cuda::{Cuda, Operands, Request, Target};

use crate::found::Found;
use crate::ladder::{self, Rung};
use crate::sources;

pub use whole::{Compared, Whole};

/// The kernels of document 1. They compute the same sums in the same order, but for the last, which
/// adds the samples of a level tile by tile.
const ALIKE: [&str; 4] =
    ["original_half", "distributed_fixed", "shared_padded_half", "async_multilevel_half"];

/// What to verify.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Compare outputs in f32 too, besides f16
    #[arg(long)]
    pub full: bool,
    /// A workload whose output is compared, by name or as a path to a .toml file; may be repeated
    #[arg(long = "workload", value_name = "NAME", default_value = "seed")]
    pub workloads: Vec<String>,
    /// A group of the battery, as `msda verify --help` lists them; may be repeated. All when absent
    #[arg(long = "group", value_name = "NAME")]
    pub groups: Vec<String>,
    /// A rung by name, as `msda-study list` shows them; may be repeated. All when absent
    #[arg(long = "rung", value_name = "NAME")]
    pub rungs: Vec<String>,
    /// Whether the battery is left out.
    #[arg(skip)]
    pub no_battery: bool,
    /// The command line, for the record.
    #[arg(skip)]
    pub command: String,
}

/// A rung in the battery.
#[derive(Debug, Clone, Default)]
pub struct Battery {
    /// The rung.
    pub rung: String,
    /// Cases that it computed.
    pub taken: usize,
    /// Cases that it refused; the generic kernel computed them.
    pub refused: usize,
    /// Failed cases, and the numbers of the cases that it computed.
    pub summary: Summary,
}

/// Verifies the ladder. Returns the record, and all faults, one line each. Without a GPU this is an
/// error.
pub fn run(options: &Options, progress: &mut (dyn Progress + Send)) -> Result<(Record, Vec<String>)> {
    let workloads = options.workloads.iter().map(|name| Workload::find(name)).collect::<Result<Vec<_>>>()?;
    let groups = if options.no_battery { Vec::new() } else { groups(&options.groups)? };
    let dtypes = if options.full { &[Dtype::F16, Dtype::F32][..] } else { &[Dtype::F16] };
    let machine = msda_bench::machine::describe(0);
    let gpu = Gpu::open(0).context("nothing was verified: the ladder needs a GPU")?;
    let (mut found, mut wrong) = (Found::default(), Vec::new());
    let rungs = ladder::named(&options.rungs)?;
    // Only exact rungs are held to the tolerance of the battery.
    let (exact, others): (Vec<&'static Rung>, Vec<&'static Rung>) =
        rungs.iter().partition(|rung| rung.kernel().is_exact());
    let mut steps = exact.len() * groups.len();
    let pairs = || workloads.iter().flat_map(|workload| dtypes.iter().map(move |&dtype| (workload, dtype)));
    for (workload, dtype) in pairs() {
        steps += whole::parts(&workload.problem(dtype)?).len() + 1 + rungs.len();
    }
    progress.begin(steps);
    // Several threads report.
    let progress = Mutex::new(progress);
    let step = |what: &str| progress.lock().unwrap_or_else(PoisonError::into_inner).step(what);
    for b in battery(&gpu, &exact, &groups, &step) {
        let known = [
            ("taken", b.taken as f64, ""),
            ("refused", b.refused as f64, ""),
            ("failed", b.summary.failed.len() as f64, ""),
            ("compared", b.summary.compared as f64, ""),
            ("worst", b.summary.worst, ""),
        ];
        found.add(format!("verify.battery.{}", b.rung), &known);
        wrong.extend(b.summary.failed.iter().map(|why| format!("{}: {why}", b.rung)));
    }
    for rung in others {
        found.skip(format!("the battery on {}", rung.kernel()), "it is not held to the tolerance");
    }
    for (workload, dtype) in pairs() {
        let data = workload.data(dtype)?;
        let name = format!("{} {dtype}", workload.name);
        compile(&gpu, &data.problem, &rungs);
        let whole = Whole::new(&data, || step(&format!("{name}: the oracle")))?;
        let mut first: Option<Vec<u8>> = None;
        // The chosen kernel, then the rungs.
        for rung in std::iter::once(None).chain(rungs.iter().copied().map(Some)) {
            let kernel = rung.map(Rung::kernel);
            let called = kernel.map_or_else(|| "chosen".into(), |kernel| kernel.to_string());
            step(&format!("{name}: {called}"));
            match compare(&gpu, &data, &whole, kernel) {
                Ok(Ok((compared, same_bits, bytes))) => {
                    let place = format!("verify.{}.{dtype}.{called}", workload.name);
                    found.add(&place, &compared.figures(same_bits));
                    if rung.is_some_and(|rung| rung.name == ALIKE[0]) {
                        first = Some(bytes.clone());
                    }
                    // Without a run of the first there is nothing to compare with.
                    let alike = rung.is_some_and(|rung| ALIKE.contains(&rung.name.as_str()));
                    if let Some(first) = first.as_ref().filter(|_| alike) {
                        let other = first.chunks(2).zip(bytes.chunks(2)).filter(|(a, b)| a != b).count();
                        found.add(&place, &[("unlike-original_half", other as f64, "")]);
                    }
                    let exact = kernel.is_none_or(|kernel| kernel.is_exact());
                    wrong.extend(
                        faults(&compared, exact, same_bits).map(|why| format!("{name} {called}: {why}")),
                    );
                }
                Ok(Err(refused)) => found.skip(format!("{name} {called}"), refused),
                Err(why) => wrong.push(format!("{name} {called}: {why:#}")),
            }
        }
    }
    Ok((found.record(&options.command, machine), wrong))
}

/// The faults of an output.
fn faults(c: &Compared, exact: bool, same_bits: bool) -> impl Iterator<Item = String> {
    let found = [
        (c.unwritten > 0, format!("{} numbers were not written", c.unwritten)),
        (c.not_finite > c.unwritten, format!("{} numbers are not finite", c.not_finite - c.unwritten)),
        (exact && c.over > 0, format!("{} numbers exceed the tolerance", c.over)),
        (!same_bits, "a second run gave different bits".into()),
    ];
    found.into_iter().filter(|(is, _)| *is).map(|(_, what)| what)
}

/// How an output compares, whether a second run gave the same bits, and its bytes.
type Ran = (Compared, bool, Vec<u8>);

/// Runs a kernel twice on a workload, into memory whose bits are all set; or says why it refuses.
fn compare(gpu: &Gpu, data: &Data, whole: &Whole, kernel: Option<Kernel>) -> Result<Result<Ran, String>> {
    let task = Task::whole(data, Pass::Forward);
    let operands = Operands::dense(&task.problem, None);
    let request = Request::new(&task.problem, &operands);
    if let Some(why) = kernel.and_then(|kernel| kernel.refuses(&request, &Target::of(gpu))) {
        return Ok(Err(why));
    }
    let mut resident = Resident::new(gpu, &Setup::forward(&task.problem, &task.inputs), kernel)?;
    let mut output = || -> Result<_> {
        resident.poison()?;
        resident.run()?;
        Ok(resident.output()?)
    };
    let (first, second) = (output()?, output()?);
    let bytes = first.to_le_bytes();
    let same_bits = bytes == second.to_le_bytes();
    Ok(Ok((whole.compare(&first)?, same_bits, bytes)))
}

/// Compiles the kernels of rungs.
fn compile(gpu: &Gpu, problem: &Problem, rungs: &[&'static Rung]) {
    let operands = Operands::dense(problem, None);
    let (request, target) = (Request::new(problem, &operands), Target::of(gpu));
    let calls: Vec<Call> = rungs.iter().filter_map(|rung| rung.call(&request, &target).ok()).collect();
    let units: Vec<&Unit> = calls.iter().flat_map(Call::kernels).map(|prepared| &prepared.unit).collect();
    sources::compile(&units);
}

/// Groups of the battery on rungs, with all cores: most of the time goes to compiling.
pub fn battery(
    gpu: &Gpu,
    rungs: &[&'static Rung],
    groups: &[Group],
    step: &(dyn Fn(&str) + Sync),
) -> Vec<Battery> {
    let jobs: Vec<(&'static Rung, Group)> =
        rungs.iter().flat_map(|&rung| groups.iter().map(move |&group| (rung, group))).collect();
    let results = in_parallel(cores(), &jobs, |&(rung, group)| {
        step(&format!("battery: {} {}", rung.name, group.name()));
        run_group(gpu, rung, group)
    });
    let mut all: Vec<Battery> = Vec::new();
    for of_group in results {
        match all.last_mut().filter(|last| last.rung == of_group.rung) {
            Some(last) => last.add(of_group),
            None => all.push(of_group),
        }
    }
    all
}

/// A group of the battery. The generic kernel computes the cases that the rung refuses.
fn run_group(gpu: &Gpu, rung: &'static Rung, group: Group) -> Battery {
    let (kernel, target) = (rung.kernel(), Target::of(gpu));
    let asked: [Arc<AtomicBool>; 2] = Default::default();
    let [took, refused] = asked.clone();
    let backend = Cuda::with_pick(gpu, &rung.name, move |request| {
        let takes = kernel.refuses(request, &target).is_none();
        if takes { &took } else { &refused }.store(true, Ordering::Relaxed);
        takes.then_some(kernel)
    })
    .forward_only();
    let mut battery = Battery { rung: kernel.to_string(), ..Battery::default() };
    for (number, case) in group.cases(1).iter().enumerate() {
        let summary = conformance::run_case(&backend, &format!("{}/{number}", group.name()), case);
        let [took, refused] = asked.each_ref().map(|flag| flag.swap(false, Ordering::Relaxed));
        battery.add_case(summary, took, refused);
    }
    battery
}

impl Battery {
    /// Adds a case. Some cases ask for no kernel: then it was neither taken nor refused.
    fn add_case(&mut self, mut summary: Summary, took: bool, refused: bool) {
        if !took {
            (summary.compared, summary.worst) = (0, 0.0);
        }
        let (taken, refused) = (usize::from(took), usize::from(refused && !took));
        self.add(Self { rung: String::new(), taken, refused, summary });
    }

    fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.refused += other.refused;
        self.summary.add(other.summary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_listed() {
        let right = Compared { outputs: 100, max_abs: 0.5, max_rel: 0.1, worst: 0.7, ..Compared::default() };
        let over = Compared { over: 3, worst: 4.0, ..right };
        let holes = Compared { not_finite: 5, unwritten: 2, ..right };
        for (compared, exact, same_bits, expected) in [
            (right, true, true, ""),
            (over, true, true, "3 numbers exceed the tolerance"),
            (over, false, true, ""),
            (holes, true, true, "2 numbers were not written; 3 numbers are not finite"),
            (right, false, false, "a second run gave different bits"),
        ] {
            let said = faults(&compared, exact, same_bits).collect::<Vec<_>>().join("; ");
            assert_eq!(said, expected, "{compared:?}");
        }
        let figures = holes.figures(true);
        let figure = |name: &str| figures.iter().find(|f| f.0 == name).map(|f| f.1);
        assert_eq!((figure("unwritten"), figure("bitwise-equal")), (Some(2.0), Some(1.0)));
    }

    #[test]
    fn a_case_is_taken_refused_or_neither() {
        let mut battery = Battery::default();
        let mut case = Summary::default();
        (case.passed, case.compared, case.worst) = (1, 10, 0.5);
        for (took, refused) in [(true, false), (false, true), (false, false)] {
            battery.add_case(case.clone(), took, refused);
        }
        let Battery { taken, refused, summary, .. } = battery;
        assert_eq!((taken, refused, summary.compared, summary.worst), (1, 1, 10, 0.5));
    }
}
