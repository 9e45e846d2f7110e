//! `msda-study list`

use anyhow::Result;
use msda::Dtype;
use msda_bench::workload::Workload;
use msda_cuda::driver::Arch;
use msda_study::list::{Step, rungs};
use serde_json::{Value, json};

use msda_bench::gpu::kernels::{pretty, target};
use msda_bench::report::Table;
use msda_bench::terminal::{print, screen};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda-study list
  msda-study list --workload detr-encoder --dtype f16 --arch sm_80")]
pub(crate) struct Args {
    /// The workload that the rungs are asked for: a name, or a path to a .toml file
    #[arg(long, value_name = "NAME", default_value = "seed")]
    workload: String,
    /// The value type; the workload's first when absent. May be repeated
    #[arg(long, value_name = "TYPE")]
    dtype: Vec<Dtype>,
    /// An architecture such as sm_90; the GPU's when absent, or sm_90 without a GPU
    #[arg(long)]
    arch: Option<Arch>,
    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let target = target(args.arch)?;
    let workload = Workload::find(&args.workload)?;
    let dtypes = if args.dtype.is_empty() { &workload.dtypes[..1] } else { &args.dtype };
    let mut listed = Vec::new();
    for &dtype in dtypes {
        let problem = workload.problem(dtype)?;
        listed.push((problem.to_string(), rungs(&problem, &target)));
    }
    print(&if args.json {
        pretty(target, "problems", listed.iter().map(ladder_json).collect())?
    } else {
        listed.iter().map(ladder_text).collect::<Vec<_>>().join("\n")
    })
}

fn ladder_text((problem, steps): &(String, Vec<Step>)) -> String {
    let table = Table::default().words(["rung"]).numbers(["kernels", "workspace"]);
    let mut table = table.words(["strategy"]);
    for step in steps {
        let inexact = if step.exact { "" } else { " (inexact)" };
        let (kernels, memory, about) = match &step.call {
            Ok(q) => (q.kernels.to_string(), bytes(q.workspace + q.owned), step.about.to_owned()),
            Err(why) => ("-".into(), "-".into(), format!("refused: {why}")),
        };
        table.push([step.name.to_owned(), kernels, memory, about + inexact]);
    }
    format!("{problem}\n{}", table.text(screen().width, false))
}

fn ladder_json((problem, steps): &(String, Vec<Step>)) -> Value {
    json!({ "problem": problem, "rungs": steps.iter().map(step_json).collect::<Vec<_>>() })
}

/// Bytes, of many the MiB.
fn bytes(n: usize) -> String {
    if n < 1 << 20 { n.to_string() } else { format!("{:.1} MiB", n as f64 / f64::from(1 << 20)) }
}

fn step_json(step: &Step) -> Value {
    let queued = step.call.as_ref().ok();
    json!({
        "name": step.name, "about": step.about, "exact": step.exact, "takes": queued.is_some(),
        "why_not": step.call.as_ref().err(), "kernels": queued.map(|q| q.kernels),
        "workspace": queued.map(|q| q.workspace), "owned": queued.map(|q| q.owned),
    })
}
