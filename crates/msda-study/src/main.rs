//! The `msda-study` command.
//!
//! Data goes to standard output; progress, notes and errors go to standard error.
#![forbid(unsafe_code)]

mod commands;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use msda_bench::terminal;

/// The founding documents: their strategies, experiments and claims
#[derive(Parser)]
#[command(name = "msda-study", version, max_term_width = terminal::WIDTH)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List the strategies of the documents, the rungs of the ladder
    List(commands::list::Args),
    /// Compile rungs for an architecture, without a GPU
    Build(commands::build::Args),
    /// Verify, time and probe everything, and write one record
    All(commands::all::Args),
    /// Check every rung against the oracle
    Verify(commands::verify::Args),
    /// Time every rung beside the chosen kernel
    Bench(commands::bench::Args),
    /// Measure limits of the machine, and repeat the documents' experiments
    Probe(commands::probe::Args),
    /// Judge every figure of the documents by records, or write them into docs/STUDY.md
    Claims(commands::claims::Args),
    /// Say what bounds a kernel: bytes, operations, instructions, counters
    Analyze(commands::analyze::Args),
    /// Make a report from records, with sections about the ladder and the probes
    Report(commands::report::Args),
}

fn main() -> ExitCode {
    terminal::exit_code(match Cli::parse().command {
        Command::List(args) => commands::list::main(args),
        Command::Build(args) => commands::build::main(args),
        Command::All(args) => commands::all::main(args),
        Command::Verify(args) => commands::verify::main(args),
        Command::Bench(args) => commands::bench::main(args),
        Command::Probe(args) => commands::probe::main(args),
        Command::Claims(args) => commands::claims::main(args),
        Command::Analyze(args) => commands::analyze::main(args),
        Command::Report(args) => commands::report::main(args),
    })
}
