//! `msda-study probe`

use anyhow::Result;
use msda_study::probes;

use super::Output;
use msda_bench::terminal::{Bar, print, typed};

#[derive(clap::Args)]
#[command(
    after_help = "The result of each probe is checked before it is timed. Without a GPU only the probe of the CPU runs."
)]
pub(crate) struct Args {
    #[command(flatten)]
    options: probes::Options,
    #[command(flatten)]
    output: Output,
    /// Run clusters of this shape without their last barrier, in the process of their own that the
    /// probe starts
    #[arg(long, hide = true, value_name = "CxB")]
    unguarded: Option<String>,
}

pub(crate) fn main(args: Args) -> Result<()> {
    if let Some(shape) = &args.unguarded {
        return print(&format!("{}\n", probes::run_unguarded(shape)?));
    }
    args.output.prepare()?;
    let program = Some(std::env::current_exe()?);
    let options = probes::Options { command: typed("msda-study"), program, ..args.options };
    args.output.finish(probes::run(&options, &mut Bar::default())?)
}
