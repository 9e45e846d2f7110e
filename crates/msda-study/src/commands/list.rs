//! `msda-study list`

use anyhow::Result;
use msda::{Dtype, Problem};
use msda_bench::workload::Workload;
use msda_cuda::driver::Arch;
use msda_cuda::kernels::Call;
use msda_cuda::{Operands, Request, Target};
use msda_study::ladder::{RUNGS, Rung};
use serde_json::json;

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
    let problem = |(problem, rungs): &(String, Vec<Step>)| json!({ "problem": problem, "rungs": rungs });
    print(&if args.json {
        pretty(target, "problems", listed.iter().map(problem).collect())?
    } else {
        listed.iter().map(text).collect::<Vec<_>>().join("\n")
    })
}

/// A rung, and the call that it makes of a problem.
#[derive(serde::Serialize)]
struct Step {
    name: &'static str,
    about: &'static str,
    /// Whether its results are held to the tolerance.
    exact: bool,
    takes: bool,
    why_not: Option<String>,
    kernels: usize,
    /// Bytes of workspace from the caller.
    workspace: usize,
    /// Bytes that the plan owns.
    owned: usize,
}

/// Every rung with its call on dense tensors.
fn rungs(problem: &Problem, target: &Target) -> Vec<Step> {
    let operands = Operands::dense(problem, None);
    let request = Request::new(problem, &operands);
    let step = |rung: &'static Rung| {
        let kernel = rung.kernel();
        let why_not = kernel.refuses(&request, target);
        let call = if why_not.is_none() { kernel.prepare(&request, target) } else { Call::default() };
        Step {
            name: rung.name,
            about: rung.about,
            exact: kernel.is_exact(),
            takes: why_not.is_none(),
            why_not,
            kernels: call.kernels().count(),
            workspace: call.arena.bytes(),
            owned: call.owned_bytes(),
        }
    };
    RUNGS.iter().map(step).collect()
}

fn text((problem, steps): &(String, Vec<Step>)) -> String {
    let table = Table::default().words(["rung"]).numbers(["kernels", "workspace"]);
    let mut table = table.words(["strategy"]);
    for step in steps {
        let inexact = if step.exact { "" } else { " (inexact)" };
        let (kernels, memory, about) = match &step.why_not {
            None => (step.kernels.to_string(), bytes(step.workspace + step.owned), step.about.to_owned()),
            Some(why) => ("-".into(), "-".into(), format!("refused: {why}")),
        };
        table.push([step.name.to_owned(), kernels, memory, about + inexact]);
    }
    format!("{problem}\n{}", table.text(screen().width, false))
}

/// Bytes, of many the MiB.
fn bytes(n: usize) -> String {
    if n < 1 << 20 { n.to_string() } else { format!("{:.1} MiB", n as f64 / f64::from(1 << 20)) }
}
