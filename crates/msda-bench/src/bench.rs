//! The benchmark: checks engines on workloads, times them, and makes a record.

mod beside;
mod measure;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use msda::{Dtype, Isa};

use crate::engines::external::{Outcome, Run, is_external};
use crate::engines::{self, BASELINE, Engine, Registry};
use crate::record::{Device, Pass, Record};
use crate::workload::Workload;
use crate::{gpu, machine, work};
use measure::ROUNDS;

/// What to measure.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Workloads by name or path; empty for the usual ones.
    pub workloads: Vec<String>,
    /// Engines by name; empty for all that are here and take the workload.
    pub engines: Vec<String>,
    /// Value types; all of each workload when empty.
    pub dtypes: Vec<Dtype>,
    /// The device to measure on; all when none.
    pub device: Option<Device>,
    /// The pass to measure; both when none.
    pub pass: Option<Pass>,
    /// Threads; empty for all of rayon's, and for one thread on the main workload.
    pub threads: Vec<usize>,
    /// Fewer workloads and runs.
    pub quick: bool,
    /// Few runs of each, for many workloads. A failure is noted, and the run goes on.
    pub brief: bool,
    /// The command line, for the record.
    pub command: String,
}

/// Receives the progress of a run, for a progress bar.
pub trait Progress {
    /// There are `total` steps.
    fn begin(&mut self, _total: usize) {}
    /// A step begins.
    fn step(&mut self, _what: &str) {}
    /// A message for the user.
    fn note(&mut self, _what: &str) {}
}

/// Progress that nobody sees.
#[derive(Debug, Clone, Copy)]
pub struct Silent;

impl Progress for Silent {}

/// One entry of the plan: an engine on a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    dtype: Dtype,
    engine: String,
    threads: usize,
    pass: Pass,
}

/// The workload that compares instruction sets and numbers of threads.
const MAIN: &str = "seed-encoder";

const USUAL: [&str; 7] = [
    "seed-encoder",
    "seed-decoder",
    "seed-uniform",
    "seed-point",
    "rt-detr-decoder",
    "rf-detr-decoder",
    "d-fine-decoder",
];
const QUICK: [&str; 2] = ["small", "seed-decoder"];

/// Runs the benchmark. It fails where an engine of this project gives a wrong result.
pub fn run(options: &Options, registry: &Registry, progress: &mut dyn Progress) -> Result<Record> {
    let usual: &[&str] = if options.quick { &QUICK } else { &USUAL };
    let names = match options.workloads.as_slice() {
        [] => usual.iter().map(ToString::to_string).collect(),
        [all] if all == "all" => crate::workload::BUILT_IN.iter().map(|(n, _)| (*n).to_owned()).collect(),
        some => some.to_vec(),
    };
    let mut workloads = names.iter().map(|n| Workload::find(n)).collect::<Result<Vec<_>>>()?;
    let ordinal = engines::ordinal(&options.engines)?;
    let mut bench = Bench {
        progress,
        options,
        registry,
        // Before anything runs, so that it has the clocks and temperature of an idle GPU.
        record: Record::new(&options.command, machine::describe(ordinal)),
        outcomes: Vec::new(),
        ordinal,
        open: BTreeMap::new(),
    };
    if let Some(load) = bench.record.machine.load.filter(|load| load.busy) {
        bench.progress.note(&format!(
            "note: the machine is busy (load {:.2} per core): times and ratios will vary",
            load.per_core
        ));
    }
    for workload in &mut workloads {
        bench.narrow(workload);
    }
    bench.find_cuda()?;
    bench.measure_external(&workloads)?;
    let plans: Vec<Vec<Cell>> = workloads.iter().map(|w| bench.plan(w)).collect();
    let on_cpu = |c: &&Cell| device(&c.engine) == Device::Cpu;
    let external = |on: Device| bench.outcomes.iter().any(|(run, ..)| run.device == on);
    let mut threads: BTreeSet<usize> = plans.iter().flatten().filter(on_cpu).map(|c| c.threads).collect();
    threads.extend(external(Device::Cpu).then(|| bench.external_threads()));
    let gpu = plans.iter().flatten().any(|c| !on_cpu(&c)) || external(Device::Cuda);
    let rounds = if options.brief { 0 } else { ROUNDS as usize - 1 };
    let again = plans.iter().filter(|plan| plan.iter().any(|c| on_cpu(&c))).count() * rounds;
    let cells = plans.iter().map(Vec::len).sum::<usize>();
    bench.progress.begin(threads.len() + usize::from(gpu) + cells + again);
    for threads in threads {
        bench.progress.step(&format!("ceilings of this machine, {threads} thread(s)"));
        bench.record.ceilings.extend(work::ceilings(threads, options.brief)?);
    }
    if gpu {
        bench.progress.step("ceilings of the GPU");
        // Without them times have no floor to compare with.
        match gpu::ceilings_of(ordinal) {
            Ok(ceilings) => bench.record.ceilings.extend(ceilings),
            Err(why) => bench.record.skip("ceilings of the GPU", format!("{why:#}")),
        }
    }
    if options.brief {
        bench.prepare(&workloads, &plans)?;
    }
    for (workload, plan) in workloads.iter().zip(&plans) {
        bench.measure(workload, plan)?;
    }
    let record = Record { created: Record::now(), ..bench.record };
    if record.measurements.is_empty() {
        let why = record.skipped.iter().map(|s| format!("{}: {}", s.what, s.why)).collect::<Vec<_>>();
        bail!("nothing was measured\n{}\nhint: `msda doctor` shows what is missing", why.join("\n"));
    }
    Ok(record)
}

struct Bench<'a> {
    progress: &'a mut dyn Progress,
    options: &'a Options,
    registry: &'a Registry,
    /// The results so far.
    record: Record,
    /// What external engines have measured.
    outcomes: Vec<(Run, String, Outcome)>,
    /// The number of the GPU.
    ordinal: usize,
    /// Open engines by name and threads. Starting one can take seconds.
    open: BTreeMap<(String, usize), Box<dyn Engine>>,
}

/// Where an engine of this process computes.
fn device(engine: &str) -> Device {
    if engines::is_cuda(engine) { Device::Cuda } else { Device::Cpu }
}

impl Bench<'_> {
    /// The passes that are measured.
    fn passes(&self) -> Vec<Pass> {
        self.options.pass.map_or_else(|| vec![Pass::Forward, Pass::Backward], |only| vec![only])
    }

    /// Keeps the value types that were asked for.
    fn narrow(&mut self, workload: &mut Workload) {
        let (all, asked) = (workload.dtypes.clone(), &self.options.dtypes);
        workload.dtypes.retain(|dtype| asked.is_empty() || asked.contains(dtype));
        if workload.dtypes.is_empty() {
            let names = |types: &[Dtype]| types.iter().map(|t| t.name()).collect::<Vec<_>>().join(", ");
            let why = format!("measured in {}, not in {}", names(&all), names(asked));
            self.record.skip(&workload.name, why);
        }
    }

    /// Whether this device is measured.
    fn measures(&self, device: Device) -> bool {
        self.options.device.is_none_or(|only| only == device)
    }

    /// Opens the CUDA backend. An engine that was named must open; otherwise a missing GPU is noted
    /// once.
    fn find_cuda(&mut self) -> Result<()> {
        if !self.measures(Device::Cuda) {
            return Ok(());
        }
        let options = self.options;
        for name in options.engines.iter().filter(|e| engines::is_cuda(e)) {
            self.open.insert((name.clone(), 1), self.registry.open(name, 1)?);
        }
        if options.engines.is_empty() {
            match self.registry.open("cuda", 1) {
                Ok(engine) => drop(self.open.insert(("cuda".into(), 1), engine)),
                Err(why) => self.record.skip("cuda", gpu::missing(&why)),
            }
        }
        for pass in self.passes() {
            let without = self.open.iter().filter(|(_, engine)| !engine.computes(pass));
            for name in without.map(|((name, _), _)| name.clone()).collect::<Vec<_>>() {
                let why = format!("{name} has no {pass} pass of its own");
                self.record.skip(format!("{name} {pass}"), why);
            }
        }
        Ok(())
    }

    /// Makes the open engines ready for all problems at once.
    fn prepare(&mut self, workloads: &[Workload], plans: &[Vec<Cell>]) -> Result<()> {
        let mut problems = Vec::new();
        for (workload, plan) in workloads.iter().zip(plans) {
            for cell in plan {
                problems.push((workload.problem(cell.dtype)?, cell.pass));
            }
        }
        problems.dedup();
        self.open.values().for_each(|engine| engine.prepare(&problems));
        Ok(())
    }

    /// The planned measurements of a workload.
    fn plan(&self, workload: &Workload) -> Vec<Cell> {
        let threads = match self.options.threads.as_slice() {
            [] => vec![rayon::current_num_threads()],
            some => some.to_vec(),
        };
        let best = format!("cpu-{}", Isa::best());
        let mut cells = Vec::new();
        for pass in self.passes() {
            for &dtype in &workload.dtypes {
                let engines = self.engines(pass, &best);
                let cell = |engine: &str, threads| Cell { dtype, engine: engine.to_owned(), threads, pass };
                let (gpu, cpu): (Vec<&String>, Vec<&String>) =
                    engines.iter().partition(|e| device(e) == Device::Cuda);
                for &threads in &threads {
                    cells.extend(cpu.iter().map(|e| cell(e, threads)));
                    // Other instruction sets and one thread are measured on the main workload
                    // alone.
                    let main = workload.name == MAIN && dtype == Dtype::F32;
                    if self.options.engines.is_empty() && main && self.measures(Device::Cpu) {
                        let others = Isa::available().into_iter().skip(1).map(|isa| format!("cpu-{isa}"));
                        let others = others.filter(|name| !engines.contains(name));
                        cells.extend(others.map(|name| cell(&name, threads)));
                        if threads > 1 && self.options.threads.is_empty() {
                            cells.push(cell(&best, 1));
                        }
                    }
                }
                cells.extend(gpu.iter().map(|e| cell(e, 1)));
            }
        }
        cells
    }

    /// The engines of this process that were asked for, or the usual ones.
    fn engines(&self, pass: Pass, best: &str) -> Vec<String> {
        let here = |e: &String| {
            self.measures(device(e))
                && !is_external(e)
                && self.open.get(&(e.clone(), 1)).is_none_or(|engine| engine.computes(pass))
        };
        if !self.options.engines.is_empty() {
            return self.options.engines.iter().filter(|e| here(e)).cloned().collect();
        }
        let mut names = vec![best.to_owned(), BASELINE.to_owned()];
        names.dedup();
        if self.open.contains_key(&("cuda".into(), 1)) {
            names.push("cuda".into());
        }
        names.retain(here);
        names
    }
}
