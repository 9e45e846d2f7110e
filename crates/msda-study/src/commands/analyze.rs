//! `msda-study analyze`

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda::Dtype;
use msda_study::analyze;

use super::{finish, records};
use msda_bench::terminal::{Bar, typed};

#[derive(clap::Args)]
#[command(after_help = "Analyzes the forward pass. Without a GPU: the work of the workload and, with \
                  NVRTC and nvdisasm, the compiled code. Results that cannot be had are listed with \
                  the reason. --ncu and --sweep need a GPU.

Examples:
  msda-study analyze --workload detr-encoder
  msda-study analyze --workload seed --kernel chosen --kernel generic --ncu --out analysis.json
  msda-study analyze --workload seed --ladder
  msda-study analyze --sweep")]
pub(crate) struct Args {
    /// A workload by name, or a path to a .toml file; may be repeated. The seed shape when absent
    #[arg(long, value_name = "NAME", default_value = "seed")]
    workload: Vec<String>,
    /// The value type; the workload's main one when absent. May be repeated
    #[arg(long, value_name = "TYPE")]
    dtype: Vec<Dtype>,
    /// A kernel by name, as `msda kernels` and `msda-study list` show them, or 'chosen'; may be
    /// repeated
    #[arg(long, value_name = "NAME", default_value = analyze::CHOSEN)]
    kernel: Vec<String>,
    /// The chosen kernel and every rung of the ladder
    #[arg(long, conflicts_with = "kernel")]
    ladder: bool,
    /// Read hardware counters with Nsight Compute
    #[arg(long)]
    ncu: bool,
    /// Measure how time grows with batch, queries, points, channels and distance
    #[arg(long)]
    sweep: bool,
    /// A record with ceilings of a GPU, or a folder of records, for a machine without one;
    /// ./records when absent
    #[arg(long, value_name = "FILE|DIR")]
    record: Vec<PathBuf>,
    /// Print the record as JSON instead of text
    #[arg(long)]
    json: bool,
    /// Write the record to this file
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Launch one kernel once, for ncu
    #[arg(long, hide = true)]
    launch: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if args.launch {
        let dtype = args.dtype.first().copied().context("--launch: expected a --dtype")?;
        return analyze::launch(&args.workload[0], dtype, &args.kernel[0]);
    }
    let options = analyze::Options {
        workloads: args.workload,
        dtypes: args.dtype,
        kernels: if args.ladder { analyze::ladder() } else { args.kernel },
        ncu: args.ncu.then(std::env::current_exe).transpose()?,
        sweep: args.sweep,
        records: records(&args.record)?,
        command: typed("msda-study"),
    };
    let record = analyze::run(&options, &mut Bar::default())?;
    let line = |(kernel, sentence): &(String, String)| format!("{kernel}: {sentence}\n");
    let below: String = analyze::conclusions(&record.figures).iter().map(line).collect();
    finish(record, args.out, args.json, &below)
}
