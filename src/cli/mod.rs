//! The commands of the `serin` binary, one file each.

pub mod crds;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Progressive delivery for Kubernetes: every new revision released step by
/// step, judged by its metrics, promoted or rolled back.
#[derive(Parser)]
#[command(name = "serin", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the custom resource definitions, for `kubectl apply -f -`
    Crds(crds::Args),
}

/// Parses the command line, runs the command, and turns its error into one
/// line on stderr and an exit code.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Crds(args) => crds::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serin: {error:#}");
            ExitCode::FAILURE
        }
    }
}
