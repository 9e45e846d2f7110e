//! `msda-study verify`

use std::path::PathBuf;

use anyhow::{Result, ensure};
use msda_study::verify;

use super::finish;
use msda_bench::terminal::{Bar, make_folder, typed};

#[derive(clap::Args)]
#[command(
    after_help = "Every rung that is held to the tolerance runs the battery. Of every rung, each number of the \
    output of the seed shape is compared with the oracle.

Examples:
  msda-study verify
  msda-study verify --full --out verified
  msda-study verify --workload detr-encoder --group borders"
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: verify::Options,
    /// Folder for record.json; without it nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if let Some(out) = &args.out {
        make_folder(out)?;
    }
    let options = verify::Options { command: typed("msda-study"), ..args.options };
    let (record, wrong) = verify::run(&options, &mut Bar::default())?;
    finish(record, args.out.map(|out| out.join("record.json")), args.json, "")?;
    ensure!(wrong.is_empty(), "the ladder has {} faults\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
