//! How time grows with the problem: one axis at a time, on the GPU.

use anyhow::Result;
use msda::Dtype;
use msda_bench::bench::Progress;
use msda_bench::record::Pass;
use msda_bench::task::Task;
use msda_bench::timing::{Effort, summarize};
use msda_bench::work;
use msda_bench::workload::Workload;

use crate::found::Found;

/// The workload that is varied.
const BASE: &str = "seed-encoder";

/// An axis, its values, and how a value changes the problem. Values are whole numbers, because dots
/// separate the words of a figure's name.
type Axis = (&'static str, &'static [f64], fn(&mut msda::Spec, f64));

const AXES: [Axis; 5] = [
    ("batch", &[1.0, 2.0, 4.0, 8.0, 16.0], |s, x| s.batch = x as usize),
    ("queries", &[100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0], |s, x| s.queries = x as usize),
    ("points", &[1.0, 2.0, 4.0, 8.0, 16.0], |s, x| s.points = vec![x as usize; s.levels.len()]),
    ("channels", &[8.0, 16.0, 32.0, 64.0, 128.0], |s, x| s.channels = x as usize),
    // Pixels between a sample and its reference point. It changes the data and not the problem.
    (LOCALITY, &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0], |_, _| {}),
];
const LOCALITY: &str = "locality";

/// Number of measurements.
pub(super) fn steps() -> usize {
    AXES.iter().map(|(_, values, _)| values.len()).sum()
}

/// Measures all axes: `analyze.sweep.AXIS.VALUE.time` and `.rate`.
pub(super) fn run(found: &mut Found, progress: &mut dyn Progress) -> Result<()> {
    let mut engine = crate::registry().open("cuda", 1)?;
    let workload = Workload::find(BASE)?;
    let base = workload.problem(Dtype::F16)?;
    for (axis, values, change) in AXES {
        for &value in values {
            progress.step(&format!("sweep {axis} {value}"));
            let problem = base.with(|s| change(s, value))?;
            let data = workload.varied(problem, (axis == LOCALITY).then_some(value))?;
            let times = engine.time(&Task::whole(&data, Pass::Forward), Effort::QUICK)?;
            let us = summarize(&times).median * 1e3;
            let row = (data.problem.channels() * data.problem.types().value.size()) as f64;
            // Of gathered rows.
            let rate = work::count_reads(&data).taps * row / us / 1e3;
            let known = [("time", us, "us"), ("rate", rate, "GB/s")];
            found.add(format!("analyze.sweep.{axis}.{value}"), &known);
        }
    }
    Ok(())
}
