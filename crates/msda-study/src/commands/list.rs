//! `msda-study list`

use anyhow::Result;
use msda::Dtype;
use msda_bench::workload::Workload;
use msda_cuda::driver::Arch;
use msda_cuda::kernels::Call;
use msda_cuda::{Operands, Request};
use msda_study::ladder::{RUNGS, Rung};
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
        let operands = Operands::dense(&problem, None);
        let request = Request::new(&problem, &operands);
        let rungs = RUNGS.iter().map(|rung| (rung, rung.call(&request, &target)));
        listed.push((problem.to_string(), rungs.collect::<Vec<_>>()));
    }
    if args.json {
        let problem = |(problem, asked): &(String, Asked)| json!({ "problem": problem, "rungs": asked.iter().map(step).collect::<Vec<_>>() });
        return print(&pretty(target, "problems", listed.iter().map(problem).collect())?);
    }
    print(&listed.iter().map(text).collect::<Vec<_>>().join("\n"))
}

/// Rungs, and the calls that they make of a problem with dense tensors.
type Asked = Vec<(&'static Rung, Result<Call>)>;

fn step((rung, call): &(&'static Rung, Result<Call>)) -> Value {
    json!({
        "name": rung.name,
        "about": rung.about,
        // Whether its results are held to the tolerance.
        "exact": rung.kernel().is_exact(),
        "takes": call.is_ok(),
        "why_not": call.as_ref().err().map(ToString::to_string),
        "kernels": call.as_ref().map_or(0, |call| call.kernels().count()),
        // Bytes of workspace from the caller, and bytes that the plan owns.
        "workspace": call.as_ref().map_or(0, |call| call.arena.bytes()),
        "owned": call.as_ref().map_or(0, Call::owned_bytes),
    })
}

fn text((problem, asked): &(String, Asked)) -> String {
    let table = Table::default().words(["rung"]).numbers(["kernels", "workspace"]);
    let mut table = table.words(["strategy"]);
    for (rung, call) in asked {
        let inexact = if rung.kernel().is_exact() { "" } else { " (inexact)" };
        let (kernels, memory, about) = match call {
            Ok(call) => {
                let memory = bytes(call.arena.bytes() + call.owned_bytes());
                (call.kernels().count().to_string(), memory, rung.about.to_owned())
            }
            Err(why) => ("-".into(), "-".into(), format!("refused: {why}")),
        };
        table.push([rung.name.to_owned(), kernels, memory, about + inexact]);
    }
    format!("{problem}\n{}", table.text(screen().width, false))
}

/// Bytes, of many the MiB.
fn bytes(n: usize) -> String {
    if n < 1 << 20 { n.to_string() } else { format!("{:.1} MiB", n as f64 / f64::from(1 << 20)) }
}
