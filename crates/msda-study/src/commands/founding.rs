//! `msda-study founding`

use std::path::PathBuf;

use anyhow::{Context, Result};
use msda_study::founding::{Form, Founding, documents, page};

use super::records;
use msda_bench::terminal::print;

#[derive(clap::Args)]
#[command(
    after_help = "Prints what each document recommends and whether it holds, each of its figures beside ours, its \
    contradictions and its future work. Records are read from ./records unless --record names others.

Examples:
  msda-study founding
  msda-study founding --docs docs"
)]
pub(crate) struct Args {
    /// A record, or a folder of records; may be repeated
    #[arg(long, value_name = "FILE|DIR")]
    record: Vec<PathBuf>,
    /// Write FOUNDING.md into this folder, and the generated parts of its STUDY.md, instead of
    /// printing
    #[arg(long, value_name = "DIR")]
    docs: Option<PathBuf>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    let founding = Founding::of(records(&args.record)?)?;
    let Some(folder) = args.docs else { return print(&page(&founding, Form::Terminal)) };
    for (path, text) in documents(&founding, &folder)? {
        std::fs::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
        eprintln!("wrote {}", path.display());
    }
    Ok(())
}
