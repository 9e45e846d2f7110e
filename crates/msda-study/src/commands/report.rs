//! `msda-study report`

use std::path::PathBuf;

use anyhow::Result;
use msda_bench::terminal::{self, Printed};
use msda_study::report::Sections;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda-study report records/h200 --out report
  msda-study report ladder/record.json --markdown")]
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
}

pub(crate) fn main(args: Args) -> Result<()> {
    let printed = if args.markdown { Printed::Markdown } else { Printed::Tables };
    terminal::report(&args.records, &[Box::new(Sections)], args.out.as_deref(), printed)
}
