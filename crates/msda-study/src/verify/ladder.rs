//! Checks of the ladder: every rung runs the battery, and every number of its output on a workload
//! is compared.
//!
//! Each result is a figure: `verify.battery.ladder:NAME.*`, and
//! `verify.WORKLOAD.DTYPE.ladder:NAME.*`. The chosen kernel is called `chosen`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use msda::Dtype;
use msda::conformance::{self, Group, Summary};
use msda_bench::bench::Progress;
use msda_bench::gpu::measure::{Resident, Setup};
use msda_bench::parallel::in_parallel;
use msda_bench::record::{Figure, Pass, Record, Skipped};
use msda_bench::report::{Kind, Table};
use msda_bench::task::Task;
use msda_bench::workload::{Data, Workload};
use msda_cuda::driver::Device as Gpu;
use msda_cuda::kernels::Kernel;
use msda_cuda::{Cuda, Target};
use serde::Serialize;

use super::whole::{self, Compared, Whole};
use crate::ladder::{self, RUNGS, Rung};

/// What to verify.
#[derive(Debug, Clone)]
pub struct Options {
    /// Workloads whose output is compared.
    pub workloads: Vec<String>,
    /// The value types.
    pub dtypes: Vec<Dtype>,
    /// The groups of the battery.
    pub groups: Vec<Group>,
    /// Names of rungs; empty for all.
    pub rungs: Vec<String>,
    /// The command line, for the record.
    pub command: String,
}

/// The results.
#[derive(Debug, Clone, Serialize)]
pub struct Verified {
    /// One per rung that is held to the tolerance.
    pub battery: Vec<Battery>,
    /// One per kernel, workload and type.
    pub outputs: Vec<Output>,
    /// What was left out, and why.
    pub skipped: Vec<Skipped>,
}

/// A rung in the battery.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Battery {
    /// The rung.
    pub rung: String,
    /// Cases that it computed.
    pub taken: usize,
    /// Cases that it refused; the generic kernel computed them.
    pub refused: usize,
    /// Failed cases, each with its reason.
    pub failed: Vec<String>,
    /// How many numbers were compared.
    pub compared: usize,
    /// The largest error over the tolerance.
    pub worst: f64,
}

/// A kernel on a whole workload.
#[derive(Debug, Clone, Serialize)]
pub struct Output {
    /// The workload.
    pub workload: String,
    /// The value type.
    pub dtype: String,
    /// `ladder:NAME`, or `chosen`.
    pub kernel: String,
    /// Whether it is held to the tolerance.
    pub exact: bool,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a kernel on a whole workload.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It ran.
    Ran {
        /// How its output compares.
        compared: Compared,
        /// Whether a second run gave the same bits.
        same_bits: bool,
    },
    /// It refused the problem, for this reason.
    Refused(String),
    /// It could not be compiled or run, for this reason.
    Failed(String),
}

impl Output {
    /// Its faults; none if it is right.
    pub fn wrong(&self) -> Option<String> {
        let (c, same_bits) = match &self.outcome {
            Outcome::Refused(_) => return None,
            Outcome::Failed(why) => return Some(why.clone()),
            Outcome::Ran { compared, same_bits } => (compared, *same_bits),
        };
        let found = [
            (c.unwritten > 0, format!("{} numbers were not written", c.unwritten)),
            (c.not_finite > c.unwritten, format!("{} numbers are not finite", c.not_finite - c.unwritten)),
            (self.exact && c.over > 0, format!("{} numbers exceed the tolerance", c.over)),
            (!same_bits, "a second run gave different bits".into()),
        ];
        let all: Vec<String> = found.into_iter().filter(|(is, _)| *is).map(|(_, what)| what).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }
}

impl Verified {
    /// All faults, one line each.
    pub fn wrong(&self) -> Vec<String> {
        let cases = self.battery.iter().flat_map(|b| b.failed.iter().map(|why| format!("{}: {why}", b.rung)));
        let outputs = self
            .outputs
            .iter()
            .filter_map(|o| Some(format!("{} {} {}: {}", o.workload, o.dtype, o.kernel, o.wrong()?)));
        cases.chain(outputs).collect()
    }

    /// The results as figures.
    pub fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        let mut add = |place: &str, known: &[(&str, f64)]| {
            for (name, value) in known {
                figures.push(Figure { name: format!("{place}.{name}"), value: *value, unit: String::new() });
            }
        };
        for b in &self.battery {
            let known = [
                ("taken", b.taken as f64),
                ("refused", b.refused as f64),
                ("failed", b.failed.len() as f64),
                ("compared", b.compared as f64),
                ("worst", b.worst),
            ];
            add(&format!("verify.battery.{}", b.rung), &known);
        }
        for o in &self.outputs {
            let Outcome::Ran { compared: c, same_bits } = &o.outcome else { continue };
            let known = [
                ("outputs", c.outputs as f64),
                ("max-abs", c.max_abs),
                ("max-rel", c.max_rel),
                ("worst", c.worst),
                ("over", c.over as f64),
                ("not-finite", c.not_finite as f64),
                ("unwritten", c.unwritten as f64),
                ("bitwise-equal", f64::from(u8::from(*same_bits))),
            ];
            add(&format!("verify.{}.{}.{}", o.workload, o.dtype, o.kernel), &known);
        }
        figures
    }
}

/// Verifies the ladder. Without a GPU this is an error.
pub fn run(options: &Options, progress: &mut (dyn Progress + Send)) -> Result<(Verified, Record)> {
    let workloads = options.workloads.iter().map(|name| Workload::find(name)).collect::<Result<Vec<_>>>()?;
    let machine = msda_bench::machine::describe(0);
    let gpu = Gpu::open(0).context("nothing was verified: the ladder needs a GPU")?;
    let mut verified = Verified { battery: Vec::new(), outputs: Vec::new(), skipped: Vec::new() };
    verify(&gpu, &workloads, options, &mut verified, progress)?;
    let record = Record {
        figures: verified.figures(),
        skipped: verified.skipped.clone(),
        ..Record::new(&options.command, machine)
    };
    Ok((verified, record))
}

/// The rungs of these names; all if there are none.
fn named(names: &[String]) -> Result<Vec<&'static Rung>> {
    if names.is_empty() {
        return Ok(RUNGS.iter().collect());
    }
    names.iter().map(|name| Ok(ladder::find(name)?)).collect()
}

fn verify(
    gpu: &Gpu,
    workloads: &[Workload],
    Options { dtypes, groups, rungs, .. }: &Options,
    verified: &mut Verified,
    progress: &mut (dyn Progress + Send),
) -> Result<()> {
    let rungs = named(rungs)?;
    // Only exact rungs are held to the tolerance of the battery.
    let (exact, others): (Vec<&'static Rung>, Vec<&'static Rung>) =
        rungs.iter().partition(|rung| rung.kernel().is_exact());
    let mut steps = exact.len() * groups.len();
    for workload in workloads {
        for &dtype in dtypes {
            steps += whole::parts(&workload.problem(dtype)?).len() + 1 + rungs.len();
        }
    }
    progress.begin(steps);
    let progress = &Mutex::new(progress);
    verified.battery = battery(gpu, &exact, groups, &|what| step(progress, what));
    for rung in others {
        let what = format!("the battery on {}", rung.kernel());
        verified.skipped.push(Skipped { what, why: "it is not held to the tolerance".into() });
    }
    for workload in workloads {
        for &dtype in dtypes {
            let data = workload.data(dtype)?;
            let name = format!("{} {dtype}", workload.name);
            let whole = Whole::new(&data, || step(progress, &format!("{name}: the oracle")))?;
            // The chosen kernel, then the rungs.
            for rung in std::iter::once(None).chain(rungs.iter().copied().map(Some)) {
                let kernel = rung.map_or_else(|| "chosen".into(), |rung| rung.kernel().to_string());
                step(progress, &format!("{name}: {kernel}"));
                verified.outputs.push(Output {
                    workload: workload.name.clone(),
                    dtype: dtype.name().into(),
                    kernel,
                    exact: rung.is_none_or(|rung| rung.kernel().is_exact()),
                    outcome: compare(gpu, &data, &whole, rung.map(Rung::kernel))
                        .unwrap_or_else(|why| Outcome::Failed(format!("{why:#}"))),
                });
            }
        }
    }
    Ok(())
}

/// Progress that several threads report.
type Shared<'a> = Mutex<&'a mut (dyn Progress + Send)>;

fn step(progress: &Shared<'_>, what: &str) {
    progress.lock().unwrap_or_else(PoisonError::into_inner).step(what);
}

/// Runs a kernel twice on a workload, into memory whose bits are all set.
fn compare(gpu: &Gpu, data: &Data, whole: &Whole, kernel: Option<Kernel>) -> Result<Outcome> {
    let task = Task::whole(data, Pass::Forward);
    let operands = msda_cuda::Operands::dense(&task.problem, None);
    let request = msda_cuda::Request::new(&task.problem, &operands);
    if let Some(why) = kernel.and_then(|kernel| kernel.refuses(&request, &Target::of(gpu))) {
        return Ok(Outcome::Refused(why));
    }
    let mut resident = Resident::new(gpu, &Setup::forward(&task.problem, &task.inputs), kernel)?;
    let mut output = || -> Result<_> {
        resident.poison()?;
        resident.run()?;
        Ok(resident.output()?)
    };
    let (first, second) = (output()?, output()?);
    let same_bits = first.to_le_bytes() == second.to_le_bytes();
    Ok(Outcome::Ran { compared: whole.compare(&first)?, same_bits })
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
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let results = in_parallel(workers, &jobs, |&(rung, group)| {
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
    let backend = Cuda::with_pick(gpu, rung.name, move |request| {
        let takes = kernel.refuses(request, &target).is_none();
        if takes { &took } else { &refused }.store(true, Ordering::Relaxed);
        takes.then_some(kernel)
    })
    .forward_only();
    let mut battery = Battery { rung: kernel.to_string(), ..Battery::default() };
    for (number, case) in group.cases(1).iter().enumerate() {
        let summary = conformance::run_case(&backend, &format!("{}/{number}", group.name()), case);
        let [took, refused] = asked.each_ref().map(|flag| flag.swap(false, Ordering::Relaxed));
        battery.add(Battery::of_case(&summary, took, refused));
    }
    battery
}

impl Battery {
    /// One case. Some cases ask for no kernel: then it was neither taken nor refused.
    fn of_case(summary: &Summary, took: bool, refused: bool) -> Self {
        Self {
            rung: String::new(),
            taken: usize::from(took),
            refused: usize::from(refused && !took),
            failed: summary.failed.iter().map(ToString::to_string).collect(),
            compared: if took { summary.compared } else { 0 },
            worst: if took { summary.worst } else { 0.0 },
        }
    }

    fn add(&mut self, other: Self) {
        self.taken += other.taken;
        self.refused += other.refused;
        self.failed.extend(other.failed);
        self.compared += other.compared;
        self.worst = self.worst.max(other.worst);
    }
}

/// The results as tables.
pub fn text(verified: &Verified, width: usize) -> String {
    let mut parts = Vec::new();
    let table = Table::default().words(["battery"]).numbers(["taken", "refused", "failed"]);
    let mut table = table.column("compared", Kind::Number, 1).numbers(["err/tol"]);
    for b in &verified.battery {
        let counts = [b.taken, b.refused, b.failed.len(), b.compared].map(|n| n.to_string());
        table.push([b.rung.clone()].into_iter().chain(counts).chain([format!("{:.3}", b.worst)]));
    }
    if !table.is_empty() {
        parts.push(table.text(width, false));
    }
    for same in verified.outputs.chunk_by(|a, b| (&a.workload, &a.dtype) == (&b.workload, &b.dtype)) {
        let title = format!("{} {}", same[0].workload, same[0].dtype);
        let ranks = [("outputs", 3), ("max abs", 1), ("max rel", 2), ("err/tol", 0), ("over", 0)];
        let table = Table::default().words([title]);
        let table = ranks.iter().fold(table, |t, (title, rank)| t.column(*title, Kind::Number, *rank));
        let mut table = table.column("unwritten", Kind::Number, 1).numbers(["bits"]).words([""]);
        let mut others = String::new();
        for o in same {
            match &o.outcome {
                Outcome::Ran { compared: c, same_bits } => table.push([
                    o.kernel.clone(),
                    c.outputs.to_string(),
                    format!("{:.2e}", c.max_abs),
                    format!("{:.2e}", c.max_rel),
                    format!("{:.3}", c.worst),
                    c.over.to_string(),
                    c.unwritten.to_string(),
                    if *same_bits { "same" } else { "differ" }.into(),
                    if o.exact { "" } else { "inexact" }.into(),
                ]),
                Outcome::Refused(why) => others += &format!("{}: refused: {why}\n", o.kernel),
                Outcome::Failed(why) => {
                    others += &format!("{}: failed: {}\n", o.kernel, why.replace('\n', "; "));
                }
            }
        }
        parts.push(table.text(width, false) + &others);
    }
    if !verified.skipped.is_empty() {
        let line = |s: &Skipped| format!("  {}: {}\n", s.what, s.why.replace('\n', "\n    "));
        parts.push(format!("left out\n{}", verified.skipped.iter().map(line).collect::<String>()));
    }
    parts.join("\n")
}

/// An error that lists all faults, if there are any.
pub fn judge(verified: &Verified) -> Result<()> {
    let wrong = verified.wrong();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(anyhow!("the ladder has {} faults\n{}", wrong.len(), wrong.join("\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(kernel: &str, exact: bool, compared: Compared, same_bits: bool) -> Output {
        let outcome = Outcome::Ran { compared, same_bits };
        Output { workload: "seed".into(), dtype: "f16".into(), kernel: kernel.into(), exact, outcome }
    }

    #[test]
    fn faults_are_listed() {
        let right = Compared { outputs: 100, max_abs: 0.5, max_rel: 0.1, worst: 0.7, ..Compared::default() };
        let over = Compared { over: 3, worst: 4.0, ..right };
        let holes = Compared { not_finite: 5, unwritten: 2, ..right };
        let refused = Output {
            outcome: Outcome::Refused("no clusters".into()),
            ..output("ladder:distributed", true, right, true)
        };
        let failed = Output {
            outcome: Outcome::Failed("no room".into()),
            ..output("ladder:ultra", true, right, true)
        };
        let battery = Battery {
            rung: "ladder:base".into(),
            taken: 30,
            failed: vec!["random/3: off".into()],
            ..Battery::default()
        };
        let verified = Verified {
            battery: vec![battery],
            outputs: vec![
                output("ladder:base", true, right, true),
                output("ladder:simple", true, over, true),
                output("ladder:fp8", false, over, true),
                output("ladder:original", true, holes, false),
                refused,
                failed,
            ],
            skipped: Vec::new(),
        };
        let wrong = verified.wrong();
        assert_eq!(wrong.len(), 4, "{wrong:?}");
        assert!(wrong[0].starts_with("ladder:base: random/3"));
        assert!(wrong[1].contains("ladder:simple: 3 numbers exceed"));
        let both = &wrong[2];
        assert!(both.contains("2 numbers were not") && both.contains("3 numbers are not finite"), "{both}");
        assert!(both.ends_with("a second run gave different bits"), "{both}");
        assert!(wrong[3].ends_with("ladder:ultra: no room"));
        assert!(judge(&verified).is_err());

        let figures = verified.figures();
        let figure = |name: &str| figures.iter().find(|f| f.name == name).map(|f| f.value);
        assert_eq!(figure("verify.battery.ladder:base.failed"), Some(1.0));
        assert_eq!(figure("verify.seed.f16.ladder:base.max-abs"), Some(0.5));
        assert_eq!(figure("verify.seed.f16.ladder:base.bitwise-equal"), Some(1.0));
        assert_eq!(figure("verify.seed.f16.ladder:original.unwritten"), Some(2.0));
        assert_eq!(figure("verify.seed.f16.ladder:simple.over"), Some(3.0));
        assert_eq!(figure("verify.seed.f16.ladder:ultra.over"), None);
        let said = text(&verified, 100);
        assert!(said.contains("refused: no clusters") && said.contains("inexact"), "{said}");
    }

    #[test]
    fn a_case_is_taken_refused_or_neither() {
        let mut battery = Battery::default();
        let case = || {
            let mut summary = Summary::default();
            (summary.passed, summary.compared, summary.worst) = (1, 10, 0.5);
            summary
        };
        for (took, refused) in [(true, false), (false, true), (false, false)] {
            battery.add(Battery::of_case(&case(), took, refused));
        }
        assert_eq!((battery.taken, battery.refused, battery.compared, battery.worst), (1, 1, 10, 0.5));
    }
}
