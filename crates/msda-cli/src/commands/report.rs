//! `msda report`

use std::path::PathBuf;

use anyhow::Result;
use msda_lab::record::Record;
use msda_lab::report;

use crate::terminal::{color, print};

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Records that `msda bench` wrote
    #[arg(required = true, value_name = "RECORD")]
    records: Vec<PathBuf>,
    /// Folder for report.html and report.md; without it the table is printed and nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print Markdown instead of a table
    #[arg(long)]
    markdown: bool,
    /// Print the records as one JSON list instead of a table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let records = args.records.iter().map(|path| Record::load(path)).collect::<Result<Vec<_>>>()?;
    if let Some(out) = &args.out {
        let written = report::write(&records, out)?;
        eprintln!("report: {}", written.html.display());
    }
    if args.json {
        print(&serde_json::to_string_pretty(&records)?)
    } else if args.markdown {
        print(&report::markdown(&records))
    } else {
        print(&report::terminal(&records, color()))
    }
}
