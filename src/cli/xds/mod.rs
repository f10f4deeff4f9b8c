//! `serin xds bootstrap` and `serin xds status`, and the control plane of `serin run`.

mod bootstrap;
pub(super) mod serve;
mod status;

use clap::Subcommand;

/// Configure Envoys, and see what they made of it
///
///     serin xds bootstrap edge-1 --control-plane serin-xds.serin:18000 \
///         --upstream shop/web:80=127.0.0.1:15001 > envoy.yaml
///     envoy --config-path envoy.yaml
///     serin xds status --server http://127.0.0.1:8443
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Bootstrap(Box<bootstrap::Args>),
    Status(status::Args),
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Bootstrap(args) => bootstrap::run(*args),
        Command::Status(args) => status::run(args),
    }
}
