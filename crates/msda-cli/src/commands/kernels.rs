//! `msda kernels`

use anyhow::Result;
use msda::Dtype;
use msda_bench::gpu::kernels::{self, Answer, Described, Explained, Family, pretty, target};
use msda_bench::report::{beside, wrap};
use msda_bench::workload::Workload;
use msda_cuda::Scatter;
use msda_cuda::driver::Arch;
use serde_json::json;

use super::{PassArg, dtype};
use msda_bench::terminal::{print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
Needs no GPU. Without --workload it lists the kernels and what each can compute,
with it the kernels that a launch queues and the device memory that they need.

Examples:
  msda kernels
  msda kernels --workload seed-encoder --dtype f16
  msda kernels --workload detr-decoder --pass backward --arch sm_80")]
pub(crate) struct Args {
    /// A workload, or a path to a .toml file: show which kernel it uses and why
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// A value type; may be repeated. All types of the workload when absent
    #[arg(long, value_name = "TYPE", requires = "workload", value_parser = dtype())]
    dtype: Vec<Dtype>,
    /// The pass
    #[arg(long, value_enum, default_value = "forward")]
    pass: PassArg,
    /// Atomic additions to the gradient of value: its bits may differ from run to run
    #[arg(long, requires = "workload")]
    atomic: bool,
    /// The architecture, such as sm_90. That of the GPU when absent, or sm_90 without a GPU
    #[arg(long)]
    arch: Option<Arch>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let target = target(args.arch)?;
    let passes = args.pass.all();
    let Some(name) = &args.workload else {
        let mut families = Vec::new();
        for &pass in &passes {
            families.extend(kernels::families(&target, pass)?);
        }
        return print(&if args.json {
            pretty(target, "families", families.iter().map(|f| json!(f)).collect())?
        } else {
            families.iter().map(family_text).collect::<Vec<_>>().join("\n")
        });
    };
    let scatter = if args.atomic { Scatter::Atomic } else { Scatter::Ordered };
    let workload = Workload::find(name)?;
    let dtypes = if args.dtype.is_empty() { &workload.dtypes } else { &args.dtype };
    let mut explained = Vec::new();
    for &pass in &passes {
        for &dtype in dtypes {
            explained.push(kernels::explain(&workload.problem(dtype)?, &target, pass, scatter)?);
        }
    }
    print(&if args.json {
        pretty(target, "problems", explained.iter().map(|e| json!(e)).collect())?
    } else {
        explained.iter().map(problem_text).collect::<Vec<_>>().join("\n")
    })
}

fn family_text(family: &Family) -> String {
    let width = screen().width;
    let mut text = wrap(&format!("{}, {}: {}", family.name, family.pass, family.about), width, 2);
    for Answer { what, why_not, .. } in &family.takes {
        text += &match why_not {
            None => format!("  yes  {what}\n"),
            Some(why) => beside("  no   ", &format!("{what}: {why}"), width),
        };
    }
    text
}

fn problem_text(e: &Explained) -> String {
    let width = screen().width;
    let pair = |name: &str, text: &str| beside(&format!("  {name:<7} "), text, width);
    let mut text = format!("{} {}\n", e.problem, e.pass);
    text += &pair("class", &e.class);
    text += &pair("kernel", &e.kernel);
    text += &pair("why", &e.why);
    for (i, stage) in e.stages.iter().enumerate() {
        text += &pair(&format!("stage {}", i + 1), &stage_text(stage));
        if let Some(folder) = &stage.folder {
            text += &pair("from", &folder.display().to_string());
        }
    }
    text += &pair("memory", &format!("{} bytes of workspace", e.workspace));
    for asked in &e.families {
        text +=
            &format!("  {}: {} of {} variants can compute it\n", asked.name, asked.takes, asked.candidates);
        for refusal in &asked.refusals {
            text += &beside(&format!("    {:>6}  ", refusal.count), &refusal.why, width);
        }
    }
    text
}

fn stage_text(stage: &Described) -> String {
    let what = stage.kernel.as_deref().unwrap_or("memory clear");
    let size = stage.blocks.zip(stage.threads);
    let size = size.map_or(String::new(), |(blocks, threads)| format!(", {blocks} blocks of {threads}"));
    format!("{what}{size}: {}", stage.why)
}
