//! `msda bench`

use std::path::PathBuf;

use anyhow::Result;
use msda::Dtype;
use msda_bench::bench;
use msda_bench::engines::{Plain, Registry};
use msda_bench::record::Device;
use msda_bench::terminal::{Bar, finish, make_folder, typed};
use msda_bench::workload::Workload;

use super::{DeviceArg, PassArg, dtype};

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
    let registry = Registry::default();
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
        command: typed("msda"),
    };
    make_folder(&args.out)?;
    let record = bench::run(&options, &registry, &mut Bar::default())?;
    finish(record, &[], &args.out, args.json)
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
