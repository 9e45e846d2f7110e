//! How time grows with the problem: one axis at a time around a base, on the GPU or, smaller, on the processor.

use anyhow::Result;
use msda::{Dtype, Isa, Problem};

use super::Figures;
use msda_bench::bench::Progress;
use msda_bench::engines::Engine;
use msda_bench::record::{Device, Pass, Skipped};
use msda_bench::task::Task;
use msda_bench::timing::{Effort, summarize};
use msda_bench::work;
use msda_bench::workload::Workload;

/// The workload whose levels and distribution are varied.
const BASE: &str = "seed-encoder";

/// What is varied, and to which values.
struct Axis {
    name: &'static str,
    values: Vec<f64>,
    change: fn(&mut msda::Spec, f64),
}

fn axes(device: Device) -> Vec<Axis> {
    let gpu = device == Device::Cuda;
    let axis = |name, on_gpu: &[f64], on_cpu: &[f64], change| Axis {
        name,
        values: if gpu { on_gpu } else { on_cpu }.to_vec(),
        change,
    };
    vec![
        axis("batch", &[1.0, 2.0, 4.0, 8.0, 16.0], &[1.0, 2.0, 4.0], |s, x| s.batch = x as usize),
        axis(
            "queries",
            &[100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0],
            &[100.0, 300.0, 1000.0, 3000.0],
            |s, x| s.queries = x as usize,
        ),
        axis("points", &[1.0, 2.0, 4.0, 8.0, 16.0], &[1.0, 2.0, 4.0, 8.0], |s, x| {
            s.points = vec![x as usize; s.levels.len()];
        }),
        axis("channels", &[8.0, 16.0, 32.0, 64.0, 128.0], &[8.0, 16.0, 32.0, 64.0], |s, x| {
            s.channels = x as usize
        }),
        // Whole numbers, for names have dots between words: pixels that samples are spread by around their reference point.
        axis("locality", &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0], &[1.0, 2.0, 8.0, 32.0], |_, _| {}),
    ]
}

/// Measures all axes: `analyze.sweep.AXIS.VALUE.time` and `.rate`. Without a GPU the processor is measured and that is
/// said.
pub(super) fn run(
    gpu: bool,
    figures: &mut Figures,
    skipped: &mut Vec<Skipped>,
    progress: &mut dyn Progress,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let (name, device, dtype) = if gpu {
        ("cuda".to_owned(), Device::Cuda, Dtype::F16)
    } else {
        let why = "no GPU: the processor was measured, with fewer queries, in f32".to_owned();
        skipped.push(Skipped { what: "sweep on the GPU".into(), why });
        (format!("cpu-{}", Isa::best()), Device::Cpu, Dtype::F32)
    };
    let mut engine = crate::registry().open(&name, threads)?;
    let workload = Workload::find(BASE)?;
    let base = workload.problem(dtype)?.with(|s| {
        if !gpu {
            s.queries = 2000;
        }
    })?;
    for axis in axes(device) {
        for &value in &axis.values {
            progress.step(&format!("sweep {} {value}", axis.name));
            let problem = base.with(|s| (axis.change)(s, value))?;
            let spread = (axis.name == "locality").then_some(value);
            let (us, rate) = measure(&mut *engine, &workload, problem, spread)?;
            figures.add(&format!("analyze.sweep.{}.{value}.time", axis.name), us, "us");
            figures.add(&format!("analyze.sweep.{}.{value}.rate", axis.name), rate, "GB/s");
        }
    }
    Ok(())
}

fn measure(
    engine: &mut dyn Engine,
    workload: &Workload,
    problem: Problem,
    spread: Option<f64>,
) -> Result<(f64, f64)> {
    let data = workload.varied(problem, spread)?;
    let reads = work::count_reads(&data);
    let times = engine.time(&Task::whole(&data, Pass::Forward), Effort::QUICK)?;
    let us = summarize(&times).median * 1e3;
    let row = (data.problem.channels() * data.problem.types().value.size()) as f64;
    Ok((us, reads.taps * row / us / 1e3))
}
