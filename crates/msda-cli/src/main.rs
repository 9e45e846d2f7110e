//! The `msda` command.
//!
//! Data goes to standard output; progress, notes and errors go to standard error.
#![forbid(unsafe_code)]

mod commands;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Multi-scale deformable attention: check this machine, run the op on files, verify it, measure it.
#[derive(Parser)]
#[command(name = "msda", version, after_help = EXIT_CODES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done; 1 something is wrong (a check failed, an input was refused, \
    a file could not be read or written); 2 the command line could not be understood";

#[derive(Subcommand)]
enum Command {
    /// Say what this machine has, what is missing, and what to do about it
    Doctor(commands::doctor::Args),
    /// Compute the op on tensors from files
    Run(commands::run::Args),
    /// Run the conformance battery
    Verify(commands::verify::Args),
    /// Verify and measure on this machine, and write a report
    Bench(commands::bench::Args),
    /// List the GPU kernels, what each takes, and which one a problem gets
    Kernels(commands::kernels::Args),
    /// Time the GPU kernels that take a problem, and keep the fastest for problems like it
    Tune(commands::tune::Args),
    /// Measure what this machine can do at best, and the experiments of the documents
    Probe(commands::probe::Args),
    /// Show or clear the folder of compiled GPU kernels
    Cache(commands::cache::Args),
    /// Say why a kernel is as fast as it is: bytes, operations, wavefronts, instructions, counters
    Analyze(commands::analyze::Args),
    /// Hold every figure of the documents that the project started from against records
    Claims(commands::claims::Args),
    /// Make a report from records
    Report(commands::report::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Doctor(args) => commands::doctor::main(args),
        Command::Run(args) => commands::run::main(args),
        Command::Verify(args) => commands::verify::main(args),
        Command::Bench(args) => commands::bench::main(args),
        Command::Kernels(args) => commands::kernels::main(args),
        Command::Tune(args) => commands::tune::main(args),
        Command::Probe(args) => commands::probe::main(args),
        Command::Cache(args) => commands::cache::main(args),
        Command::Analyze(args) => commands::analyze::main(args),
        Command::Claims(args) => commands::claims::main(args),
        Command::Report(args) => commands::report::main(args),
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
