//! `serin inventory`: meshes, workloads and services of a cluster.

pub mod edges;
pub mod report;
pub mod table;

use std::time::Duration;

use anyhow::Context as _;
use clap::ValueEnum;
use kube::Client;

use tokio::time::sleep;

use super::connect::{ClusterArgs, Connection};
use crate::discovery::kubernetes::{self, ListRequest};
use crate::discovery::live::LiveInventory;
use crate::discovery::model::{Inventory, Key, MeshKind};
use crate::discovery::watch;
use crate::metrics::prometheus::Prometheus;
use crate::metrics::prometheus::edges::EdgeFilter;
use report::{Format, Report, Selection, Shown, View};

/// Show meshes, workloads and services: who is in which mesh, and what can be
/// released
///
/// The cluster is read once, with your own rights. Kinds that you may not list are
/// named at the end, with the rule that would allow it; the rest is shown.
///
/// A mesh is *installed* if its kinds are served or its control plane exists,
/// *enabled* where a namespace or workload opted in, and a workload is
/// *participating* once a pod proves it. `serin inventory why workload/shop/web`
/// prints the evidence line by line.
///
///     serin inventory                          meshes, then workloads and services of this namespace
///     serin inventory workloads -A             RELEASE lists the providers that can release each
///     serin inventory services web -o wide     every route object of a Service, and which one wins
///     serin inventory why service/shop/web     why that one wins
///     serin inventory workloads --watch        the same table, again whenever it changes
///     serin inventory edges web --metrics-server http://localhost:9090
///                                              who calls web and whom it calls, by Istio's and
///                                              Linkerd's counters
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(super) struct Args {
    /// What to show [default: all three]
    #[arg(value_enum)]
    what: Option<What>,

    /// Only the one of this name; for `why`: KIND/NAMESPACE/NAME or KIND/NAME, where KIND is
    /// mesh, workload or service
    name: Option<String>,

    /// Namespace of workloads and services [default: that of the kubeconfig's context]
    #[arg(short, long)]
    namespace: Option<String>,

    /// All namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,

    /// More columns, or all data for programs
    #[arg(short, long, value_enum)]
    output: Option<Format>,

    /// Watch the cluster, and print again whenever the answer changes
    #[arg(short, long)]
    watch: bool,

    /// URL of the Prometheus that counts requests: for `edges`, and for `why` and
    /// `workloads NAME`, which then say whether requests to the workload are counted
    #[arg(long, env = "SERIN_METRICS_SERVER", value_name = "URL")]
    metrics_server: Option<String>,

    #[command(flatten)]
    kubectl: ClusterArgs,

    /// Cluster of the kubeconfig [default: that of the context]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    #[value(alias = "mesh")]
    Meshes,
    #[value(alias = "workload")]
    Workloads,
    #[value(alias = "service")]
    Services,
    /// The evidence for one mesh, workload or service
    Why,
    /// Who calls whom: rate and success of the last five minutes
    #[value(alias = "edge")]
    Edges,
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    super::runtime()?.block_on(async {
        let connection = args.kubectl.connect_to(args.cluster).await?;
        let Connection { client, cluster, .. } = connection.clone();
        let cluster = if cluster.is_empty() { "local".to_owned() } else { cluster };
        let default = client.default_namespace().to_owned();
        let mut namespace = args.namespace.or_else(|| (!args.all_namespaces).then_some(default));
        let style = table::Style { colours: super::colours(), wide: args.output == Some(Format::Wide) };
        let prometheus = args.metrics_server.as_deref().map(Prometheus::at).transpose();
        let prometheus = prometheus.context("--metrics-server (or SERIN_METRICS_SERVER)")?;
        let view = match (args.what, args.name) {
            (Some(What::Edges), name) => {
                let prometheus =
                    prometheus.context("name the Prometheus that counts requests: --metrics-server URL")?;
                anyhow::ensure!(!args.watch, "edges are read once; leave --watch out");
                let filter = EdgeFilter { namespace: namespace.as_deref(), name: name.as_deref() };
                let edges = prometheus.edges(filter).await.map_err(anyhow::Error::msg)?;
                print!("{}", edges::report(&edges, args.output, style)?.text);
                return Ok(());
            }
            (None, _) => View::Table(Selection::All, None),
            (Some(What::Meshes), name) => View::Table(Selection::Meshes, name),
            (Some(What::Workloads), name) => View::Table(Selection::Workloads, name),
            (Some(What::Services), name) => View::Table(Selection::Services, name),
            (Some(What::Why), None) => {
                anyhow::bail!("name the object: serin inventory why workload/NAMESPACE/NAME")
            }
            (Some(What::Why), Some(name)) => {
                let subject = report::Subject::parse(&name, namespace.as_deref())?;
                namespace.clone_from(&subject.namespace);
                View::Why(subject)
            }
        };
        if args.watch {
            let show =
                |shown: Shown<'_>| report::report(shown, &view, namespace.as_deref(), args.output, style);
            return follow(&client, &cluster, show).await;
        }
        let all_pods = match &view {
            View::Table(selection, _) => matches!(selection, Selection::All | Selection::Meshes),
            View::Why(subject) => subject.kind == Selection::Meshes,
        };
        let request = ListRequest { cluster: &cluster, namespace: namespace.as_deref(), all_pods };
        let listed = kubernetes::list(&client, request).await;
        let mut listing =
            listed.map_err(|error| connection.caused_error("read the inventory", error.into()))?;
        if let (Some(prometheus), Some(name)) = (&prometheus, view.workload()) {
            note_requests(&mut listing.inventory, prometheus, namespace.as_deref(), name).await?;
        }
        let report = report::report(&listing, &view, namespace.as_deref(), args.output, style)?;
        print!("{}", report.text);
        eprint!("{}", report.notes);
        Ok(())
    })
}

/// Answers for one workload whether its mesh counts requests to it.
pub async fn note_requests(
    inventory: &mut Inventory,
    prometheus: &Prometheus,
    namespace: Option<&str>,
    name: &str,
) -> anyhow::Result<()> {
    let is_meant = |key: &Key| key.name == name && namespace.is_none_or(|of| of == key.namespace);
    let meant: Vec<(Key, MeshKind)> = inventory
        .workloads()
        .filter(|workload| is_meant(&workload.key))
        .filter_map(|workload| Some((workload.key.clone(), workload.mesh()?.mesh)))
        .collect();
    for (key, mesh) in meant {
        let counted = prometheus.has_requests(mesh.name(), &key.namespace, &key.name).await;
        if counted.map_err(anyhow::Error::msg)? == Some(false) {
            inventory.set_without_requests(&key);
        }
    }
    Ok(())
}

/// Changes within this time are one.
const SETTLE_DELAY: Duration = Duration::from_millis(500);

/// Prints the report again whenever it is another one. A name that is not found is
/// waited for.
async fn follow(
    client: &Client,
    cluster: &str,
    show: impl Fn(Shown<'_>) -> anyhow::Result<Report>,
) -> anyhow::Result<()> {
    let live = LiveInventory::new(cluster);
    let mut feed = std::pin::pin!(watch::watch(client, &live));
    let mut last = String::new();
    loop {
        let settled = async {
            live.changed().await;
            sleep(SETTLE_DELAY).await;
        };
        tokio::select! {
            ended = &mut feed => return Ok(ended?),
            () = settled => {}
        }
        let unread = live.unread();
        let text = live.read(|inventory| match show(Shown { inventory, unread: &unread }) {
            Ok(Report { text, notes }) => text + &notes,
            Err(error) => format!("{error:#}\n"),
        });
        if text != last {
            println!("{}{text}", if last.is_empty() { "" } else { "\n" });
            last = text;
        }
    }
}
