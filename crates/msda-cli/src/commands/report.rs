//! `msda report`

use std::path::PathBuf;

use anyhow::Result;
use msda_bench::terminal::{self, Printed};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda report records --out report
  msda report records/h200 --out report
  msda report report/record.json --markdown
  msda report report/record.json --picture times.svg")]
pub(crate) struct Args {
    /// Records, or folders of records
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Write report.html and report.md into this folder, and print a summary. Without it, tables
    /// are printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Draw the comparisons with other implementations into this SVG file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["out", "markdown", "json"])]
    picture: Option<PathBuf>,
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
    match args.picture {
        Some(path) => terminal::picture(&args.records, &path),
        None => terminal::report(&args.records, &[], args.out.as_deref(), printed),
    }
}
