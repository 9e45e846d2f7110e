//! `msda-study probe`

use std::path::PathBuf;

use anyhow::Result;
use msda_study::probes;

use super::finish;
use msda_bench::terminal::{Bar, make_folder, print, typed};

#[derive(clap::Args)]
#[command(
    after_help = "The result of each probe is checked before it is timed. Without a GPU only the probe of the CPU runs."
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: probes::Options,
    /// Print the record as JSON instead of tables
    #[arg(long)]
    json: bool,
    /// Folder for record.json; without it nothing is written
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Run clusters of this shape without their last barrier, in the process of their own that the
    /// probe starts
    #[arg(long, hide = true, value_name = "CxB")]
    unguarded: Option<String>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if let Some(shape) = &args.unguarded {
        return print(&format!("{}\n", probes::run_unguarded(shape)?));
    }
    if let Some(out) = &args.out {
        make_folder(out)?;
    }
    let program = Some(std::env::current_exe()?);
    let options = probes::Options { command: typed("msda-study"), program, ..args.options };
    let record = probes::run(&options, &mut Bar::default())?;
    finish(record, args.out.map(|out| out.join("record.json")), args.json, "")
}
