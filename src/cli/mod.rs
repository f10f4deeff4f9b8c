//! The commands of the `serin` binary, one file each.

mod canaries;
mod cluster;
mod command;
mod connect;
pub mod crds;
#[cfg(feature = "demo")]
mod demo;
pub mod inventory;
#[cfg(feature = "demo")]
mod local;
mod mesh;
mod paint;
mod run;
mod tenancy;
mod wakeup_throttle;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::engine::command::Verb;

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
    Run(Box<run::Args>),
    /// Print the custom resource definitions, for `kubectl apply -f -`
    Crds(crds::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    /// Serve a Kubernetes API from this process, for kubectl and for experiments:
    /// no cluster, nothing to install
    #[cfg(feature = "demo")]
    Local(local::Args),
    Get(canaries::get::Args),
    Status(canaries::status::Args),
    History(canaries::history::Args),
    Wait(canaries::wait::Args),
    Inventory(inventory::Args),
    Mesh(mesh::Args),
    /// Approve the gate or approval step that a release waits for
    Approve(command::ApproveArgs),
    /// Reject the approval step that a release waits for; it is rolled back
    Reject(command::RejectArgs),
    /// Skip the remaining steps of a release and promote it now
    Promote(command::CommandArgs),
    /// End a release and roll it back
    Abort(command::CommandArgs),
    /// Pause a release at its current step; checks go on
    Pause(command::CommandArgs),
    /// End a pause
    Resume(command::CommandArgs),
    /// Release again the revision that was rolled back
    Retry(command::CommandArgs),
    /// Roll back the promoted revision at once, while the previous one is still
    /// kept running
    Rollback(command::CommandArgs),
}

/// Parses the command line, runs the command, and turns its error into one
/// line on stderr and an exit code.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    log_to_stderr(match command {
        Command::Run(_) => "info",
        // The demo draws failures itself.
        #[cfg(feature = "demo")]
        Command::Demo(_) => "off",
        _ => "warn",
    });
    let outcome = match command {
        Command::Run(args) => run::run(*args),
        Command::Crds(args) => crds::run(args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "demo")]
        Command::Local(args) => local::run(args),
        Command::Get(args) => canaries::get::run(args),
        Command::Status(args) => canaries::status::run(args),
        Command::History(args) => canaries::history::run(args),
        Command::Wait(args) => match canaries::wait::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Inventory(args) => inventory::run(args),
        Command::Mesh(args) => mesh::run(args),
        Command::Approve(args) => command::approve(args),
        Command::Reject(args) => command::reject(args),
        Command::Promote(args) => command::command(Verb::Promote, args),
        Command::Abort(args) => command::command(Verb::Abort, args),
        Command::Pause(args) => command::command(Verb::Pause, args),
        Command::Resume(args) => command::command(Verb::Resume, args),
        Command::Retry(args) => command::command(Verb::Retry, args),
        Command::Rollback(args) => command::command(Verb::Rollback, args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("serin: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Filtered by `SERIN_LOG`, else by the default of the command; one JSON object for each
/// line if `SERIN_LOG_FORMAT` is `json`.
fn log_to_stderr(default: &str) {
    let log = tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::try_from_env("SERIN_LOG").unwrap_or_else(|_| EnvFilter::new(default)))
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match std::env::var("SERIN_LOG_FORMAT").as_deref() {
        Ok("json") => log.json().init(),
        _ => log.init(),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Runtime::new().context("start the async runtime")
}

/// Only on a terminal, and unless the user forbids it.
fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
