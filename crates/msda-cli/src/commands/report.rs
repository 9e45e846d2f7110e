//! `msda report`

use std::path::PathBuf;

use anyhow::{Result, bail};
use msda_bench::record::{Record, sources};
use msda_bench::report;

use crate::extensions::Sections;
use crate::terminal::{color, print};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda report records --out report
  msda report records/h200 --out report
  msda report report/record.json --markdown")]
pub(crate) struct Args {
    /// Records, or folders of records
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Folder for report.html and report.md; without it the table is printed and nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sections: Sections,
    /// Print Markdown instead of a table
    #[arg(long)]
    markdown: bool,
    /// Print the records as one JSON list instead of a table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let records: Vec<Record> = sources(&args.records)?.into_iter().map(|s| s.record).collect();
    if records.is_empty() {
        let places: Vec<String> = args.records.iter().map(|p| p.display().to_string()).collect();
        bail!("report: got no JSON file in {}, expected a record", places.join(", "));
    }
    let extensions = args.sections.extensions();
    if let Some(out) = &args.out {
        let written = report::write(&records, &extensions, out)?;
        eprintln!("report: {}", written.html.display());
    }
    if args.json {
        print(&serde_json::to_string_pretty(&records)?)
    } else if args.markdown {
        print(&report::markdown(&records, &extensions)?)
    } else {
        print(&report::terminal(&records, color()))
    }
}
