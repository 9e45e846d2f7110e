//! One file per command.

pub(crate) mod all;
pub(crate) mod analyze;
pub(crate) mod bench;
pub(crate) mod build;
pub(crate) mod claims;
pub(crate) mod list;
pub(crate) mod probe;
pub(crate) mod report;
pub(crate) mod verify;

use std::path::{Path, PathBuf};

use anyhow::Result;
use msda_bench::record::{Record, Source, sources};
use msda_bench::report::terminal as tables;
use msda_bench::terminal::{make_folder, print, screen};

/// The folder of records when none is named.
const RECORDS: &str = "records";

/// The named records, or those of the usual folder.
fn records(named: &[PathBuf]) -> Result<Vec<Source>> {
    match named {
        [] if !Path::new(RECORDS).is_dir() => Ok(Vec::new()),
        [] => sources(&[RECORDS.into()]),
        some => sources(some),
    }
}

/// Where the record of a command goes.
#[derive(clap::Args)]
pub(crate) struct Output {
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Folder for record.json; without it nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

impl Output {
    /// Makes the folder before the work begins.
    fn prepare(&self) -> Result<()> {
        self.out.as_deref().map_or(Ok(()), make_folder)
    }

    fn finish(self, record: Record) -> Result<()> {
        finish(record, self.out.map(|out| out.join("record.json")), self.json, "")
    }
}

/// Saves a record, and prints it as JSON, or as tables and the text below them.
fn finish(record: Record, path: Option<PathBuf>, json: bool, below: &str) -> Result<()> {
    if let Some(path) = path {
        record.save(&path)?;
        eprintln!("record: {}", path.display());
    }
    if json {
        return print(&serde_json::to_string_pretty(&record)?);
    }
    print(&(tables(&[record], screen()) + below))
}
