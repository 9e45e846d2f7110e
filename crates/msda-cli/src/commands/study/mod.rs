//! `msda study`: the commands about the founding documents.

mod analyze;
mod bench;
mod claims;
mod founding;
mod list;
mod probe;
mod verify;

use anyhow::Result;

#[derive(clap::Args)]
#[command(about = "The founding documents: their strategies, experiments and claims")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// List the strategies of the documents, the rungs of the ladder
    List(list::Args),
    /// Check every rung against the oracle
    Verify(verify::Args),
    /// Time every rung beside the chosen kernel
    Bench(bench::Args),
    /// Measure limits of the machine, and repeat the documents' experiments
    Probe(probe::Args),
    /// Judge every figure of the documents by records
    Claims(claims::Args),
    /// Print the answer to the documents, or write docs/FOUNDING.md from records
    Founding(founding::Args),
    /// Say what bounds a kernel: bytes, operations, wavefronts, instructions, counters
    Analyze(analyze::Args),
}

pub(crate) fn main(args: Args) -> Result<()> {
    match args.command {
        Command::List(args) => list::main(args),
        Command::Verify(args) => verify::main(args),
        Command::Bench(args) => bench::main(args),
        Command::Probe(args) => probe::main(args),
        Command::Claims(args) => claims::main(args),
        Command::Founding(args) => founding::main(args),
        Command::Analyze(args) => analyze::main(args),
    }
}
