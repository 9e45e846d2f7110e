//! `msda-study report`

use std::path::PathBuf;

use anyhow::Result;
use msda_bench::terminal::{self, Printed};
use msda_study::report::{Judge, Sections};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda-study report records/h200 --out report
  msda-study report ladder/record.json --markdown --claims never")]
pub(crate) struct Args {
    /// Records, or folders of records
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Write report.html and report.md into this folder, and print a summary. Without it, tables
    /// are printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Whether the report judges the claims of the founding documents
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    claims: Judge,
    /// Print Markdown instead of tables
    #[arg(long)]
    markdown: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let sections = Sections { claims: args.claims };
    let printed = if args.markdown { Printed::Markdown } else { Printed::Tables };
    terminal::report(&args.records, &[Box::new(sections)], args.out.as_deref(), printed)
}
