//! `msda bench`

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda::Dtype;
use msda_bench::workload::Workload;
use msda_bench::{bench, report};

use super::{DeviceArg, typed};
use crate::terminal::{Bar, color, print};

#[derive(clap::Args)]
#[command(after_help = "Without options: the usual workloads on all cores, in under two minutes. \
    `--workload all` runs everything and takes much longer.

Examples:
  msda bench --quick
  msda bench --workload detr-encoder --dtype f16 --device cuda
  msda bench --ladder --out ladder")]
pub(crate) struct Args {
    /// Fewer workloads and fewer runs: a few seconds
    #[arg(long)]
    quick: bool,
    /// A workload by name, 'all', or a path to a .toml file; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// The value type: f32, f16, bf16 or f64, of those that a workload has; all when absent. May be repeated
    #[arg(long, value_name = "TYPE")]
    dtype: Vec<Dtype>,
    /// Every rung of the ladder beside the kernel that is chosen, on the seed shape in f16 unless something else is
    /// asked for
    #[arg(long, conflicts_with_all = ["engine", "device", "threads"])]
    ladder: bool,
    /// An engine by name: cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable, cuda, cuda:half, cuda:fixed, cuda:KERNEL, cuda@N for another
    /// GPU, torch, torch-cuda, oracle, or peer:NAME from engines.toml; may be repeated
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// Where to measure: all that there is, or one
    #[arg(long, value_enum, default_value = "all")]
    device: DeviceArg,
    /// Number of threads; may be repeated
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Print the record as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Folder for record.json, report.html and report.md
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

/// The workloads on which the ladder is measured: the documents' shape, with samples near their query and anywhere.
const LADDER: [&str; 2] = ["seed", "seed-ring-uniform"];

pub(crate) fn main(args: Args) -> Result<()> {
    let (mut workloads, mut dtypes, mut engines) = (args.workload, args.dtype, args.engine);
    if args.ladder {
        engines = msda_bench::engines::ladder();
        if workloads.is_empty() {
            workloads = LADDER.map(String::from).into();
        }
        if dtypes.is_empty() {
            dtypes = vec![Dtype::F16];
        }
    }
    let options = bench::Options {
        workloads,
        engines: engines.into_iter().map(|e| best_name(&e)).collect(),
        dtypes,
        device: args.device.only(),
        threads: args.threads.into_iter().map(usize::from).collect(),
        quick: args.quick,
        command: typed(std::env::args().skip(1)),
    };
    for name in options.workloads.iter().filter(|name| *name != "all") {
        Workload::find(name)?;
    }
    // Nothing of the ladder is to be had without a GPU: that is no mistake of who asked.
    if args.ladder
        && let Err(why) = msda_cuda::driver::Device::open(0)
    {
        let rungs = msda_cuda::kernels::ladder::RUNGS.len();
        let what = format!("the {rungs} rungs of the ladder on {}", options.workloads.join(" and "));
        let why = why.to_string();
        return print(&match args.json {
            true => serde_json::json!({ "measurements": [], "skipped": [{ "what": what, "why": why }] })
                .to_string(),
            false => format!("left out\n  {what}: {why}"),
        });
    }
    // A place that cannot be written is better known now than in two minutes.
    std::fs::create_dir_all(&args.out).with_context(|| format!("making {}", args.out.display()))?;
    let record = bench::run(&options, &mut Bar::new())?;
    let path = args.out.join("record.json");
    record.save(&path)?;
    let records = [record];
    let written = report::write(&records, report::Judge::Never, &args.out)?;
    if args.json {
        return print(&serde_json::to_string_pretty(&records[0])?);
    }
    print(&report::terminal(&records, color()))?;
    eprintln!("record: {}", path.display());
    eprintln!("report: {}", written.html.display());
    Ok(())
}

/// `cpu` means the best instruction set; records name it.
fn best_name(engine: &str) -> String {
    if engine == "cpu" { format!("cpu-{}", msda::Isa::best()) } else { engine.to_owned() }
}
