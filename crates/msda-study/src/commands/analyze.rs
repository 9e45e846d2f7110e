//! `msda-study analyze`

use std::path::PathBuf;

use anyhow::Result;
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
    #[command(flatten)]
    options: analyze::Options,
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
        return analyze::launch(&args.options);
    }
    let options = analyze::Options { command: typed("msda-study"), ..args.options };
    let record = analyze::run(&options, &records(&args.record)?, &mut Bar::default())?;
    let line = |(kernel, sentence): &(String, String)| format!("{kernel}: {sentence}\n");
    let below: String = analyze::conclusions(&record.figures).iter().map(line).collect();
    finish(record, args.out, args.json, &below)
}
