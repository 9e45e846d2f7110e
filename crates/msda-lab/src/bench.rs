//! The benchmark: verify, measure, record.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, bail};
use msda::{Dtype, Isa};

use crate::check::Expected;
use crate::engines::{self, Engine};
use crate::record::{Ceiling, Measurement, Pass, Record, SCHEMA, Skipped};
use crate::timing::{Effort, summarize};
use crate::workload::Workload;
use crate::{machine, work};

/// What to measure.
#[derive(Debug, Clone)]
pub struct Options {
    /// Workloads by name or path; empty for the usual ones.
    pub workloads: Vec<String>,
    /// Engines by name; empty for what suits each workload.
    pub engines: Vec<String>,
    /// Threads; empty for all of the machine's (and one, where scaling is of interest).
    pub threads: Vec<usize>,
    /// Fewer workloads and runs.
    pub quick: bool,
    /// The command line, for the record.
    pub command: String,
}

/// Told what is going on, for a progress bar.
pub trait Progress {
    /// There are `total` steps.
    fn begin(&mut self, total: usize);
    /// A step begins.
    fn step(&mut self, what: &str);
    /// Something a person should know now.
    fn note(&mut self, what: &str);
}

/// One cell of the plan: an engine on a workload.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cell {
    dtype: Dtype,
    engine: String,
    threads: usize,
    pass: Pass,
}

/// The workload on which instruction sets and numbers of threads are compared.
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

/// Runs the benchmark. An engine that gives a wrong result is an error, not a time.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Record> {
    let usual: &[&str] = if options.quick { &QUICK } else { &USUAL };
    let names = match options.workloads.as_slice() {
        [] => usual.iter().map(ToString::to_string).collect(),
        [all] if all == "all" => crate::workload::BUILT_IN.iter().map(|(n, _)| (*n).to_owned()).collect(),
        some => some.to_vec(),
    };
    let workloads = names.iter().map(|n| Workload::find(n)).collect::<Result<Vec<_>>>()?;
    let mut bench = Bench {
        options,
        all_threads: std::thread::available_parallelism().map_or(1, usize::from),
        ceilings: Vec::new(),
        measurements: Vec::new(),
        skipped: Vec::new(),
        torch: None,
        open: BTreeMap::new(),
    };
    bench.find_torch();
    let plans: Vec<Vec<Cell>> = workloads.iter().map(|w| bench.plan(w)).collect();
    let threads: BTreeSet<usize> = plans.iter().flatten().map(|c| c.threads).collect();
    if let Some(load) = machine::load().filter(|load| *load > 0.5 * bench.all_threads as f64) {
        progress.note(&format!(
            "note: the machine is busy (load {load:.1} on {} cores): times and ratios will vary",
            bench.all_threads
        ));
    }
    progress.begin(plans.iter().map(Vec::len).sum::<usize>() + threads.len());
    for threads in threads {
        progress.step(&format!("ceilings of this machine, {threads} thread(s)"));
        bench.ceilings.extend(work::ceilings(threads)?);
    }
    for (workload, plan) in workloads.iter().zip(&plans) {
        bench.measure(workload, plan, progress)?;
    }
    if bench.measurements.is_empty() {
        let why = bench.skipped.iter().map(|s| format!("{}: {}", s.what, s.why)).collect::<Vec<_>>();
        bail!("nothing was measured\n{}", why.join("\n"));
    }
    Ok(Record {
        schema: SCHEMA,
        created: machine::now(),
        version: env!("CARGO_PKG_VERSION").into(),
        command: options.command.clone(),
        machine: machine::describe(bench.torch),
        ceilings: bench.ceilings,
        measurements: bench.measurements,
        skipped: bench.skipped,
    })
}

struct Bench<'a> {
    options: &'a Options,
    all_threads: usize,
    ceilings: Vec<Ceiling>,
    measurements: Vec<Measurement>,
    skipped: Vec<Skipped>,
    torch: Option<String>,
    /// Engines that were opened, by name and threads: starting one can take seconds.
    open: BTreeMap<(String, usize), Box<dyn Engine>>,
}

impl Bench<'_> {
    fn wants(&self, engine: &str) -> bool {
        self.options.engines.is_empty() || self.options.engines.iter().any(|e| e == engine)
    }

    /// Asks torch for its version, so that a missing one is said once and not for each workload.
    fn find_torch(&mut self) {
        if !self.wants("torch") {
            return;
        }
        let threads = self.options.threads.first().copied().unwrap_or(self.all_threads);
        match engines::Torch::start(threads) {
            Ok(torch) => {
                self.torch = Some(torch.version().to_owned());
                self.open.insert(("torch".into(), threads), Box::new(torch));
            }
            Err(why) => self.skipped.push(Skipped { what: "torch".into(), why: format!("{why:#}") }),
        }
    }

    /// What is measured of a workload.
    fn plan(&self, workload: &Workload) -> Vec<Cell> {
        let threads = if self.options.threads.is_empty() {
            vec![self.all_threads]
        } else {
            self.options.threads.clone()
        };
        let best = format!("cpu-{}", Isa::best());
        let mut cells = Vec::new();
        for pass in [Pass::Forward, Pass::Backward] {
            for &dtype in &workload.dtypes {
                for &threads in &threads {
                    let cell =
                        |engine: &str, threads| Cell { dtype, engine: engine.to_owned(), threads, pass };
                    if !self.options.engines.is_empty() {
                        let chosen =
                            self.options.engines.iter().filter(|e| *e != "torch" || self.torch.is_some());
                        cells.extend(chosen.map(|e| cell(e, threads)));
                        continue;
                    }
                    cells.push(cell(&best, threads));
                    if dtype == Dtype::F32 && self.torch.is_some() {
                        cells.push(cell("torch", threads));
                    }
                    // Once, and where a second thread and other instructions matter.
                    if workload.name == MAIN && dtype == Dtype::F32 {
                        cells.extend(
                            Isa::available()[1..].iter().map(|isa| cell(&format!("cpu-{isa}"), threads)),
                        );
                        if threads > 1 && self.options.threads.is_empty() {
                            cells.push(cell(&best, 1));
                        }
                    }
                }
            }
        }
        cells
    }

    fn measure(&mut self, workload: &Workload, plan: &[Cell], progress: &mut dyn Progress) -> Result<()> {
        for &dtype in &workload.dtypes {
            let cells: Vec<&Cell> = plan.iter().filter(|c| c.dtype == dtype).collect();
            if !cells.is_empty() {
                self.measure_type(workload, dtype, &cells, progress)?;
            }
        }
        Ok(())
    }

    /// One value type: data and oracle are made once.
    fn measure_type(
        &mut self,
        workload: &Workload,
        dtype: Dtype,
        cells: &[&Cell],
        progress: &mut dyn Progress,
    ) -> Result<()> {
        let data = &workload.data(dtype)?;
        let expected = Expected::new(data, &workload.name)?;
        let reads = work::count_reads(data);
        for cell in cells {
            progress.step(&format!("{} {} {} {}", workload.name, cell.pass, cell.dtype, cell.engine));
            let engine = match self.open.entry((cell.engine.clone(), cell.threads)) {
                Entry::Occupied(engine) => engine.into_mut(),
                Entry::Vacant(place) => place.insert(engines::open(&cell.engine, cell.threads)?),
            };
            let task = crate::task::Task::whole(data, cell.pass);
            if let Some(why) = engine.refuses(&task) {
                let what = format!("{} {} {}", workload.name, cell.engine, cell.dtype);
                self.skipped.push(Skipped { what, why });
                continue;
            }
            let check = expected.check(&mut **engine, data, cell.pass)?;
            let effort = if self.options.quick { Effort::QUICK } else { Effort::FULL };
            let times = engine.time(&task, effort).with_context(|| format!("timing {}", cell.engine))?;
            self.measurements.push(Measurement {
                workload: workload.name.clone(),
                problem: data.problem.to_string(),
                engine: engine.name(),
                pass: cell.pass,
                dtype: cell.dtype.name().into(),
                threads: cell.threads,
                time: summarize(&times),
                work: work::work(&data.problem, reads, cell.pass, &self.ceilings, cell.threads),
                check,
            });
        }
        Ok(())
    }
}
