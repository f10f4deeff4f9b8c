//! `serin demo`: three releases in one process.
//!
//! ```text
//!   load ─ requests ─▶ mesh ──watches──▶ TrafficSplit ◀─writes─ controller ─scrapes─▶ pods
//!                        └──▶ pods of both arms                    ▲
//!   story ─ changes the image of the Deployment ───────────────────┘
//!   show ─ watches the Canary's status and the request statistics ─▶ paint, or lines, or JSON
//! ```
//!
//! The controller is the one that runs in a cluster and has no code for the demo.

pub(super) mod load;
pub(super) mod manifests;
mod show;
pub(super) mod stage;
mod story;
mod view;

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use clap::ValueEnum;
use tokio::signal::unix::{SignalKind, signal};

use load::Load;
use manifests::Manifests;
use show::Show;
use stage::Stage;

/// Watch three releases: one is promoted, two are rolled back
///
/// No cluster and nothing to install: a Kubernetes API, a small shop of two pods,
/// 500 requests a second and Serin's controller, all in this process. Three new
/// versions of the shop are released, one after the other:
///
///   v2  is healthy, and is promoted
///   v3  fails 2 % of its requests, and is rolled back
///   v4  is slow now and then, and is rolled back
///
/// Meanwhile kubectl works as with any cluster; the view shows how. The demo takes
/// about a minute.
#[derive(clap::Args)]
#[command(verbatim_doc_comment, after_help = EXAMPLES)]
pub(super) struct Args {
    /// A live view (plain lines if stdout is not a terminal), or one JSON object
    /// for each release, for scripts
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t = Output::Text)]
    output: Output,

    /// Leave everything running after the third release, until Ctrl-C
    #[arg(long)]
    keep: bool,

    /// Address of the Kubernetes API; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    serve: SocketAddr,

    /// Image of the shop, without a tag: the tag selects how a version behaves,
    /// and the demo sets it
    #[arg(long, value_name = "IMAGE")]
    app_image: Option<String>,

    /// A manifest of your own with a Canary whose provider is linkerd or smi,
    /// and its Deployment; without one, a Deployment is generated
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    Text,
    Json,
}

const EXAMPLES: &str = "\
Examples:
  serin demo                      watch it
  serin demo --keep               and keep it running, to experiment:
    kubectl set image deployment/shop shop=shop:v5-errors-10
    kubectl describe canary shop
  serin demo --output json        for scripts; fails unless all three releases
                                  ended as expected
  serin demo -f canary.yaml       with your own Canary

Tags and what they do: v2 is healthy, v3-errors-2 fails 2 % of its requests,
v4-slow-2s delays one request in a hundred by two seconds, v5-crash crashes,
v6-never-ready never becomes ready.";

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(
        args.serve.ip().is_loopback(),
        "--serve {} is not a loopback address: this server is meant for one user on one machine",
        args.serve
    );
    if let Some(image) = &args.app_image {
        let bare = manifests::without_tag(image);
        ensure!(bare == image, "--app-image {image} has a tag, which the demo sets itself: write {bare}");
    }
    let manifests = match &args.file {
        None => Manifests::builtin(args.app_image.as_deref())?,
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
            Manifests::parse(&text, args.app_image.as_deref())
                .with_context(|| format!("{} cannot be released", path.display()))?
        }
    };
    super::runtime()?.block_on(run_demo(args, manifests))
}

/// Starts everything, runs the three releases and prints the summary.
async fn run_demo(args: Args, manifests: Manifests) -> anyhow::Result<()> {
    let stage = Stage::start(args.serve).await?;
    let mut show = Show::new(args.output, &stage, &manifests);
    let load = tokio::select! {
        load = release_all(&stage, &manifests, &mut show) => load?,
        stop = wait_for_signal() => {
            stop?;
            bail!("stopped before all three releases had ended");
        }
    };
    show.print_summary(args.keep);
    if args.keep {
        tokio::select! {
            result = show.run_forever() => result?,
            stop = wait_for_signal() => stop?,
        }
    }
    drop(load);
    show.check_outcomes()
}

async fn release_all(stage: &Stage, manifests: &Manifests, show: &mut Show) -> anyhow::Result<Load> {
    stage.apply(manifests).await?;
    show.wait_until_initialized().await?;
    // No requests before the pods are ready: they would count as bad.
    let load = {
        let (namespace, service) = (manifests.namespace.clone(), manifests.service.clone());
        Load::start(stage.mesh.clone(), namespace, service, load::RATE)
    };
    show.set_traffic(load.traffic.clone());
    show.pause().await?;
    for release in &story::RELEASES {
        show.start_release(release);
        stage.set_image(manifests, &manifests.image_with_tag(release.tag)).await?;
        show.wait_until_ended().await?;
        show.pause().await?;
    }
    Ok(load)
}

/// SIGTERM or Ctrl-C.
async fn wait_for_signal() -> anyhow::Result<()> {
    let mut terminated = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    tokio::select! {
        stop = tokio::signal::ctrl_c() => stop.context("listen for Ctrl-C"),
        _ = terminated.recv() => Ok(()),
    }
}
