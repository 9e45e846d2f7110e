//! Analysis of a forward kernel: the work of the workload, what the compiler made of the kernel,
//! and counters of the hardware.
//!
//! Each result is a figure: `analyze.WORKLOAD.DTYPE.*` for the workload,
//! `analyze.WORKLOAD.DTYPE.KERNEL.*` for a kernel on it, and `analyze.sweep.AXIS.VALUE.*`. The
//! chosen kernel is called `chosen`.

mod conclude;
mod mix;
mod ncu;
mod sweep;

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda::{Dtype, Problem};
use msda_bench::bench::Progress;
use msda_bench::engines::Engine;
use msda_bench::gpu::{self, kernels};
use msda_bench::record::{Ceiling, Device, Pass, Record, Source};
use msda_bench::task::Task;
use msda_bench::work::{self, Reads};
use msda_bench::workload::{Data, Workload};
use msda_cuda::choose::choose;
use msda_cuda::driver::Device as Gpu;
use msda_cuda::kernels::{Kernel, Prepared};
use msda_cuda::{Operands, Request, Sums, Target};

use crate::facts::Facts;
use crate::found::Found;
use crate::ladder::RUNGS;

pub use conclude::conclusions;

/// The name of the kernel that a call gets.
pub const CHOSEN: &str = "chosen";
/// The kernel whose output the others are compared with.
const FIRST_RUNG: &str = "ladder:original";

/// Names of the chosen kernel and of every rung.
pub fn ladder() -> Vec<String> {
    let rungs = RUNGS.iter().map(|rung| rung.kernel().to_string());
    std::iter::once(CHOSEN.to_owned()).chain(rungs).collect()
}

/// What to analyse.
#[derive(Debug, Clone)]
pub struct Options {
    /// Workloads by name or path.
    pub workloads: Vec<String>,
    /// Value types; the workload's main one when empty.
    pub dtypes: Vec<Dtype>,
    /// Kernels by name; [`CHOSEN`] when empty.
    pub kernels: Vec<String>,
    /// The program that `ncu` runs to read counters; none to read no counters. Its arguments are
    /// `analyze --launch`.
    pub ncu: Option<PathBuf>,
    /// Whether to measure how time grows with the problem.
    pub sweep: bool,
    /// Records with ceilings, for a machine without a GPU.
    pub records: Vec<Source>,
    /// The command line, for the record.
    pub command: String,
}

/// Analyses. Counters and sweeps need a GPU; other results that cannot be had are left out with a
/// reason.
pub fn run(options: &Options, progress: &mut dyn Progress) -> Result<Record> {
    let workloads = options.workloads.iter().map(|name| Workload::find(name)).collect::<Result<Vec<_>>>()?;
    let names = match options.kernels.as_slice() {
        [] => vec![CHOSEN.to_owned()],
        some => some.to_vec(),
    };
    for name in names.iter().filter(|name| *name != CHOSEN) {
        crate::kernel(name)?;
    }
    let gpu = match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(why) if options.sweep => return Err(why).context("nothing was analyzed: --sweep needs a GPU"),
        Err(why) if options.ncu.is_some() => {
            return Err(why).context("nothing was analyzed: --ncu needs a GPU");
        }
        Err(_) => None,
    };
    if options.ncu.is_some() {
        ncu::find()?;
    }
    let mut analysis = Analysis {
        options,
        target: kernels::find_target(None).0,
        ceilings: Vec::new(),
        gpu,
        found: Found::default(),
    };
    let dtypes =
        |w: &Workload| if options.dtypes.is_empty() { vec![w.dtypes[0]] } else { options.dtypes.clone() };
    let kernels: usize = workloads.iter().map(|w| dtypes(w).len() * (1 + names.len())).sum();
    progress.begin(kernels + if options.sweep { sweep::steps() } else { 0 });
    let machine = msda_bench::machine::describe(0);
    analysis.find_ceilings()?;
    for workload in &workloads {
        for dtype in dtypes(workload) {
            analysis.workload(workload, dtype, &names, progress)?;
        }
    }
    if options.sweep {
        sweep::run(&mut analysis.found, progress)?;
    }
    // Ceilings from a record belong to another machine.
    let ceilings = if analysis.gpu.is_some() { analysis.ceilings } else { Vec::new() };
    Ok(Record { ceilings, ..analysis.found.record(&options.command, machine) })
}

/// Launches a kernel once on a workload, under `ncu`.
pub fn launch(workload: &str, dtype: Dtype, kernel: &str) -> Result<()> {
    let data = Workload::find(workload)?.data(dtype)?;
    let mut engine = crate::registry().open(&engine_of(kernel), 1)?;
    engine.run(&Task::whole(&data, Pass::Forward)).map(drop)
}

fn engine_of(kernel: &str) -> String {
    if kernel == CHOSEN { "cuda".into() } else { format!("cuda:{kernel}") }
}

/// A workload's data, and the output of the first rung.
struct First {
    data: Data,
    output: Vec<f64>,
}

struct Analysis<'a> {
    options: &'a Options,
    target: Target,
    ceilings: Vec<Ceiling>,
    gpu: Option<Gpu>,
    found: Found,
}

impl Analysis<'_> {
    /// Measures the ceilings, or takes them from records if there is no GPU.
    fn find_ceilings(&mut self) -> Result<()> {
        if let Some(gpu) = &self.gpu {
            self.ceilings = gpu::ceilings(gpu)?;
            return Ok(());
        }
        let facts = Facts::of(&self.options.records)?;
        for name in [work::COPY, work::GATHER_L1] {
            if let Some(fact) = facts.get(&format!("ceiling.{}.{name}.rate", Device::Cuda)) {
                let ceiling =
                    Ceiling { name: name.into(), device: Device::Cuda, threads: 1, rate: fact.value };
                self.ceilings.push(ceiling);
            }
        }
        if self.ceilings.is_empty() {
            self.found.skip(
                "roofline",
                "no GPU, and no record with ceilings of a GPU\nhint: --record FILE names one",
            );
        } else {
            self.found.skip("ceilings of this machine", "no GPU: those of a record are used");
        }
        Ok(())
    }

    fn workload(
        &mut self,
        workload: &Workload,
        dtype: Dtype,
        names: &[String],
        progress: &mut dyn Progress,
    ) -> Result<()> {
        progress.step(&format!("{} {dtype}: work", workload.name));
        let whole = workload.problem(dtype)?;
        let data = workload.first_images(dtype, 1)?;
        let place = format!("analyze.{}.{dtype}", workload.name);
        self.demand(&place, &whole, &data);
        let mut first = None;
        for name in names {
            progress.step(&format!("{} {dtype}: {name}", workload.name));
            let (operands, kernel) = (Operands::dense(&whole, None), crate::kernel(name).ok());
            let sums = kernel.map_or(Sums::F32, |kernel| kernel.sums());
            let request = Request { sums, ..Request::new(&whole, &operands) };
            let chosen = || choose(&request, &self.target).map(|choice| choice.kernel);
            let kernel = kernel.map_or_else(chosen, Ok)?;
            if let Some(why) = kernel.refuses(&request, &self.target) {
                self.found.skip(format!("{} {dtype} {name}", workload.name), why);
                continue;
            }
            let place = format!("{place}.{name}");
            self.kernel(&place, &kernel, &request);
            self.compare(&place, workload, dtype, name, &mut first);
            self.count(&place, workload, dtype, name);
        }
        Ok(())
    }

    /// Bytes, operations and intensity of a forward pass, and the times that the ceilings allow.
    fn demand(&mut self, place: &str, whole: &Problem, data: &Data) {
        let times = whole.batch() as f64 / data.problem.batch().max(1) as f64;
        let first = work::count_reads(data);
        // Images are alike, so one is counted.
        let reads = Reads { taps: first.taps * times, rows: first.rows * times };
        let w = work::work(whole, reads, Pass::Forward, &self.ceilings, Device::Cuda, 1);
        let (channels, samples) = (whole.channels() as f64, whole.weights_len() as f64);
        let narrow = whole.types().value.size() < 4;
        let known = [
            ("taps", reads.taps, ""),
            ("rows", reads.rows, ""),
            ("reuse", reads.taps / reads.rows, "x"),
            ("gathered", w.gathered_bytes, "B"),
            ("compulsory", w.compulsory_bytes, "B"),
            ("operations.multiply-add", w.flops, "FLOP"),
            // Two coordinates (multiply, subtract, floor, fraction) and the weights of four taps.
            ("operations.locate", 14.0 * samples, "FLOP"),
            ("operations.convert", if narrow { reads.taps * channels } else { 0.0 }, ""),
            ("intensity.gathered", w.flops / w.gathered_bytes, "FLOP/B"),
            ("intensity.compulsory", w.flops / w.compulsory_bytes, "FLOP/B"),
        ];
        self.found.add(place, &known);
        for ceiling in &self.ceilings {
            let bytes = if ceiling.name == work::COPY { w.compulsory_bytes } else { w.gathered_bytes };
            let us = bytes / ceiling.rate / 1e3;
            let known = [("time", us, "us"), ("flops", w.flops / us / 1e6, "TFLOP/s")];
            self.found.add(format!("{place}.roof.{}", ceiling.name), &known);
        }
    }

    /// Resources and instructions of the compiled kernel.
    fn kernel(&mut self, place: &str, kernel: &Kernel, request: &Request<'_>) {
        let call = kernel.prepare(request, &self.target);
        // Kernels after it only clean up.
        let forward = |prepared: &&Prepared| prepared.entry.starts_with("msda_forward");
        let made = call
            .kernels()
            .filter(forward)
            .last()
            .context("kernels of the call: got none, expected one")
            .and_then(|last| mix::read(last, &self.target));
        let made = match made {
            Ok(made) => made,
            Err(why) => return self.found.skip("registers and instructions", format!("{why:#}")),
        };
        let known = [
            ("registers", made.registers as f64, ""),
            ("spills", made.spills as f64, "B"),
            ("shared", made.shared as f64, "B"),
            ("resident-blocks", made.resident as f64, ""),
        ];
        self.found.add(place, &known);
        match made.kinds {
            Ok(kinds) => {
                let total: usize = kinds.values().sum();
                self.found.add(place, &[("instructions.static", total as f64, "")]);
                kinds.iter().for_each(|(kind, count)| self.found.add(place, &[(kind, *count as f64, "")]));
            }
            Err(why) => self.found.skip("instructions by kind", why),
        }
    }

    /// The largest difference from the output of the first rung.
    fn compare(
        &mut self,
        place: &str,
        workload: &Workload,
        dtype: Dtype,
        name: &str,
        first: &mut Option<First>,
    ) {
        if self.gpu.is_none() {
            return self.found.skip("comparison of outputs", "no GPU");
        }
        let other = FIRST_RUNG;
        let output = |data: &Data, kernel: &str| -> Result<Vec<f64>> {
            let mut engine: Box<dyn Engine> = crate::registry().open(&engine_of(kernel), 1)?;
            let results = engine.run(&Task::whole(data, Pass::Forward))?;
            Ok(results.0.first().context("no output")?.to_f64())
        };
        let mut difference = || -> Result<f64> {
            if first.is_none() {
                let data = workload.data(dtype)?;
                let output = output(&data, other)?;
                *first = Some(First { data, output });
            }
            let First { data, output: expected } = first.as_ref().context("no output to compare with")?;
            let got = output(data, name)?;
            Ok(got.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max))
        };
        match difference() {
            Ok(difference) => self.found.add(place, &[("difference", difference, "")]),
            Err(why) => self.found.skip(format!("{place}: difference from {other}"), format!("{why:#}")),
        }
    }

    /// Counters of one launch.
    fn count(&mut self, place: &str, workload: &Workload, dtype: Dtype, name: &str) {
        let Some(program) = &self.options.ncu else { return };
        let args = ["analyze", "--launch", "--workload", &workload.name];
        let args = args.into_iter().chain(["--dtype", dtype.name(), "--kernel", name]);
        let args: Vec<String> = args.map(str::to_owned).collect();
        match ncu::count(program, &args) {
            Ok(counters) => {
                for (metric, end, unit) in ncu::METRICS {
                    if let Some(value) = counters.get(metric) {
                        self.found.add(place, &[(end, *value, unit)]);
                    }
                }
            }
            Err(why) => self.found.skip("counters", format!("{why:#}")),
        }
    }
}
