//! The commands of the `serin` binary, one file each.

mod canaries;
mod chat;
mod cluster;
mod command;
mod connect;
pub mod crds;
mod dashboard;
#[cfg(feature = "demo")]
mod demo;
pub mod inventory;
mod keys;
#[cfg(feature = "lint")]
mod lint;
#[cfg(feature = "demo")]
mod local;
mod mesh;
mod migrate;
mod oidc;
mod paint;
mod reference;
mod run;
mod shell;
mod simulate;
mod smi_metrics;
#[cfg(feature = "standalone")]
mod standalone;
mod tenancy;
mod version;
mod wakeup_throttle;
#[cfg(feature = "xds")]
mod xds;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use crate::engine::command::Verb;
use crate::error_chain::error_chain;

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
    #[cfg(feature = "standalone")]
    Standalone(Box<standalone::Args>),
    /// Print the custom resource definitions, for `kubectl apply -f -`
    Crds(crds::Args),
    #[cfg(feature = "demo")]
    Demo(demo::Args),
    #[cfg(feature = "demo")]
    Local(local::Args),
    Get(canaries::get::Args),
    Status(canaries::status::Args),
    History(canaries::history::Args),
    Events(canaries::events::Args),
    Logs(canaries::logs::Args),
    Wait(canaries::wait::Args),
    Inventory(inventory::Args),
    Dashboard(dashboard::Args),
    #[cfg(feature = "lint")]
    Lint(lint::Args),
    Mesh(mesh::Args),
    Migrate(migrate::Args),
    Version(version::Args),
    Simulate(Box<simulate::Args>),
    #[command(hide = true)]
    Reference(reference::Args),
    #[cfg(feature = "xds")]
    Xds(xds::Args),
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
    #[command(visible_alias = "undo")]
    Rollback(command::CommandArgs),
    Completion(shell::CompletionArgs),
    Man(shell::ManArgs),
}

/// Parses the command line, runs the command, and turns its error into one
/// line on stderr and an exit code.
pub fn main() -> ExitCode {
    end_quietly_without_reader();
    let command = match Cli::from_arg_matches(&definition().get_matches()) {
        Ok(cli) => cli.command,
        Err(error) => error.exit(),
    };
    log_to_stderr(match command {
        Command::Run(_) => "info",
        #[cfg(feature = "standalone")]
        Command::Standalone(_) => "info",
        // The demo draws failures itself.
        #[cfg(feature = "demo")]
        Command::Demo(_) => "off",
        // Their errors are printed once, by the command.
        _ => "warn,kube_client=off,kube_runtime=off",
    });
    let outcome = match command {
        Command::Run(args) => run::run(*args),
        #[cfg(feature = "standalone")]
        Command::Standalone(args) => standalone::run(*args),
        Command::Crds(args) => crds::run(args),
        #[cfg(feature = "demo")]
        Command::Demo(args) => demo::run(args),
        #[cfg(feature = "demo")]
        Command::Local(args) => local::run(args),
        Command::Get(args) => canaries::get::run(args),
        Command::Status(args) => canaries::status::run(args),
        Command::History(args) => canaries::history::run(args),
        Command::Events(args) => canaries::events::run(args),
        Command::Logs(args) => canaries::logs::run(args),
        Command::Wait(args) => match canaries::wait::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Inventory(args) => inventory::run(args),
        Command::Dashboard(args) => dashboard::run(args),
        #[cfg(feature = "lint")]
        Command::Lint(args) => match lint::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Mesh(args) => mesh::run(args),
        Command::Migrate(args) => migrate::run(args),
        Command::Version(args) => match version::run(args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Simulate(args) => simulate::run(*args),
        Command::Reference(args) => reference::run(args),
        #[cfg(feature = "xds")]
        Command::Xds(args) => xds::run(args),
        Command::Approve(args) => command::approve(args),
        Command::Reject(args) => command::reject(args),
        Command::Promote(args) => command::command(Verb::Promote, args),
        Command::Abort(args) => command::command(Verb::Abort, args),
        Command::Pause(args) => command::command(Verb::Pause, args),
        Command::Resume(args) => command::command(Verb::Resume, args),
        Command::Retry(args) => command::command(Verb::Retry, args),
        Command::Rollback(args) => command::command(Verb::Rollback, args),
        Command::Completion(args) => shell::completion(Cli::command(), args),
        Command::Man(args) => shell::man(Cli::command(), args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<paint::ReaderGone>() => ExitCode::from(READER_GONE),
        Err(error) => {
            eprintln!("serin: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// Each cause once, without the numbers that Rust appends to errors of the operating
/// system.
fn one_line(error: &anyhow::Error) -> String {
    let chain = error_chain(error.as_ref());
    let mut parts = chain.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or("", |(_, rest)| rest))
}

/// As if SIGPIPE had ended the program.
const READER_GONE: u8 = 128 + 13;

/// The commands; named as a plug-in if kubectl started this program as one.
fn definition() -> clap::Command {
    let program = std::env::args_os().next().map(std::path::PathBuf::from).unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match name.strip_prefix("kubectl-") {
        Some("serin") => Cli::command().bin_name("kubectl serin"),
        _ => Cli::command(),
    }
}

/// `serin get | head` ends as other programs do: the reader is gone, and `print!` panics
/// at the next line.
fn end_quietly_without_reader() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let message = panic.payload().downcast_ref::<String>();
        if message.is_some_and(|text| text.starts_with("failed printing to stdout: Broken pipe")) {
            std::process::exit(READER_GONE.into());
        }
        report(panic);
    }));
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

/// Sent by service managers instead of SIGINT.
async fn wait_for_sigterm() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => _ = signal.recv().await,
        Err(_) => std::future::pending().await,
    }
}

/// Only on a terminal, and unless the user forbids it.
fn colours() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    /// clap checks names and references of flags when a command is first parsed, and panics.
    #[test]
    fn the_command_line_is_valid() {
        super::Cli::command().debug_assert();
    }
}
