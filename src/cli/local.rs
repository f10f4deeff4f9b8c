//! `serin local`: the in-process Kubernetes API, on loopback for kubectl.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;

use crate::clock::Clock;
use kube_local::ApiServer;

#[derive(clap::Args)]
pub(super) struct Args {
    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Where to write the kubeconfig [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    anyhow::ensure!(
        args.listen.ip().is_loopback(),
        "--listen {} is not a loopback address: this server is meant for one user on one machine",
        args.listen
    );
    super::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let server = ApiServer::new(kube_local::Options { clock: Some(Clock::system()), ..Default::default() });
    let serving = server.serve(args.listen).await?;
    let (path, is_temporary) = match args.kubeconfig {
        Some(path) => (path, false),
        None => {
            (std::env::temp_dir().join(format!("serin-local-{}.kubeconfig", serving.address.port())), true)
        }
    };
    serving.write_kubeconfig(&path)?;
    let _cluster = server.start_cluster(true);
    println!("# A Kubernetes API at {}, empty and in memory. Ctrl-C ends it.", serving.url());
    println!("export KUBECONFIG={}", path.display());
    tokio::select! {
        stop = tokio::signal::ctrl_c() => stop.context("wait for Ctrl-C")?,
        () = wait_for_sigterm() => {}
    }
    if is_temporary {
        // It may be gone already.
        let _ = std::fs::remove_file(&path);
    }
    Ok(())
}

/// Sent by service managers instead of SIGINT.
async fn wait_for_sigterm() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut signal) => _ = signal.recv().await,
        Err(_) => std::future::pending().await,
    }
}
