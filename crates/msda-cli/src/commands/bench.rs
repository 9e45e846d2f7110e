//! `msda bench`

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use msda::Dtype;
use msda_bench::engines::Plain;
use msda_bench::record::{Device, Record};
use msda_bench::workload::Workload;
use msda_bench::{bench, report};

use super::{DeviceArg, PassArg, dtype, make_folder, typed};
use crate::extensions::{Sections, registry};
use crate::terminal::{Bar, print, screen};

#[derive(clap::Args)]
#[command(after_help = "\
Every engine is checked against an exact implementation before it is timed.
The engine `plain`, a scalar loop without tricks, is always measured beside the
others. torch and the GPU are measured where they are installed. An engine in
Python that gives no answer for 300 s is left out; MSDA_PYTHON_TIMEOUT sets this
time.

Examples:
  msda bench --quick
  msda bench --workload detr-encoder --dtype f16 --device cuda")]
pub(crate) struct Args {
    /// Two small workloads and fewer runs; takes a few seconds
    #[arg(long)]
    quick: bool,
    /// A workload, a path to a .toml file, or 'all'; may be repeated
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// A value type; may be repeated. All types of the workload when absent
    #[arg(long, value_name = "TYPE", value_parser = dtype())]
    dtype: Vec<Dtype>,
    /// An engine: cpu, cpu-ISA, plain, cuda, cuda:KERNEL, cuda@GPU, torch, torch-cuda, oracle or
    /// peer:NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    engine: Vec<String>,
    /// The device to measure on
    #[arg(long, value_enum, default_value = "all")]
    device: DeviceArg,
    /// The pass to measure
    #[arg(long, value_enum, default_value = "both")]
    pass: PassArg,
    /// Number of threads; may be repeated. One per core when absent
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Vec<u16>,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// The folder for record.json, report.html and report.md
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let registry = registry();
    for name in &args.engine {
        registry.check(name)?;
    }
    for name in args.workload.iter().filter(|name| *name != "all") {
        Workload::find(name)?;
    }
    let options = bench::Options {
        workloads: args.workload,
        engines: with_baseline(args.engine, args.device),
        dtypes: args.dtype,
        device: args.device.only(),
        pass: args.pass.only(),
        threads: args.threads.into_iter().map(usize::from).collect(),
        quick: args.quick,
        command: typed(std::env::args().skip(1)),
    };
    make_folder(&args.out)?;
    let record = bench::run(&options, &registry, &mut Bar::new())?;
    finish(record, &args.out, args.json)
}

/// The engines by the names that records have, with the plain loop beside engines of the CPU.
fn with_baseline(engines: Vec<String>, device: DeviceArg) -> Vec<String> {
    let best = format!("cpu-{}", msda::Isa::best());
    let mut names: Vec<String> =
        engines.into_iter().map(|name| if name == "cpu" { best.clone() } else { name }).collect();
    let on_cpu = |name: &String| name.starts_with("cpu-") || name == "torch";
    let is_plain = |name: &String| name == Plain::NAME;
    if device.includes(Device::Cpu) && names.iter().any(on_cpu) && !names.iter().any(is_plain) {
        names.push(Plain::NAME.into());
    }
    names
}

/// Writes the record and its report into a folder, and prints the record or its tables.
pub(crate) fn finish(record: Record, out: &Path, json: bool) -> Result<()> {
    let path = out.join("record.json");
    if let Some(kept) = keep_old(&path)? {
        eprintln!("note: the record of the last run is now {}", kept.display());
    }
    record.save(&path)?;
    let records = [record];
    let written = report::write(&records, &Sections::of_bench().extensions(), out)?;
    if json {
        return print(&serde_json::to_string_pretty(&records[0])?);
    }
    let screen = screen();
    print(&screen.tables(&records))?;
    let mut sentences = report::summary(&records).split_off(1);
    sentences.push(format!("Report: {}. Record: {}.", written.html.display(), path.display()));
    sentences.extend(report::advice(&records[0]));
    let wrapped: String = sentences.iter().map(|text| report::wrap(text, screen.width, 0)).collect();
    print(&format!("\n{wrapped}"))
}

/// Renames the record of an earlier run after its date, so that it is not overwritten.
fn keep_old(path: &Path) -> Result<Option<PathBuf>> {
    if !path.exists() {
        return Ok(None);
    }
    let date = Record::load(path).map_or("old".into(), |record| record.created.replace(':', "-"));
    let name =
        |n: usize| if n == 1 { format!("record-{date}.json") } else { format!("record-{date}-{n}.json") };
    let free = (1..).map(|n| path.with_file_name(name(n))).find(|path| !path.exists());
    let to = free.context("no free name for the old record")?;
    std::fs::rename(path, &to).with_context(|| format!("renaming {} to {}", path.display(), to.display()))?;
    Ok(Some(to))
}
