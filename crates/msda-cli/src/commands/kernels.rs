//! `msda kernels`

use anyhow::Result;
use msda::Dtype;
use msda_bench::gpu::kernels::{self, Described, Explained, Family, pretty, target};
use msda_bench::record::Pass;
use msda_bench::report::{beside, wrap};
use msda_bench::workload::Workload;
use msda_cuda::Scatter;
use msda_cuda::driver::Arch;
use serde_json::{Value, json};

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
            families.extend(kernels::families(&target, pass)?.into_iter().map(|family| (pass, family)));
        }
        return print(&if args.json {
            pretty(target, "families", families.iter().map(family_json).collect())?
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
        pretty(target, "problems", explained.iter().map(problem_json).collect())?
    } else {
        explained.iter().map(problem_text).collect::<Vec<_>>().join("\n")
    })
}

fn family_text((pass, family): &(Pass, Family)) -> String {
    let width = screen().width;
    let mut text = wrap(&format!("{}, {pass}: {}", family.name, family.about), width, 2);
    for (what, refused) in &family.takes {
        text += &match refused {
            None => format!("  yes  {what}\n"),
            Some(why) => beside("  no   ", &format!("{what}: {why}"), width),
        };
    }
    text
}

fn family_json((pass, family): &(Pass, Family)) -> Value {
    let takes: Vec<Value> = family
        .takes
        .iter()
        .map(|(what, refused)| json!({ "what": what, "takes": refused.is_none(), "why_not": refused }))
        .collect();
    json!({ "name": family.name, "pass": pass, "about": family.about, "takes": takes })
}

fn problem_text(e: &Explained) -> String {
    let width = screen().width;
    let pair = |name: &str, text: &str| beside(&format!("  {name:<7} "), text, width);
    let mut text = format!("{} {}\n", e.problem, e.pass);
    text += &pair("class", &e.class);
    text += &pair("kernel", &e.choice.kernel.to_string());
    text += &pair("why", &e.choice.why.to_string());
    for (i, stage) in e.stages.iter().enumerate() {
        text += &pair(&format!("stage {}", i + 1), &stage_text(stage));
    }
    text += &pair("memory", &format!("{} bytes of workspace", e.workspace));
    for asked in &e.families {
        text +=
            &format!("  {}: {} of {} variants can compute it\n", asked.name, asked.takes, asked.candidates);
        for (why, count) in &asked.refusals {
            text += &beside(&format!("    {count:>6}  "), why, width);
        }
    }
    text
}

fn stage_text(stage: &Described) -> String {
    let what = stage.kernel.as_deref().unwrap_or("memory clear");
    let size =
        stage.size.map_or(String::new(), |(blocks, threads)| format!(", {blocks} blocks of {threads}"));
    format!("{what}{size}: {}", stage.why)
}

fn problem_json(e: &Explained) -> Value {
    let families: Vec<Value> = e
        .families
        .iter()
        .map(|asked| {
            let refusals: Vec<Value> =
                asked.refusals.iter().map(|(why, count)| json!({ "why": why, "count": count })).collect();
            json!({
                "name": asked.name, "candidates": asked.candidates, "takes": asked.takes, "refusals": refusals,
            })
        })
        .collect();
    let stages: Vec<Value> = e
        .stages
        .iter()
        .map(|s| {
            let (blocks, threads) = s.size.unzip();
            json!({ "kernel": s.kernel, "blocks": blocks, "threads": threads, "why": s.why })
        })
        .collect();
    json!({
        "problem": e.problem, "pass": e.pass, "class": e.class, "kernel": e.choice.kernel.to_string(),
        "why": e.choice.why, "stages": stages, "workspace": e.workspace, "families": families,
    })
}
