//! `serin standalone`: the controller, its control plane for Envoys and the Kubernetes API
//! that they need, in one process. The objects are in a file, and follow the manifests of a
//! folder.

mod manifests;
mod sync;

use std::fs::{DirBuilder, create_dir_all};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use k8s_openapi::api::core::v1::Event;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use kube_local::ApiServer;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::task::AbortOnDropHandle;

use super::run::{self, ListenAddress, listen};
use crate::api;
use crate::clock::Clock;

/// Release services on machines without Kubernetes
///
/// Reads Canaries, EndpointGroups and templates from the YAML files below DIR, such as a
/// Git checkout, and follows them; configures Envoys over xDS; and releases each new
/// version of an EndpointGroup. Everything that was decided is in a file, so the process
/// may end at any moment and goes on where it was:
///
///     serin standalone deploy/ --metrics-server http://127.0.0.1:9090
///     serin xds bootstrap edge-1 --control-plane 127.0.0.1:18000 \
///         --upstream default/web:80=127.0.0.1:15001 > envoy.yaml
///     export KUBECONFIG=deploy/.serin/kubeconfig
///     serin status web --watch
///
/// kubectl works as well: the API is that of Kubernetes, without pods. What disappears from
/// DIR is deleted if it came from there; what you create with kubectl stays.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Folder with manifests: all files that end in .yaml or .yml, except in hidden folders
    #[arg(value_name = "DIR")]
    dir: PathBuf,

    /// Folder of the state and of the kubeconfig [default: DIR/.serin]
    #[arg(long, env = "SERIN_STATE", value_name = "FOLDER")]
    state: Option<PathBuf>,

    /// Namespace of manifests that name none
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,

    /// Loopback address of the Kubernetes API; port 0 takes any free one
    #[arg(long, env = "SERIN_KUBE_LISTEN", value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    kube_listen: SocketAddr,

    /// URL of the Prometheus that scrapes the Envoys, for Canaries without
    /// spec.metricsServer
    #[arg(long, env = "SERIN_METRICS_SERVER", value_name = "URL")]
    metrics_server: Option<String>,

    /// How many releases may be in progress at a time; others wait, oldest first
    /// [default: no limit]
    #[arg(long, env = "SERIN_MAX_RELEASES", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    max_releases: Option<u32>,

    /// Address to serve /metrics, /healthz and /readyz at, such as 127.0.0.1:8080
    #[arg(long, env = "SERIN_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    listen: ListenAddress,

    /// Loopback address of the JSON API for commands and of `serin xds status`, with the
    /// token of the kubeconfig
    #[arg(long, env = "SERIN_API_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    api_listen: ListenAddress,

    #[command(flatten)]
    xds: super::xds::serve::XdsArgs,
}

/// In the folder of the state.
const STATE_FILE: &str = "state.redb";
const KUBECONFIG_FILE: &str = "kubeconfig";

/// Events are kept for so long, as by a kube-apiserver.
const EVENT_TTL: Duration = Duration::from_secs(60 * 60);
const EVENT_SWEEP: Duration = Duration::from_secs(10 * 60);

const DEFINITIONS_MANAGER: &str = "serin-standalone-definitions";

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    ensure!(
        args.kube_listen.ip().is_loopback(),
        "--kube-listen {} is not a loopback address: its only user is the one of the kubeconfig, on this machine",
        args.kube_listen
    );
    ensure!(args.dir.is_dir(), "{} is no folder: name one with manifests", args.dir.display());
    super::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let state = args.state.clone().unwrap_or_else(|| args.dir.join(".serin"));
    make_state_folder(&state)?;
    let options = kube_local::Options {
        clock: Some(Clock::system()),
        seed: kube_local::random_seed(),
        ..Default::default()
    };
    let server = ApiServer::open(&state.join(STATE_FILE), options)?;
    let client = server.client();
    install_definitions(&client).await?;
    let serving = server.serve(args.kube_listen).await?;
    let kubeconfig = state.join(KUBECONFIG_FILE);
    serving.write_kubeconfig(&kubeconfig)?;
    let _controllers = server.start_controllers();
    let mut sync = sync::Sync::new(client.clone(), args.dir.clone(), args.namespace.clone());
    sync.once().await;
    let _sync = AbortOnDropHandle::new(tokio::spawn(async move { sync.run().await }));
    let _events = AbortOnDropHandle::new(tokio::spawn(sweep_events(client.clone())));
    println!("# The manifests of {} are released. Ctrl-C ends it; Envoys serve on.", args.dir.display());
    println!("export KUBECONFIG={}", kubeconfig.display());
    let controller = run::Args::standalone(run::Standalone {
        metrics_server: args.metrics_server,
        max_releases: args.max_releases,
        listen: args.listen,
        api_listen: args.api_listen,
        xds: args.xds.or_loopback(),
    })?;
    tokio::select! {
        ended = run::serve(controller, Some(client)) => ended,
        why = server.failed() => anyhow::bail!("{}: {why}; free space or replace the disk, and start again", state.display()),
    }
}

/// For its owner only, and for no Git repository.
fn make_state_folder(state: &Path) -> anyhow::Result<()> {
    if !state.is_dir() {
        if let Some(parent) = state.parent() {
            create_dir_all(parent).with_context(|| format!("make the folder {}", parent.display()))?;
        }
        DirBuilder::new()
            .mode(0o700)
            .create(state)
            .with_context(|| format!("make the folder {}", state.display()))?;
    }
    let ignored = state.join(".gitignore");
    std::fs::write(&ignored, "*\n").with_context(|| format!("write {}", ignored.display()))
}

/// Those of this version, also where an earlier one made the state.
async fn install_definitions(client: &Client) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    for definition in api::crds() {
        let name = definition.name_any();
        definitions
            .patch(&name, &PatchParams::apply(DEFINITIONS_MANAGER).force(), &Patch::Apply(&definition))
            .await
            .with_context(|| format!("install the definition {name}"))?;
    }
    Ok(())
}

/// Else the state grows for ever.
async fn sweep_events(client: Client) {
    let events: Api<Event> = Api::all(client.clone());
    let mut ticks = interval(EVENT_SWEEP);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let Ok(all) = events.list(&ListParams::default()).await else { continue };
        let now = jiff::Timestamp::now();
        let is_old = |event: &Event| {
            let last = event.last_timestamp.as_ref().or(event.metadata.creation_timestamp.as_ref());
            last.is_some_and(|last| now.duration_since(last.0).unsigned_abs() > EVENT_TTL)
        };
        for event in all.items.iter().filter(|event| is_old(event)) {
            let events: Api<Event> =
                Api::namespaced(client.clone(), event.namespace().as_deref().unwrap_or_default());
            // The next sweep tries again.
            let _ = events.delete(&event.name_any(), &DeleteParams::default()).await;
        }
    }
}
