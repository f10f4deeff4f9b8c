//! `serin run`: the controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use futures::future::join_all;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::cluster;
use super::tenancy::TenancyArgs;
use super::wakeup_throttle::WakeupThrottle;
use crate::api::Canary;
use crate::api::canary::Provider;
use crate::clock::Clock;
use crate::controller::fence::Fence;
use crate::controller::membership::ReplicaConfig;
use crate::controller::{
    Controller, Environment, InventoryMode, InventoryOptions, InventoryResources, Options, run_replicated,
};
use crate::discovery::live::{DEFAULT_CLUSTER, LiveInventory};
use crate::metrics::prometheus::Prometheus;
use crate::metrics::scrape::HttpFetch;
use crate::routing::AppMeshOptions;
use crate::server::{self, BoundServer, Certificate, ServerHandle};
use crate::telemetry::Telemetry;
use crate::workload;

/// Run the controller until SIGTERM or Ctrl-C
///
/// Releases every new revision of the workloads that Canaries target. Without
/// flags it serves all namespaces of the cluster of kubectl's current context
/// (or the one it runs in), scrapes metrics from the pods, and finds out which mesh
/// each target is in; spec.provider or --provider name the router instead:
///
///     serin crds | kubectl apply -f -
///     serin run
///
/// Every flag can also be set by the environment variable beside it.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Namespaces to serve, separated by commas [default: all]
    #[arg(short, long, env = "SERIN_NAMESPACES", value_name = "NAMES", value_delimiter = ',')]
    namespaces: Vec<String>,

    /// Router of Canaries without spec.provider: istio, gatewayapi:v1, linkerd,
    /// smi:v1alpha4, kubernetes, …
    #[arg(long, env = "SERIN_PROVIDER", value_name = "PROVIDER", value_parser = provider)]
    provider: Option<Provider>,

    /// When to watch all workloads, pods, services and routes of the cluster (or of
    /// --namespaces) for the inventory, from which the router of a Canary without a
    /// provider is chosen: `demand` begins with the first such Canary or request,
    /// `always` at the start, `never` does not
    #[arg(long, env = "SERIN_INVENTORY", value_name = "WHEN", value_enum, default_value = "demand")]
    inventory: Inventory,

    /// Which entries of the inventory to write as custom resources while it is watched:
    /// Mesh, or also Workload and MeshService
    #[arg(
        long,
        env = "SERIN_INVENTORY_RESOURCES",
        value_name = "WHICH",
        value_enum,
        default_value = "meshes"
    )]
    inventory_resources: Resources,

    /// Name of this cluster in the inventory
    #[arg(long, env = "SERIN_CLUSTER_NAME", value_name = "NAME", default_value = DEFAULT_CLUSTER)]
    cluster_name: String,

    #[command(flatten)]
    app_mesh: AppMeshArgs,

    /// URL of the Prometheus for Canaries without spec.metricsServer. Without
    /// either, pods are scraped directly
    #[arg(long, env = "SERIN_METRICS_SERVER", value_name = "URL")]
    metrics_server: Option<String>,

    /// Secret in the controller's namespace with the credentials of --metrics-server:
    /// username and password, or token, and ca.crt
    #[arg(long, env = "SERIN_METRICS_SERVER_SECRET", value_name = "NAME", requires = "metrics_server")]
    metrics_server_secret: Option<String>,

    /// Header of requests to --metrics-server, such as `X-Scope-OrgID: tenant-1`; may be
    /// repeated
    #[arg(long, value_name = "HEADER", value_parser = header, requires = "metrics_server")]
    metrics_server_header: Vec<(String, String)>,

    #[command(flatten)]
    tenancy: TenancyArgs,

    /// Labels that identify a workload, most specific first; the primary gets
    /// another value of the first one that its target has
    #[arg(
        long,
        env = "SERIN_SELECTOR_LABELS",
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "app,name,app.kubernetes.io/name"
    )]
    selector_labels: Vec<String>,

    /// Labels and annotations with one of these prefixes are copied from the
    /// target to the primary; * copies all
    #[arg(long, env = "SERIN_INCLUDE_LABEL_PREFIX", value_name = "PREFIXES", value_delimiter = ',')]
    include_label_prefix: Vec<String>,

    /// Do not treat a changed ConfigMap or Secret as a new revision: the primary
    /// references the same ones as the target instead of copies
    #[arg(long, env = "SERIN_NO_CONFIG_TRACKING")]
    no_config_tracking: bool,

    /// How many Canaries are reconciled at a time
    #[arg(long, env = "SERIN_CONCURRENCY", value_name = "COUNT", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,

    /// How many releases may be in progress at a time, over all Canaries; others
    /// wait, oldest first [default: no limit]
    #[arg(long, env = "SERIN_MAX_RELEASES", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    max_releases: Option<u32>,

    /// Share the Canaries with other replicas in the same namespace, by Leases:
    /// each holds a fair share of the shards and takes over those of a replica
    /// that ends. Without this flag only one replica may run
    #[arg(long, env = "SERIN_REPLICATED")]
    replicated: bool,

    /// How many shards the Canaries are divided into, each held by one replica;
    /// the same for all replicas. At least as many as replicas; more of them
    /// balance the work better and cost nothing when idle
    #[arg(long, env = "SERIN_SHARDS", value_name = "COUNT", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    shards: u32,

    /// Namespace of the controller: of its Leases, and of Secrets that
    /// ClusterAnalysisTemplates reference [default: that of the kubeconfig's context]
    #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
    controller_namespace: Option<String>,

    /// Name of this replica in its Leases
    #[arg(long, env = "POD_NAME", value_name = "NAME", default_value = "serin")]
    identity: String,

    /// Address to serve /metrics, /healthz and /readyz at, such as
    /// 127.0.0.1:8080, in a pod 0.0.0.0:8080; `none` serves nothing
    #[arg(long, env = "SERIN_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    listen: ListenAddress,

    /// Address to serve /healthz and /readyz at for the kubelet alone, which clients of
    /// --listen cannot keep busy then
    #[arg(long, env = "SERIN_PROBE_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    probe_listen: ListenAddress,

    /// Address of the JSON API for commands: POST
    /// /api/v1/namespaces/NAMESPACE/canaries/NAME/approve, or reject, promote,
    /// abort, pause, resume, retry, rollback, with a bearer token of the cluster; and
    /// of the inventory: GET /api/v1/inventory/meshes, workloads, services or edges.
    /// Other than on loopback it requires a certificate
    #[arg(long, env = "SERIN_API_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    api_listen: ListenAddress,

    /// Certificate of the command API, PEM, with its chain; reloaded when it is
    /// renewed
    #[arg(long, env = "SERIN_API_CERTIFICATE", value_name = "FILE", requires = "api_key")]
    api_certificate: Option<PathBuf>,

    /// Private key of the command API, PEM
    #[arg(long, env = "SERIN_API_KEY", value_name = "FILE", requires = "api_certificate")]
    api_key: Option<PathBuf>,

    /// Follow the APIs that MeshApis in the controller's namespace register: App Mesh,
    /// Consul, other clusters. Needs the right to watch Secrets there. Of several
    /// replicas one follows them
    #[arg(long, env = "SERIN_MESH_APIS")]
    mesh_apis: bool,

    /// Export the metrics of Canaries under Flagger's names too, for dashboards
    /// and alerts written for Flagger
    #[arg(long, env = "SERIN_FLAGGER_METRICS")]
    flagger_metrics: bool,

    /// Kubeconfig of the cluster [default: kubectl's, or the cluster that this
    /// process runs in]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Inventory {
    Demand,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Resources {
    None,
    Meshes,
    All,
}

impl From<Resources> for InventoryResources {
    fn from(which: Resources) -> Self {
        match which {
            Resources::None => Self::None,
            Resources::Meshes => Self::Meshes,
            Resources::All => Self::All,
        }
    }
}

impl From<Inventory> for InventoryMode {
    fn from(when: Inventory) -> Self {
        match when {
            Inventory::Demand => Self::Demand,
            Inventory::Always => Self::Always,
            Inventory::Never => Self::Never,
        }
    }
}

/// For Canaries of the provider appmesh:aws.
#[cfg(feature = "aws")]
#[derive(clap::Args)]
struct AppMeshArgs {
    /// Mesh of Canaries of the provider appmesh:aws without
    /// spec.service.meshName
    #[arg(long, env = "SERIN_APPMESH_MESH", value_name = "NAME")]
    appmesh_mesh: Option<String>,

    /// AWS account that owns a shared mesh [default: the controller's account]
    #[arg(long, env = "SERIN_APPMESH_MESH_OWNER", value_name = "ACCOUNT", value_parser = account)]
    appmesh_mesh_owner: Option<String>,

    /// AWS region of the mesh [default: that of the AWS SDK's default chain]
    #[arg(long, env = "SERIN_APPMESH_REGION", value_name = "REGION")]
    appmesh_region: Option<String>,

    /// Role to assume for App Mesh
    #[arg(long, env = "SERIN_APPMESH_ROLE", value_name = "ARN")]
    appmesh_role: Option<String>,

    /// External ID that the trust policy of that role requires
    #[arg(long, env = "SERIN_APPMESH_EXTERNAL_ID", value_name = "ID", requires = "appmesh_role")]
    appmesh_external_id: Option<String>,

    /// URL of App Mesh, if not the public one
    #[arg(long, env = "SERIN_APPMESH_ENDPOINT", value_name = "URL")]
    appmesh_endpoint: Option<String>,

    /// Cloud Map namespace in which pods are registered under the names of their
    /// virtual nodes, such as web-primary_shop [default: pods are discovered by
    /// the DNS names of their Services]
    #[arg(long, env = "SERIN_APPMESH_CLOUD_MAP_NAMESPACE", value_name = "NAME")]
    appmesh_cloud_map_namespace: Option<String>,
}

/// This build has no App Mesh client.
#[cfg(not(feature = "aws"))]
#[derive(clap::Args)]
struct AppMeshArgs {}

#[cfg(feature = "aws")]
impl From<AppMeshArgs> for AppMeshOptions {
    fn from(args: AppMeshArgs) -> Self {
        Self {
            mesh: args.appmesh_mesh,
            mesh_owner: args.appmesh_mesh_owner,
            cloud_map_namespace: args.appmesh_cloud_map_namespace,
            account: crate::aws::Account {
                region: args.appmesh_region,
                role_arn: args.appmesh_role,
                external_id: args.appmesh_external_id,
                endpoint: args.appmesh_endpoint,
                ..Default::default()
            },
            ..Self::default()
        }
    }
}

#[cfg(not(feature = "aws"))]
impl From<AppMeshArgs> for AppMeshOptions {
    fn from(_: AppMeshArgs) -> Self {
        Self::default()
    }
}

/// Between two attempts to list Canaries while their definition is not served.
const CRD_INTERVAL: Duration = Duration::from_secs(1);

/// Attempts for each log line.
const CRD_REMINDER: u32 = 60;

/// `none`, or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenAddress {
    Disabled,
    At(SocketAddr),
}

/// Single-threaded: a reconcile uses little CPU between its requests, less than
/// moving it between threads would cost.
pub(super) fn run(args: Args) -> anyhow::Result<()> {
    let throttle = WakeupThrottle::new(Instant::now());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .on_thread_park(move || std::thread::sleep(throttle.delay(Instant::now())))
        .build();
    runtime.context("start the async runtime")?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let telemetry = Arc::<Telemetry>::default();
    let command_api =
        CommandApiListener::bind(args.api_listen, args.api_certificate.zip(args.api_key)).await?;
    let mut serving = Vec::new();
    if let ListenAddress::At(address) = args.listen {
        let server = BoundServer::bind(address)
            .await
            .context("--listen (or SERIN_LISTEN): choose a free address, or none to serve nothing")?;
        tracing::info!(address = %server.address, "serving /metrics, /healthz and /readyz");
        let options = server::Options { flagger_metrics: args.flagger_metrics, provider: args.provider };
        serving.push(server.serve(server::metrics_router(Arc::clone(&telemetry), options), None));
    }
    if let ListenAddress::At(address) = args.probe_listen {
        let server = BoundServer::bind(address)
            .await
            .context("--probe-listen (or SERIN_PROBE_LISTEN): choose a free address, or none")?;
        serving.push(server.serve(server::probe_router(Arc::clone(&telemetry)), None));
    }
    let client = cluster::client(args.kubeconfig, &telemetry).await?;
    let stop = stop_on_signal()?;
    tokio::select! {
        served = wait_for_crds(&client, args.namespaces.first()) => served?,
        () = stop.cancelled() => return Ok(()),
    }
    let inventory = LiveInventory::new(&args.cluster_name);
    if let Some(CommandApiListener { server, certificate }) = command_api {
        tracing::info!(address = %server.address, tls = certificate.is_some(), "serving the command API");
        let mut api = server::command_router(client.clone(), &args.namespaces);
        if !matches!(args.inventory, Inventory::Never) {
            let prometheus = args.metrics_server.as_deref().map(Prometheus::at).transpose();
            let prometheus = prometheus.context("--metrics-server (or SERIN_METRICS_SERVER)")?.map(Arc::new);
            api = api.merge(server::inventory_router(client.clone(), Arc::clone(&inventory), prometheus));
        }
        serving.push(server.serve(api, certificate));
    }
    let controller_namespace =
        args.controller_namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let options = Options {
        namespaces: args.namespaces,
        provider: args.provider,
        metrics_server: args.metrics_server,
        metrics_server_secret: args.metrics_server_secret,
        metrics_server_headers: by_name(args.metrics_server_header),
        controller_namespace: controller_namespace.clone(),
        concurrency: args.concurrency.into(),
        max_releases: args.max_releases,
        workload: workload::Options {
            prefixes: args.include_label_prefix,
            identity_labels: args.selector_labels,
            track_configs: !args.no_config_tracking,
        },
        app_mesh: args.app_mesh.into(),
        webhooks: None,
        inventory: InventoryOptions {
            mode: args.inventory.into(),
            resources: args.inventory_resources.into(),
            mesh_apis: args.mesh_apis,
        },
        tenancy: args.tenancy.into(),
    };
    let fetch = Arc::new(HttpFetch::new().context("set up the HTTP client that scrapes pods")?);
    let environment = Environment { client, clock: Clock::system(), fetch, telemetry, inventory };
    tracing::info!(namespaces = ?options.namespaces, controller_namespace, "serin {} started", env!("CARGO_PKG_VERSION"));
    if args.replicated {
        let replica =
            ReplicaConfig { namespace: controller_namespace, identity: args.identity, shards: args.shards };
        run_replicated(environment, options, replica, stop).await?;
    } else {
        let controller = Controller::new(environment, Fence::unsharded(), options).await?;
        controller.run(stop.cancelled_owned()).await;
    }
    join_all(serving.into_iter().map(ServerHandle::shutdown)).await;
    tracing::info!("stopped");
    Ok(())
}

/// The bound address of the command API.
struct CommandApiListener {
    server: BoundServer,
    certificate: Option<Certificate>,
}

impl CommandApiListener {
    /// Requests carry bearer tokens of the cluster, so TLS is required except on
    /// loopback.
    async fn bind(listen: ListenAddress, files: Option<(PathBuf, PathBuf)>) -> anyhow::Result<Option<Self>> {
        let ListenAddress::At(address) = listen else { return Ok(None) };
        let certificate = match files {
            Some((certificate, key)) => {
                Some(Certificate::load(certificate, key).context(
                    "--api-certificate and --api-key (or SERIN_API_CERTIFICATE and SERIN_API_KEY)",
                )?)
            }
            None if address.ip().is_loopback() => None,
            None => anyhow::bail!(
                "--api-listen (or SERIN_API_LISTEN): bearer tokens must not be sent unencrypted; add \
                 --api-certificate and --api-key, or listen on a loopback address such as 127.0.0.1:8443, which \
                 `kubectl port-forward` reaches"
            ),
        };
        let server = BoundServer::bind(address).await.context(
            "--api-listen (or SERIN_API_LISTEN): choose a free address, or none to serve no command API",
        )?;
        Ok(Some(Self { server, certificate }))
    }
}

/// Without the CRDs no watch can begin. They may be applied together with the
/// controller, and are served a moment later.
async fn wait_for_crds(client: &Client, namespace: Option<&String>) -> anyhow::Result<()> {
    let canaries: Api<Canary> = match namespace {
        Some(namespace) => Api::namespaced(client.clone(), namespace),
        None => Api::all(client.clone()),
    };
    for attempt in 0_u32.. {
        match canaries.list_metadata(&ListParams::default().limit(1)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            listed => return listed.map(drop).context("list Canaries"),
        }
        if attempt.is_multiple_of(CRD_REMINDER) {
            tracing::warn!(
                "waiting until the cluster serves the definition of Canaries; run `serin crds | kubectl apply -f -` to install it"
            );
        }
        sleep(CRD_INTERVAL).await;
    }
    Ok(())
}

/// Cancelled by SIGTERM or SIGINT.
fn stop_on_signal() -> anyhow::Result<CancellationToken> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for Ctrl-C")?;
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.cancel();
    });
    Ok(stop)
}

fn listen(text: &str) -> Result<ListenAddress, String> {
    match text {
        "" | "none" => Ok(ListenAddress::Disabled),
        address => address
            .parse()
            .map(ListenAddress::At)
            .map_err(|_| format!("{address} is not an address; write one such as 127.0.0.1:8080, or none")),
    }
}

#[cfg(feature = "aws")]
fn account(text: &str) -> Result<String, String> {
    let is_account = text.len() == 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    is_account
        .then(|| text.to_owned())
        .ok_or_else(|| format!("{text} is not an AWS account; write its twelve digits"))
}

/// `NAME: VALUE`.
fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("write it as NAME: VALUE")?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn by_name(headers: Vec<(String, String)>) -> BTreeMap<String, Vec<String>> {
    let mut by_name: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        by_name.entry(name).or_default().push(value);
    }
    by_name
}

fn provider(text: &str) -> Result<Provider, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("{text} is not a provider that Serin supports"))
}
