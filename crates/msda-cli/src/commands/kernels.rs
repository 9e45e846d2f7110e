//! `msda kernels`

use anyhow::{Result, bail};
use msda::Dtype;
use msda_bench::gpu::kernels::{self, Explained, Family};
use msda_bench::workload::Workload;
use msda_cuda::Target;
use msda_cuda::driver::Arch;
use serde_json::{Value, json};

use crate::terminal::print;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda kernels
  msda kernels --workload seed-encoder --dtype f16
  msda kernels --workload detr-decoder --arch sm_80")]
pub(crate) struct Args {
    /// A workload by name, or a path to a .toml file: shows its kernel, and why others refuse
    #[arg(long, value_name = "NAME")]
    workload: Option<String>,
    /// The value type: f32, f16, bf16 or f64; the workload's own types when absent. May be repeated
    #[arg(long, value_name = "TYPE", requires = "workload")]
    dtype: Vec<Dtype>,
    /// An architecture such as sm_90; the GPU's when absent, or sm_90 without a GPU
    #[arg(long)]
    arch: Option<Arch>,
    /// Print the answer as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let target = target(args.arch)?;
    let Some(name) = &args.workload else {
        let families = kernels::families(&target)?;
        return print(&if args.json {
            pretty(target, "families", families.iter().map(family_json).collect())?
        } else {
            families.iter().map(family_text).collect::<Vec<_>>().join("\n")
        });
    };
    let workload = Workload::find(name)?;
    let dtypes = if args.dtype.is_empty() { &workload.dtypes } else { &args.dtype };
    let mut explained = Vec::new();
    for &dtype in dtypes {
        explained.push(kernels::explain(&workload.problem(dtype)?, &target));
    }
    print(&if args.json {
        pretty(target, "problems", explained.iter().map(problem_json).collect())?
    } else {
        explained.iter().map(problem_text).collect::<Vec<_>>().join("\n")
    })
}

/// The target of an architecture, or of the GPU here; says so if there is none.
pub(crate) fn target(arch: Option<Arch>) -> Result<Target> {
    if let Some(arch) = arch.filter(|arch| arch.number() < 75) {
        bail!(
            "architecture: got {arch}, expected sm_75 or newer\nhint: kernels are compiled by CUDA 12 or newer"
        );
    }
    let (target, here) = kernels::target(arch);
    if arch.is_none() && !here {
        eprintln!("note: no GPU here: this is about {}", target.arch);
    }
    Ok(target)
}

/// A list as JSON, with the target that it is about.
pub(crate) fn pretty(target: Target, name: &str, list: Vec<Value>) -> Result<String> {
    let all = json!({
        "arch": target.arch.to_string(), "multiprocessors": target.multiprocessors, name: list,
    });
    Ok(serde_json::to_string_pretty(&all)?)
}

fn family_text(family: &Family) -> String {
    let mut text = format!("{}: {}\n", family.name, family.about);
    for (what, refused) in &family.takes {
        text += &match refused {
            None => format!("  yes  {what}\n"),
            Some(why) => format!("  no   {what}: {why}\n"),
        };
    }
    text
}

fn family_json(family: &Family) -> Value {
    let takes: Vec<Value> = family
        .takes
        .iter()
        .map(|(what, refused)| json!({ "what": what, "takes": refused.is_none(), "why_not": refused }))
        .collect();
    json!({ "name": family.name, "about": family.about, "takes": takes })
}

fn problem_text(e: &Explained) -> String {
    let mut text = format!("{}\n  class   {}\n", e.problem, e.class);
    text += &format!("  kernel  {}\n  why     {}\n", e.choice.kernel, e.choice.why);
    for asked in &e.families {
        text += &format!("  {}: {} of {} candidates take it\n", asked.name, asked.takes, asked.candidates);
        for (why, count) in &asked.refusals {
            text += &format!("    {count:>6}  {why}\n");
        }
    }
    text
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
    json!({
        "problem": e.problem, "class": e.class, "kernel": e.choice.kernel.to_string(), "why": e.choice.why,
        "families": families,
    })
}
