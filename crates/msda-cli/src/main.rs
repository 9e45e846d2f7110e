//! The `msda` command.
//!
//! Data goes to standard output; progress, notes and errors go to standard error.
#![forbid(unsafe_code)]

mod commands;
mod extensions;
mod moved;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Multi-scale deformable attention: run it on files, verify it, measure it.
#[derive(Parser)]
#[command(name = "msda", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 something is wrong (a check failed, an input was refused, \
    nothing could be done); 2 the command line could not be understood";

#[derive(Subcommand)]
enum Command {
    /// Show what this machine has, what is missing, and how to get it
    Doctor(commands::doctor::Args),
    /// Compute the operator on tensors from files
    Run(commands::run::Args),
    /// Check results against the oracle
    Verify(commands::verify::Args),
    /// Check and time engines on workloads, and write a report
    Bench(commands::bench::Args),
    #[cfg(feature = "cuda")]
    /// Time the GPU kernels for a problem, and keep the fastest
    Tune(commands::tune::Args),
    #[cfg(feature = "cuda")]
    /// List the GPU kernels, or say which one a problem gets
    Kernels(commands::kernels::Args),
    #[cfg(feature = "cuda")]
    /// Show or clear the folder of compiled GPU kernels
    Cache(commands::cache::Args),
    /// Make a report from records
    Report(commands::report::Args),
    #[cfg(feature = "study")]
    /// Founding documents: list, verify, bench, probe, claims, analyze
    Study(commands::study::Args),
}

fn main() -> ExitCode {
    let cli = Cli::try_parse().unwrap_or_else(|error| moved::exit(&error));
    let result = match cli.command {
        Command::Doctor(args) => commands::doctor::main(args),
        Command::Run(args) => commands::run::main(args),
        Command::Verify(args) => commands::verify::main(args),
        Command::Bench(args) => commands::bench::main(args),
        #[cfg(feature = "cuda")]
        Command::Tune(args) => commands::tune::main(args),
        #[cfg(feature = "cuda")]
        Command::Kernels(args) => commands::kernels::main(args),
        #[cfg(feature = "cuda")]
        Command::Cache(args) => commands::cache::main(args),
        Command::Report(args) => commands::report::main(args),
        #[cfg(feature = "study")]
        Command::Study(args) => commands::study::main(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if terminal::is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
