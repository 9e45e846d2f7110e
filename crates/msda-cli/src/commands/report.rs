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
    /// Write report.html and report.md into this folder, and print a summary. Without it, tables
    /// are printed
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    #[command(flatten)]
    sections: Sections,
    /// Print Markdown instead of tables
    #[arg(long)]
    markdown: bool,
    /// Print the records as one JSON list instead of tables
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
    let written = args.out.as_ref().map(|out| report::write(&records, &extensions, out)).transpose()?;
    if args.json {
        return print(&serde_json::to_string_pretty(&records)?);
    }
    if args.markdown {
        return print(&report::markdown(&records, &extensions)?);
    }
    let Some(written) = written else { return print(&report::terminal(&records, color())) };
    let mut lines = report::summary(&records);
    lines.truncate(SUMMARY);
    lines.extend([written.html.display().to_string(), written.markdown.display().to_string()]);
    print(&lines.join("\n"))
}

/// The largest number of lines before the paths.
const SUMMARY: usize = 8;
