//! The `msda` command.
//!
//! `commands` has one file per command. Data goes to standard output; progress, notes and errors go
//! to standard error.
#![forbid(unsafe_code)]

mod commands;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use msda_bench::{parallel, terminal};

/// Multi-scale deformable attention: run it on files, verify it, measure it
#[derive(Parser)]
#[command(name = "msda", version = VERSION, max_term_width = terminal::WIDTH, after_help = AFTER)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// The version and the commit of this build.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (commit ", env!("MSDA_COMMIT"), ")");

const AFTER: &str = "\
Start here:  msda doctor, then msda bench --quick
Threads:     one per core, or as many as MSDA_NUM_THREADS says
Exit codes:  0 done, 1 failed or nothing could be done, 2 wrong command line";

#[derive(Subcommand)]
enum Command {
    /// Show what this machine has, what is missing and how to install it
    Doctor(commands::doctor::Args),
    /// Compute the operator on tensors from files
    Run(commands::run::Args),
    /// Check results against a slow, exact implementation
    Verify(commands::verify::Args),
    /// Measure how fast it is, compared with portable code and torch
    Bench(commands::bench::Args),
    /// Find the fastest GPU kernel for a problem and remember it
    Tune(commands::tune::Args),
    /// List the GPU kernels, or show which one a problem uses
    Kernels(commands::kernels::Args),
    /// Compile GPU kernels ahead; list or delete the compiled ones
    Cache(commands::cache::Args),
    /// Make a report from the records of earlier runs
    Report(commands::report::Args),
}

/// Lets options take negative numbers, so that the message about one says the range.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let allowed = |arg: clap::Arg| {
        let takes_values = arg.get_action().takes_values();
        arg.allow_negative_numbers(takes_values)
    };
    command.mut_args(allowed).mut_subcommands(with_negative_numbers)
}

fn main() -> ExitCode {
    let matches = with_negative_numbers(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    terminal::exit_code(parallel::set_threads().and_then(|()| run(cli.command)))
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Doctor(args) => commands::doctor::main(args),
        Command::Run(args) => commands::run::main(args),
        Command::Verify(args) => commands::verify::main(args),
        Command::Bench(args) => commands::bench::main(args),
        Command::Tune(args) => commands::tune::main(args),
        Command::Kernels(args) => commands::kernels::main(args),
        Command::Cache(args) => commands::cache::main(args),
        Command::Report(args) => commands::report::main(args),
    }
}
