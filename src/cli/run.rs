//! `serin run`: the controller.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use clap::ValueEnum;
use futures::future::join_all;
use jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ListParams};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::chat::ChatArgs;
use super::cluster;
use super::oidc::OidcArgs;
use super::tenancy::TenancyArgs;
use super::wakeup_throttle::WakeupThrottle;
#[cfg(feature = "xds")]
use super::xds::serve::Replica;
use crate::api::Canary;
use crate::api::canary::Provider;
use crate::clock::Clock;
use crate::controller::fence::Fence;
use crate::controller::membership::ReplicaConfig;
use crate::controller::{
    Controller, Environment, InventoryMode, InventoryOptions, InventoryResources, Options, run_replicated,
};
use crate::discovery::live::{DEFAULT_CLUSTER, LiveInventory};
use crate::metrics::scrape::HttpFetch;
use crate::metrics::{OwnMetricsServer, SecretName, ServerAccess};
use crate::routing::AppMeshOptions;
use crate::server::{self, Access, BoardSources, BoundServer, OidcOptions, ServerHandle, SignIn};
use crate::telemetry::{Telemetry, Traces};
use crate::tls::Certificate;
use crate::workload;

/// Run the controller until SIGTERM or Ctrl-C
///
/// Releases every new revision of the workloads that Canaries target. Without
/// flags it serves all namespaces of the cluster of kubectl's current context (or
/// the one it runs in), scrapes metrics from the pods, and finds out which mesh
/// each target is in; spec.provider or --provider name the router instead:
///
///     serin crds | kubectl apply -f -
///     serin run
///
/// Flags can also be set by the environment variables beside them. SERIN_LOG
/// filters the log: debug, or serin::controller=debug; SERIN_LOG_FORMAT=json makes
/// each line an object.
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// Kubeconfig of the cluster [default: kubectl's, or the cluster that this
    /// process runs in]
    #[arg(help_heading = "Cluster", long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// Namespaces to serve, separated by commas [default: all]
    #[arg(
        help_heading = "Cluster",
        short,
        long,
        env = "SERIN_NAMESPACES",
        value_name = "NAMES",
        value_delimiter = ','
    )]
    namespaces: Vec<String>,

    /// Namespace of the controller: of its Leases, and of Secrets that
    /// ClusterAnalysisTemplates reference [default: that of the kubeconfig's context]
    #[arg(help_heading = "Cluster", long, env = "POD_NAMESPACE", value_name = "NAME")]
    controller_namespace: Option<String>,

    /// Name of this cluster in the inventory and in notifications
    #[arg(help_heading = "Cluster", long, env = "SERIN_CLUSTER_NAME", value_name = "NAME", default_value = DEFAULT_CLUSTER)]
    cluster_name: String,

    /// Router of Canaries without spec.provider: istio, gatewayapi:v1, linkerd,
    /// smi:v1alpha4, xds, kubernetes, …
    #[arg(help_heading = "Releases", long, env = "SERIN_PROVIDER", value_name = "PROVIDER", value_parser = provider)]
    provider: Option<Provider>,

    /// How many releases may be in progress at a time, over all Canaries; others
    /// wait, oldest first [default: no limit]
    #[arg(help_heading = "Releases", long, env = "SERIN_MAX_RELEASES", value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..))]
    max_releases: Option<u32>,

    /// How many Canaries are reconciled at a time
    #[arg(help_heading = "Releases", long, env = "SERIN_CONCURRENCY", value_name = "COUNT", default_value_t = 128,
        value_parser = clap::value_parser!(u16).range(1..))]
    concurrency: u16,

    /// Labels that identify a workload, most specific first; the primary gets
    /// another value of the first one that its target has
    #[arg(
        help_heading = "Releases",
        long,
        env = "SERIN_SELECTOR_LABELS",
        value_name = "LABELS",
        value_delimiter = ',',
        default_value = "app,name,app.kubernetes.io/name"
    )]
    selector_labels: Vec<String>,

    /// Labels and annotations with one of these prefixes are copied from the
    /// target to the primary; * copies all
    #[arg(
        help_heading = "Releases",
        long,
        env = "SERIN_INCLUDE_LABEL_PREFIX",
        value_name = "PREFIXES",
        value_delimiter = ','
    )]
    include_label_prefix: Vec<String>,

    /// Do not treat a changed ConfigMap or Secret as a new revision: the primary
    /// references the same ones as the target instead of copies
    #[arg(help_heading = "Releases", long, env = "SERIN_NO_CONFIG_TRACKING")]
    no_config_tracking: bool,

    /// URL of the Prometheus for Canaries without spec.metricsServer. Without
    /// either, pods are scraped directly
    #[arg(help_heading = "Metrics", long, env = "SERIN_METRICS_SERVER", value_name = "URL")]
    metrics_server: Option<String>,

    /// Secret in the controller's namespace with the credentials of --metrics-server:
    /// username and password, or token, and ca.crt
    #[arg(
        help_heading = "Metrics",
        long,
        env = "SERIN_METRICS_SERVER_SECRET",
        value_name = "NAME",
        requires = "metrics_server"
    )]
    metrics_server_secret: Option<String>,

    /// Header of requests to --metrics-server, such as `X-Scope-OrgID: tenant-1`; may be
    /// repeated
    #[arg(help_heading = "Metrics", long, value_name = "HEADER", value_parser = header, requires = "metrics_server")]
    metrics_server_header: Vec<(String, String)>,

    /// Export the metrics of Canaries under Flagger's names too, for dashboards
    /// and alerts written for Flagger
    #[arg(help_heading = "Metrics", long, env = "SERIN_FLAGGER_METRICS")]
    flagger_metrics: bool,

    /// Collector of OpenTelemetry traces, by OTLP over HTTP, such as http://collector:4318:
    /// a trace for each release
    #[arg(help_heading = "Metrics", long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,

    /// Address to serve /metrics, /healthz and /readyz at, such as
    /// 127.0.0.1:8080, in a pod 0.0.0.0:8080; `none` serves nothing
    #[arg(help_heading = "Servers", long, env = "SERIN_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    listen: ListenAddress,

    /// Address to serve /healthz and /readyz at for the kubelet alone, which clients of
    /// --listen cannot keep busy then
    #[arg(help_heading = "Servers", long, env = "SERIN_PROBE_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    probe_listen: ListenAddress,

    /// Address of the dashboard, for browsers, and of the JSON API for commands: POST
    /// /api/v1/namespaces/NAMESPACE/canaries/NAME/approve, or reject, promote,
    /// abort, pause, resume, retry, rollback, with a bearer token of the cluster; and
    /// of the inventory: GET /api/v1/inventory/meshes, workloads, services or edges.
    /// Other than on loopback it requires a certificate
    #[arg(help_heading = "Servers", long, env = "SERIN_API_LISTEN", value_name = "ADDRESS", default_value = "none", value_parser = listen)]
    api_listen: ListenAddress,

    /// Audience that tokens for the API must be meant for, so that they are of no use
    /// elsewhere, as of `kubectl create token --audience serin`; may be repeated
    /// [default: tokens for the API server]
    #[arg(
        help_heading = "Servers",
        long,
        env = "SERIN_API_AUDIENCE",
        value_name = "NAME",
        value_delimiter = ','
    )]
    api_audience: Vec<String>,

    /// Certificate of the command API, PEM, with its chain; reloaded when it is
    /// renewed
    #[arg(
        help_heading = "Servers",
        long,
        env = "SERIN_API_CERTIFICATE",
        value_name = "FILE",
        requires = "api_key"
    )]
    api_certificate: Option<PathBuf>,

    /// Private key of the command API, PEM
    #[arg(
        help_heading = "Servers",
        long,
        env = "SERIN_API_KEY",
        value_name = "FILE",
        requires = "api_certificate"
    )]
    api_key: Option<PathBuf>,

    /// Share the Canaries with other replicas in the same namespace, by Leases:
    /// each holds a fair share of the shards and takes over those of a replica
    /// that ends. Without this flag only one replica may run
    #[arg(help_heading = "Replicas", long, env = "SERIN_REPLICATED")]
    replicated: bool,

    /// How many shards the Canaries are divided into, each held by one replica;
    /// the same for all replicas. At least as many as replicas; more of them
    /// balance the work better and cost nothing when idle
    #[arg(help_heading = "Replicas", long, env = "SERIN_SHARDS", value_name = "COUNT", default_value_t = 16,
        value_parser = clap::value_parser!(u32).range(1..=256))]
    shards: u32,

    /// Name of this replica in its Leases
    #[arg(help_heading = "Replicas", long, env = "POD_NAME", value_name = "NAME", default_value = "serin")]
    identity: String,

    /// When to watch all workloads, pods, services and routes of the cluster (or of
    /// --namespaces) for the inventory, from which the router of a Canary without a
    /// provider is chosen: `demand` begins with the first such Canary or request,
    /// `always` at the start, `never` does not
    #[arg(
        help_heading = "Inventory",
        long,
        env = "SERIN_INVENTORY",
        value_name = "WHEN",
        value_enum,
        default_value = "demand"
    )]
    inventory: Inventory,

    /// Which entries of the inventory to write as custom resources while it is watched:
    /// Mesh, or also Workload and MeshService
    #[arg(
        help_heading = "Inventory",
        long,
        env = "SERIN_INVENTORY_RESOURCES",
        value_name = "WHICH",
        value_enum,
        default_value = "meshes"
    )]
    inventory_resources: Resources,

    /// Follow the APIs that MeshApis in the controller's namespace register: App Mesh,
    /// Consul, other clusters. Needs the right to watch Secrets there. Of several
    /// replicas one follows them
    #[arg(help_heading = "Inventory", long, env = "SERIN_MESH_APIS")]
    mesh_apis: bool,

    /// Serve Canaries, MetricTemplates and AlertProviders of Flagger (flagger.app) as they
    /// are, with their status and Events. Each gets one of Serin beside it, which follows
    /// it. Flagger must be scaled to 0: while it runs, none is served
    #[arg(help_heading = "Releases", long, env = "SERIN_ADOPT_FLAGGER")]
    adopt_flagger: bool,

    #[command(flatten)]
    smi_metrics: super::smi_metrics::SmiMetricsArgs,

    #[command(flatten)]
    oidc: OidcArgs,

    #[command(flatten)]
    chat: ChatArgs,

    #[command(flatten)]
    tenancy: TenancyArgs,

    #[cfg(feature = "xds")]
    #[command(flatten)]
    xds: super::xds::serve::XdsArgs,

    #[command(flatten)]
    app_mesh: AppMeshArgs,
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
#[command(next_help_heading = "AWS App Mesh")]
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
pub(super) enum ListenAddress {
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
    runtime.context("start the async runtime")?.block_on(serve(args, None))
}

/// What `serin standalone` sets of the flags; the others have their defaults, or the values
/// of their environment variables.
#[cfg(feature = "standalone")]
pub(super) struct Standalone {
    pub metrics_server: Option<String>,
    pub max_releases: Option<u32>,
    pub listen: ListenAddress,
    pub api_listen: ListenAddress,
    pub xds: super::xds::serve::XdsArgs,
}

#[cfg(feature = "standalone")]
impl Args {
    pub(super) fn standalone(set: Standalone) -> anyhow::Result<Self> {
        let Standalone { metrics_server, max_releases, listen, api_listen, xds } = set;
        let matches =
            <Self as clap::Args>::augment_args(clap::Command::new("run")).try_get_matches_from(["run"])?;
        let defaults = <Self as clap::FromArgMatches>::from_arg_matches(&matches)?;
        Ok(Self {
            inventory: Inventory::Never,
            mesh_apis: true,
            namespaces: Vec::new(),
            replicated: false,
            metrics_server,
            max_releases,
            listen,
            api_listen,
            xds,
            ..defaults
        })
    }
}

/// Until SIGTERM or Ctrl-C. The client is that of the kubeconfig, unless one is given.
pub(super) async fn serve(args: Args, client: Option<Client>) -> anyhow::Result<()> {
    let telemetry = Arc::<Telemetry>::default();
    args.chat.check(matches!(args.api_listen, ListenAddress::At(_)))?;
    let oidc =
        args.oidc.options(args.chat.dashboard_url(), matches!(args.api_listen, ListenAddress::At(_)))?;
    let command_api =
        CommandApiListener::bind(args.api_listen, args.api_certificate.zip(args.api_key)).await?;
    #[cfg(feature = "xds")]
    let xds = super::xds::serve::Bound::bind(args.xds).await?;
    let smi_metrics =
        super::smi_metrics::Bound::bind(args.smi_metrics, args.metrics_server.as_deref()).await?;
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
    if let Some(endpoint) = &args.otlp_endpoint {
        let traces =
            Traces::start(endpoint, &args.cluster_name).context("set up the HTTP client for traces")?;
        _ = telemetry.traces.set(traces);
    }
    let client = match client {
        Some(client) => client,
        None => cluster::client(args.kubeconfig, &telemetry).await?,
    };
    let stop = stop_on_signal()?;
    tokio::select! {
        served = wait_for_crds(&client, args.namespaces.first()) => served?,
        () = stop.cancelled() => return Ok(()),
    }
    let inventory = LiveInventory::new(&args.cluster_name);
    let controller_namespace =
        args.controller_namespace.unwrap_or_else(|| client.default_namespace().to_owned());
    let metrics_server = ServerAccess {
        address: args.metrics_server,
        secret: args
            .metrics_server_secret
            .map(|name| SecretName { namespace: controller_namespace.clone(), name }),
        headers: by_name(args.metrics_server_header),
    };
    let smi_metrics = smi_metrics.map(|bound| bound.serve(client.clone(), metrics_server.clone()));
    #[cfg(feature = "xds")]
    let xds = xds.map(|bound| {
        let replica =
            Replica { cluster: &args.cluster_name, name: &args.identity, replicated: args.replicated };
        bound.serve(replica)
    });
    if let Some(CommandApiListener { server, certificate }) = command_api {
        tracing::info!(address = %server.address, tls = certificate.is_some(), "serving the command API");
        let provider = oidc.as_ref().map(OidcOptions::provider_name);
        let sign_in = oidc.map(SignIn::new).transpose().context("set up the HTTP client for OpenID")?;
        let access = match &sign_in {
            None => Access::by_token(client.clone(), args.api_audience),
            Some(SignIn { cookies, .. }) => {
                Access::by_token_or_cookie(client.clone(), args.api_audience, cookies.clone())
            }
        };
        let mut api = server::command_router(Arc::clone(&access), &args.namespaces)
            .merge(server::board_router(BoardSources {
                access: Arc::clone(&access),
                live: Arc::clone(&telemetry.live),
                cluster: args.cluster_name.clone(),
                clock: Arc::new(Timestamp::now),
                inventory: !matches!(args.inventory, Inventory::Never),
            }))
            .merge(server::dashboard::dashboard_router(provider.as_deref()));
        if let Some(SignIn { router, .. }) = sign_in {
            api = api.merge(router);
        }
        if !matches!(args.inventory, Inventory::Never) {
            let own = metrics_server.address.is_some();
            let metrics_server = own.then(|| OwnMetricsServer::new(client.clone(), metrics_server.clone()));
            api = api.merge(server::inventory_router(
                Arc::clone(&access),
                Arc::clone(&inventory),
                metrics_server,
            ));
        }
        #[cfg(feature = "xds")]
        if let Some(xds) = &xds {
            api = api.merge(server::xds_router(access, Arc::clone(&xds.proxies)));
        }
        let api = args.chat.serve(api, &client, &args.namespaces)?;
        serving.push(server.for_viewers().serve(api, certificate));
    }
    #[cfg(feature = "xds")]
    let xds_server = xds.as_ref().map(|xds| xds.server.clone());
    #[cfg(not(feature = "xds"))]
    let xds_server = None;
    let options = Options {
        namespaces: args.namespaces,
        provider: args.provider,
        metrics_server,
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
        notifications: args.chat.notifications(&args.cluster_name),
        adopt_flagger: args.adopt_flagger,
    };
    let fetch = Arc::new(HttpFetch::new().context("set up the HTTP client that scrapes pods")?);
    let environment =
        Environment { client, clock: Clock::system(), fetch, telemetry, inventory, xds: xds_server };
    let namespaces = match options.namespaces.is_empty() {
        true => "all".to_owned(),
        false => options.namespaces.join(","),
    };
    tracing::info!(namespaces, controller_namespace, "serin {} started", env!("CARGO_PKG_VERSION"));
    if args.replicated {
        let replica =
            ReplicaConfig { namespace: controller_namespace, identity: args.identity, shards: args.shards };
        run_replicated(environment, options, replica, stop).await?;
    } else {
        let controller = Controller::new(environment, Fence::unsharded(), options).await?;
        controller.run(stop.cancelled_owned()).await;
    }
    #[cfg(feature = "xds")]
    if let Some(xds) = xds {
        xds.shutdown().await;
    }
    serving.extend(smi_metrics.map(|smi_metrics| smi_metrics.server));
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

pub(super) fn listen(text: &str) -> Result<ListenAddress, String> {
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

pub(super) fn provider(text: &str) -> Result<Provider, String> {
    serde_json::from_value(text.into()).map_err(|_| format!("{text} is not a provider that Serin supports"))
}
