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

use anyhow::{Context, Result, anyhow};
use msda::{Dtype, Problem};
use msda_bench::bench::Progress;
use msda_bench::gpu::{self, kernels};
use msda_bench::record::{Ceiling, Device, Pass, Record, Source};
use msda_bench::task::Task;
use msda_bench::work::{self, Reads};
use msda_bench::workload::{Data, Workload};
use msda_cuda::choose::choose;
use msda_cuda::driver::Device as Gpu;
use msda_cuda::jit;
use msda_cuda::kernels::{Kernel, Prepared};
use msda_cuda::{Operands, Request, Sums, Target};

use crate::found::Found;
use crate::ladder::RUNGS;

pub use conclude::conclusions;

/// The name of the kernel that a call gets.
pub const CHOSEN: &str = "chosen";
/// The kernel whose output the others are compared with.
const FIRST_RUNG: &str = "ladder:original";

/// What to analyse.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A workload by name, or a path to a .toml file; may be repeated. The seed shape when absent
    #[arg(long = "workload", value_name = "NAME", default_value = "seed")]
    pub workloads: Vec<String>,
    /// The value type; the workload's main one when absent. May be repeated
    #[arg(long = "dtype", value_name = "TYPE")]
    pub dtypes: Vec<Dtype>,
    /// A kernel by name, as `msda kernels` and `msda-study list` show them, or 'chosen'; may be
    /// repeated
    #[arg(long = "kernel", value_name = "NAME", default_value = CHOSEN)]
    pub kernels: Vec<String>,
    /// The chosen kernel and every rung of the ladder
    #[arg(long, conflicts_with = "kernels")]
    pub ladder: bool,
    /// Read hardware counters with Nsight Compute
    #[arg(long)]
    pub ncu: bool,
    /// Measure how time grows with batch, queries, points, channels and distance
    #[arg(long)]
    pub sweep: bool,
    /// The command line, for the record.
    #[arg(skip)]
    pub command: String,
}

/// Analyses. Counters and sweeps need a GPU; other results that cannot be had are left out with a
/// reason.
///
/// On a machine without a GPU, `records` may have ceilings of one. `ncu` runs this program with the
/// arguments of [`launch`].
pub fn run(options: &Options, records: &[Source], progress: &mut dyn Progress) -> Result<Record> {
    let workloads = options.workloads.iter().map(|name| Workload::find(name)).collect::<Result<Vec<_>>>()?;
    let names = if options.ladder {
        let rungs = RUNGS.iter().map(|rung| rung.kernel().to_string());
        std::iter::once(CHOSEN.to_owned()).chain(rungs).collect()
    } else {
        options.kernels.clone()
    };
    for name in names.iter().filter(|name| *name != CHOSEN) {
        crate::kernel(name)?;
    }
    let gpu = match Gpu::open(0) {
        Ok(gpu) => Some(gpu),
        Err(why) if options.sweep => return Err(why).context("nothing was analyzed: --sweep needs a GPU"),
        Err(why) if options.ncu => return Err(why).context("nothing was analyzed: --ncu needs a GPU"),
        Err(_) => None,
    };
    if options.ncu {
        ncu::find()?;
    }
    let (target, ceilings) = (kernels::find_target(None).0, Vec::new());
    let mut analysis = Analysis { counts: options.ncu, target, ceilings, gpu, found: Found::default() };
    let dtypes =
        |w: &Workload| if options.dtypes.is_empty() { vec![w.dtypes[0]] } else { options.dtypes.clone() };
    let kernels: usize = workloads.iter().map(|w| dtypes(w).len() * (1 + names.len())).sum();
    progress.begin(kernels + if options.sweep { sweep::steps() } else { 0 });
    let machine = msda_bench::machine::describe(0);
    analysis.find_ceilings(records)?;
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

/// Launches the first kernel once on the first workload, under `ncu`.
pub fn launch(options: &Options) -> Result<()> {
    let dtype = options.dtypes.first().copied().context("--launch: expected a --dtype")?;
    let data = Workload::find(&options.workloads[0])?.data(dtype)?;
    output(&data, &options.kernels[0]).map(drop)
}

/// The output of a kernel.
fn output(data: &Data, kernel: &str) -> Result<Vec<f64>> {
    let engine = if kernel == CHOSEN { "cuda".into() } else { format!("cuda:{kernel}") };
    let results = crate::registry().open(&engine, 1)?.run(&Task::whole(data, Pass::Forward))?;
    Ok(results.0.first().context("no output")?.to_f64())
}

/// A workload's data, and the output of the first rung.
type First = (Data, Vec<f64>);

fn first_output(workload: &Workload, dtype: Dtype) -> Result<First> {
    let data = workload.data(dtype)?;
    let expected = output(&data, FIRST_RUNG)?;
    Ok((data, expected))
}

struct Analysis {
    /// Whether `ncu` reads counters.
    counts: bool,
    target: Target,
    ceilings: Vec<Ceiling>,
    gpu: Option<Gpu>,
    found: Found,
}

impl Analysis {
    /// Measures the ceilings, or takes them from records if there is no GPU.
    fn find_ceilings(&mut self, records: &[Source]) -> Result<()> {
        if let Some(gpu) = &self.gpu {
            self.ceilings = gpu::ceilings(gpu)?;
            return Ok(());
        }
        let mut newest_first: Vec<&Source> = records.iter().collect();
        newest_first.sort_by(|a, b| b.record.created.cmp(&a.record.created));
        for name in [work::COPY, work::GATHER_L1] {
            let mut all = newest_first.iter().flat_map(|source| &source.record.ceilings);
            self.ceilings.extend(all.find(|c| c.name == name && c.device == Device::Cuda).cloned());
        }
        if self.ceilings.is_empty() {
            let why = "no GPU, and no record with ceilings of a GPU\nhint: --record FILE names one";
            self.found.skip("roofline", why);
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
        let first = self.gpu.is_some().then(|| first_output(workload, dtype));
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
            self.compare(&place, name, first.as_ref());
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
        let Some(last) = call.kernels().filter(forward).last() else {
            return self.found.skip("registers and instructions", "the call has no kernel");
        };
        let compiled = jit::compile(&last.unit).map_err(anyhow::Error::from);
        let known = compiled.and_then(|compiled| {
            Ok((mix::resources(&compiled, last, &self.target)?, mix::kinds(&compiled, last, &self.target)))
        });
        let (resources, kinds) = match known {
            Ok(known) => known,
            Err(why) => return self.found.skip("registers and instructions", format!("{why:#}")),
        };
        self.found.add(place, &resources);
        match kinds {
            Ok(kinds) => {
                let total: usize = kinds.values().sum();
                self.found.add(place, &[("instructions.static", total as f64, "")]);
                kinds.iter().for_each(|(kind, count)| self.found.add(place, &[(kind, *count as f64, "")]));
            }
            Err(why) => self.found.skip("instructions by kind", why),
        }
    }

    /// The largest difference from the output of the first rung.
    fn compare(&mut self, place: &str, name: &str, first: Option<&Result<First>>) {
        let got = match first {
            None => return self.found.skip("comparison of outputs", "no GPU"),
            Some(Ok((data, expected))) => output(data, name).map(|got| (got, expected)),
            Some(Err(why)) => Err(anyhow!("{why:#}")),
        };
        match got {
            Ok((got, expected)) => {
                let difference = got.iter().zip(expected).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
                self.found.add(place, &[("difference", difference, "")]);
            }
            Err(why) => self.found.skip(format!("{place}: difference from {FIRST_RUNG}"), format!("{why:#}")),
        }
    }

    /// Counters of one launch.
    fn count(&mut self, place: &str, workload: &Workload, dtype: Dtype, name: &str) {
        if !self.counts {
            return;
        }
        let args = ["analyze", "--launch", "--workload", &workload.name, "--dtype", dtype.name()];
        let program = std::env::current_exe().context("this program");
        match program.and_then(|program| ncu::count(&program, &[&args[..], &["--kernel", name]].concat())) {
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
