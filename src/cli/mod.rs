//! The commands of the `serin` binary, one file each.

pub mod crds;
mod demo;
mod local;

use std::process::ExitCode;

use anyhow::Context as _;
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
    Demo(demo::Args),
    /// Serve a Kubernetes API from this process, for kubectl and for trying
    /// things out: no cluster, nothing to install
    Local(local::Args),
}

/// Parses the command line, runs the command, and turns its error into one
/// line on stderr and an exit code.
pub fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Crds(args) => crds::run(args),
        Command::Demo(args) => demo::run(args),
        Command::Local(args) => local::run(args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Runtime::new().context("start the async runtime")
}
