//! `msda-study bench`

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda::Dtype;
use msda_bench::bench;
use msda_bench::record::Pass;
use msda_bench::workload::Workload;
use msda_cuda::driver::Device;
use msda_study::engines;

use msda_bench::terminal::{Bar, finish, make_folder, typed};
use msda_study::report::Sections;

/// The workloads of the ladder: the documents' shape, with samples near their query and anywhere.
pub(super) const WORKLOADS: [&str; 2] = ["seed", "seed-ring-uniform"];

/// What is timed: the forward pass of rungs beside the chosen kernel.
pub(super) fn options(
    workloads: Vec<String>,
    rungs: &[String],
    dtypes: Vec<Dtype>,
    quick: bool,
) -> Result<bench::Options> {
    let (engines, pass, command) = (engines::names(rungs)?, Some(Pass::Forward), typed("msda-study"));
    Ok(bench::Options { workloads, engines, dtypes, pass, quick, command, ..bench::Options::default() })
}

#[derive(clap::Args)]
#[command(after_help = "Times the forward pass of rungs of the ladder beside the chosen kernel. Needs a GPU.

Examples:
  msda-study bench --out ladder
  msda-study bench --quick --workload detr-encoder --dtype f16 --rung base")]
pub(crate) struct Args {
    /// Fewer runs
    #[arg(long)]
    quick: bool,
    /// A workload by name, or a path to a .toml file; may be repeated. The seed shape when absent
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,
    /// The value type; may be repeated
    #[arg(long, value_name = "TYPE", default_value = "f16")]
    dtype: Vec<Dtype>,
    /// A rung by name, as `msda-study list` shows them; may be repeated. All when absent
    #[arg(long, value_name = "NAME")]
    rung: Vec<String>,
    /// Print the record as JSON instead of a table
    #[arg(long)]
    json: bool,
    /// Folder for record.json, report.html and report.md
    #[arg(long, value_name = "DIR", default_value = "report")]
    out: PathBuf,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let workloads = match args.workload.as_slice() {
        [] => WORKLOADS.map(String::from).into(),
        some => some.to_vec(),
    };
    let options = options(workloads, &args.rung, args.dtype, args.quick)?;
    for name in &options.workloads {
        Workload::find(name)?;
    }
    Device::open(0).context("nothing was measured: the ladder needs a GPU")?;
    make_folder(&args.out)?;
    let record = bench::run(&options, &engines::registry(), &mut Bar::default())?;
    finish(record, &[Box::new(Sections)], &args.out, args.json)
}
