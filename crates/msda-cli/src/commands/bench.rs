//! `msda bench`

use std::path::{Path, PathBuf};

use anyhow::Result;
use msda::Dtype;
use msda_bench::record::Record;
use msda_bench::workload::Workload;
use msda_bench::{bench, report};

use super::{DeviceArg, make_folder, typed};
use crate::extensions::{Sections, registry};
use crate::terminal::{Bar, color, print};

#[derive(clap::Args)]
#[command(after_help = "Without options: the usual workloads on all cores, in less than two minutes. \
    `--workload all` runs every workload and takes much longer.

Examples:
  msda bench --quick
  msda bench --workload detr-encoder --dtype f16 --device cuda")]
pub(crate) struct Args {
    /// Fewer workloads and fewer runs: a few seconds
    #[arg(long)]
    quick: bool,
    /// A workload by name, 'all', or a path to a .toml file; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// A value type that the workload has: f32, f16, bf16 or f64; all when absent. May be repeated
    #[arg(long, value_name = "TYPE")]
    dtype: Vec<Dtype>,
    /// An engine by name: cpu, cpu-avx512, cpu-avx2, cpu-neon, cpu-portable, cuda, cuda:half,
    /// cuda:fixed, cuda:KERNEL, cuda@N for another GPU, torch, torch-cuda, oracle, or peer:NAME
    /// from engines.toml; may be repeated
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// Where to measure
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

pub(crate) fn main(args: Args) -> Result<()> {
    let options = bench::Options {
        workloads: args.workload,
        engines: args.engine.into_iter().map(|e| best_name(&e)).collect(),
        dtypes: args.dtype,
        device: args.device.only(),
        threads: args.threads.into_iter().map(usize::from).collect(),
        quick: args.quick,
        command: typed(std::env::args().skip(1)),
    };
    for name in options.workloads.iter().filter(|name| *name != "all") {
        Workload::find(name)?;
    }
    make_folder(&args.out)?;
    let record = bench::run(&options, &registry(), &mut Bar::new())?;
    finish(record, &args.out, args.json)
}

/// Writes the record and its report into a folder, and prints the record or its tables.
pub(crate) fn finish(record: Record, out: &Path, json: bool) -> Result<()> {
    let path = out.join("record.json");
    record.save(&path)?;
    let records = [record];
    let written = report::write(&records, &Sections::of_bench().extensions(), out)?;
    if json {
        return print(&serde_json::to_string_pretty(&records[0])?);
    }
    print(&report::terminal(&records, color()))?;
    eprintln!("record: {}", path.display());
    eprintln!("report: {}", written.html.display());
    Ok(())
}

/// `cpu` is the best instruction set, which records name.
fn best_name(engine: &str) -> String {
    if engine == "cpu" { format!("cpu-{}", msda::Isa::best()) } else { engine.to_owned() }
}
