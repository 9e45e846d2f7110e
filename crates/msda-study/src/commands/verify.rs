//! `msda-study verify`

use anyhow::{Result, ensure};
use msda_study::verify;

use super::Output;
use msda_bench::terminal::{Bar, typed};

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
    #[command(flatten)]
    output: Output,
}

pub(crate) fn main(args: Args) -> Result<()> {
    args.output.prepare()?;
    let options = verify::Options { command: typed("msda-study"), ..args.options };
    let (record, wrong) = verify::run(&options, &mut Bar::default())?;
    args.output.finish(record)?;
    ensure!(wrong.is_empty(), "the ladder has {} faults\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}
