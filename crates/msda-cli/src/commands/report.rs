//! `msda report`

use std::path::PathBuf;

use anyhow::{Result, bail};
use msda_bench::facts;
use msda_bench::record::Record;
use msda_bench::report::{self, Judge};

use crate::terminal::{color, print};

#[derive(clap::Args)]
#[command(after_help = "Examples:
  msda report records --out report
  msda report records/h200 probes/record.json analysis.json --out report
  msda report report/record.json --markdown --claims never")]
pub(crate) struct Args {
    /// Records that bench, probe or analyze wrote, or folders of such
    #[arg(required = true, value_name = "RECORD|DIR")]
    records: Vec<PathBuf>,
    /// Folder for report.html and report.md; without it the table is printed and nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Whether the report judges the claims of the documents
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    claims: When,
    /// Print Markdown instead of a table
    #[arg(long)]
    markdown: bool,
    /// Print the records as one JSON list instead of a table
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum When {
    /// Where a record is of a GPU
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

impl From<When> for Judge {
    fn from(when: When) -> Self {
        match when {
            When::Auto => Self::Gpu,
            When::Always => Self::Always,
            When::Never => Self::Never,
        }
    }
}

pub(crate) fn main(args: Args) -> Result<()> {
    let records: Vec<Record> = facts::sources(&args.records)?.into_iter().map(|s| s.record).collect();
    if records.is_empty() {
        let places: Vec<String> = args.records.iter().map(|p| p.display().to_string()).collect();
        bail!("report: got no JSON file in {}, expected a record", places.join(", "));
    }
    let claims = args.claims.into();
    if let Some(out) = &args.out {
        let written = report::write(&records, claims, out)?;
        eprintln!("report: {}", written.html.display());
    }
    if args.json {
        print(&serde_json::to_string_pretty(&records)?)
    } else if args.markdown {
        print(&report::markdown(&records, claims)?)
    } else {
        print(&report::terminal(&records, color()))
    }
}
