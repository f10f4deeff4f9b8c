//! `serin local`: the in-process Kubernetes API, on loopback for kubectl; with `--mesh`
//! a data plane and traffic.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use futures::StreamExt as _;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use tokio_util::task::AbortOnDropHandle;

use super::demo::load::Load;
use super::demo::stage::{random_seed, start_mesh};
use crate::api::Canary;
use crate::clock::Clock;
use crate::routing::apex_name;
use kube_local::ApiServer;
use kube_local::mesh::Mesh;

/// Serve a Kubernetes API from this process, for experiments: nothing to install
///
/// Pods are small HTTP servers: the tag of their image selects how they behave,
/// see `serin demo --help`. `kubectl logs` shows what they answered.
///
///     serin local --mesh &          # a mesh that follows TrafficSplits, and requests
///     export KUBECONFIG=...         # as it prints
///     serin run &
///     kubectl apply -f examples/    # a Deployment, its Service and their Canary
///     kubectl set image deployment/podinfo podinfo=app:v2-errors-5
///     serin status podinfo --watch
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Address to listen on; port 0 takes any free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// Where to write the kubeconfig [default: a temporary file]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Bring Serin's definitions, a mesh that follows TrafficSplits (provider
    /// smi:v1alpha4), and requests to the Service of each Canary
    #[arg(long)]
    mesh: bool,

    /// Requests a second to each of these Services
    #[arg(long, value_name = "COUNT", default_value_t = 50, requires = "mesh",
        value_parser = clap::value_parser!(u32).range(0..=1000))]
    rps: u32,
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
    let seed = random_seed();
    let server =
        ApiServer::new(kube_local::Options { clock: Some(Clock::system()), seed, ..Default::default() });
    let serving = server.serve(args.listen).await?;
    let (path, is_temporary) = match args.kubeconfig {
        Some(path) => (path, false),
        None => {
            (std::env::temp_dir().join(format!("serin-local-{}.kubeconfig", serving.address.port())), true)
        }
    };
    serving.write_kubeconfig(&path)?;
    let cluster = server.start_cluster(true);
    let client = server.client();
    let mut _running = None;
    if args.mesh {
        let (mesh, mesh_task) = start_mesh(&client, &cluster, seed).await?;
        let traffic = tokio::spawn(send_to_canaries(client, mesh, args.rps));
        _running = Some((mesh_task, AbortOnDropHandle::new(traffic)));
    }
    println!("# A Kubernetes API at {}, empty and in memory. Ctrl-C ends it.", serving.url());
    if args.mesh {
        println!("# TrafficSplits take effect; each Canary's Service gets {} requests a second.", args.rps);
    }
    println!("export KUBECONFIG={}", path.display());
    tokio::select! {
        stop = tokio::signal::ctrl_c() => stop.context("wait for Ctrl-C")?,
        () = super::wait_for_sigterm() => {}
    }
    if is_temporary {
        // It may be gone already.
        let _ = std::fs::remove_file(&path);
    }
    Ok(())
}

/// As clients of the mesh: to the apex Service of each Canary, as long as it is there.
async fn send_to_canaries(client: Client, mesh: Mesh, rate: u32) {
    let canaries = watcher(Api::<Canary>::all(client), watcher::Config::default());
    let mut events = canaries.default_backoff().boxed();
    let mut loads: HashMap<(String, String), (String, Load)> = HashMap::new();
    while let Some(event) = events.next().await {
        // The watcher restarts a broken watch.
        let Ok(event) = event else { continue };
        match event {
            watcher::Event::Apply(canary) | watcher::Event::InitApply(canary) => {
                let (namespace, service) = (canary.namespace().unwrap_or_default(), apex_name(&canary));
                let key = (namespace.clone(), canary.name_any());
                // Requests before the primary is ready would fail and prove nothing.
                let serves = canary.status.as_ref().is_some_and(|status| {
                    status.revisions.as_ref().is_some_and(|revisions| revisions.primary.is_some())
                });
                let sends = loads.get(&key).is_some_and(|(known, _)| *known == service);
                if rate > 0 && serves && !sends {
                    let load = Load::start(mesh.clone(), namespace, service.clone(), rate);
                    loads.insert(key, (service, load));
                }
            }
            watcher::Event::Delete(canary) => {
                loads.remove(&(canary.namespace().unwrap_or_default(), canary.name_any()));
            }
            watcher::Event::Init | watcher::Event::InitDone => {}
        }
    }
}
