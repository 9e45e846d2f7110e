//! `msda report`

use std::path::PathBuf;

use anyhow::Result;
use msda_bench::terminal::{self, Printed};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda report records --out report
  msda report records/h200 --out report
  msda report report/record.json --markdown")]
pub(crate) struct Args {
    /// Records, or folders of records
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Write report.html and report.md into this folder, and print a summary. Without it, tables
    /// are printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print Markdown instead of tables
    #[arg(long)]
    markdown: bool,
    /// Print the records as one JSON list instead of tables
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let printed = match (args.json, args.markdown) {
        (true, _) => Printed::Json,
        (_, true) => Printed::Markdown,
        _ => Printed::Tables,
    };
    terminal::report(&args.records, &[], args.out.as_deref(), printed)
}
