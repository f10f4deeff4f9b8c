//! Clusters for the tests and benchmarks.
//!
//! Each test binary has at most one of each kind, started when first
//! needed, on free loopback ports, and gone when the binary is, however it ends.
//! A part that is missing fails the test and names the command that brings it.

// Every test binary compiles this module and uses a part of it.
#![allow(dead_code)]

pub mod app_mesh;
pub mod chart;
mod child;
pub mod consul;
pub mod definitions;
pub mod http_fixtures;
mod local;
pub mod moto;
pub mod node;
pub mod objects;
pub mod prometheus;
mod real;
pub mod receiver;
pub mod route_status;
pub mod slack_api;
pub mod slack_rules;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::OnceCell;
use tokio_util::task::AbortOnDropHandle;

pub use child::{Child, Folder};
pub use real::Extras;

/// The one node that either cluster knows of. Nothing runs on it: a test that
/// wants its pods to start is their kubelet, or brings one.
pub const NODE: &str = "node-1";

/// The real kube-apiserver with etcd below and the controller-manager beside it.
pub async fn real() -> &'static Cluster {
    // A start that failed is not tried again by each of a hundred tests.
    static REAL: OnceCell<Result<Cluster, String>> = OnceCell::const_new();
    REAL.get_or_init(|| real::start(Extras::default()))
        .await
        .as_ref()
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Another one, with more than the usual; it ends when dropped.
pub async fn real_with(extras: Extras) -> Cluster {
    real::start(extras).await.unwrap_or_else(|error| panic!("{error}"))
}

/// As [`audited`], for one test that changes what others share.
pub async fn audited_apart() -> Cluster {
    real::start_audited().await.unwrap_or_else(|error| panic!("{error}"))
}

/// A stricter real one, with an audit log of the ServiceAccounts' requests.
pub async fn audited() -> &'static Cluster {
    static AUDITED: OnceCell<Result<Cluster, String>> = OnceCell::const_new();
    AUDITED.get_or_init(real::start_audited).await.as_ref().unwrap_or_else(|error| panic!("{error}"))
}

/// `kube_local` with its controllers, in this process and served on loopback.
pub async fn local() -> &'static Cluster {
    static LOCAL: OnceCell<Result<Cluster, String>> = OnceCell::const_new();
    LOCAL.get_or_init(local::start).await.as_ref().unwrap_or_else(|error| panic!("{error}"))
}

/// The same, with its objects in a file.
pub async fn durable() -> &'static Cluster {
    static DURABLE: OnceCell<Result<Cluster, String>> = OnceCell::const_new();
    DURABLE.get_or_init(local::start_durable).await.as_ref().unwrap_or_else(|error| panic!("{error}"))
}

/// A client for the cluster of a kubeconfig.
pub async fn client(kubeconfig: &str) -> Client {
    let kubeconfig = Kubeconfig::from_yaml(kubeconfig).expect("a kubeconfig");
    Client::try_from(config(kubeconfig).await).expect("a client of the kubeconfig")
}

/// An API server somewhere on loopback, and how to reach it.
pub struct Cluster {
    /// Dropping one ends its process. Before the folder: they work in it.
    children: Vec<Child>,
    folder: Folder,
}

/// The credentials of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// In `system:masters`: may do everything.
    Admin,
    /// Sends a token nobody issued.
    Stranger,
    /// Sends no credentials.
    Nobody,
}

impl Cluster {
    /// Names an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.join("kubeconfig")
    }

    /// The requests of ServiceAccounts, from the API server's audit log.
    pub fn audit(&self) -> Vec<serde_json::Value> {
        let log = std::fs::read_to_string(self.folder.join("audit.log")).expect("an audited cluster");
        // The last line may be half written.
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// A kubeconfig like the administrator's with this token.
    pub fn kubeconfig_of(&self, token: &str) -> serde_json::Value {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("the cluster's kubeconfig");
        let mut kubeconfig: serde_json::Value = serde_saphyr::from_str(&text).expect("a kubeconfig is YAML");
        kubeconfig["users"][0]["user"]["token"] = token.into();
        kubeconfig
    }

    /// A client's connections live on the runtime that made it and every test
    /// has a runtime of its own, so each test creates its own client.
    pub async fn client(&self) -> Client {
        self.client_of(User::Admin).await
    }

    pub async fn client_of(&self, user: User) -> Client {
        Client::try_from(self.config(user).await).expect("a client for the test cluster")
    }

    /// A fresh namespace whose name begins with `prefix`.
    pub async fn namespace(&self, prefix: &str) -> String {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("{prefix}-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..Default::default() },
            ..Default::default()
        };
        Api::<Namespace>::all(self.client().await)
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap_or_else(|error| panic!("namespace {name}: {error}"));
        name
    }

    /// Of an audited cluster: certificate and key of the front proxy, or of `other`, whom its
    /// authority knows too.
    pub fn front_proxy(&self, name: &str) -> (String, String) {
        let read = |end: &str| {
            std::fs::read_to_string(self.folder.join(&format!("{name}.{end}")))
                .expect("a file of the cluster")
        };
        (read("crt"), read("key"))
    }

    /// The administrator's.
    pub fn token(&self) -> String {
        let text = std::fs::read_to_string(self.kubeconfig()).expect("the cluster's kubeconfig");
        let kubeconfig: serde_json::Value = serde_saphyr::from_str(&text).expect("a kubeconfig is YAML");
        kubeconfig["users"][0]["user"]["token"].as_str().expect("an administrator with a token").to_owned()
    }

    async fn config(&self, user: User) -> Config {
        let mut config =
            config(Kubeconfig::read_from(self.kubeconfig()).expect("the cluster's kubeconfig")).await;
        match user {
            User::Admin => {}
            User::Stranger => config.auth_info.token = Some("made-up".to_owned().into()),
            User::Nobody => config.auth_info.token = None,
        }
        config
    }
}

/// The path of a program, or the `testbed/setup` command that brings it.
pub fn program(part: Part, name: &str) -> Result<PathBuf, String> {
    let path = part.folder().join(name);
    if path.exists() {
        Ok(path)
    } else {
        Err(format!("{name} is not at {}: run `testbed/setup {part}`", path.display()))
    }
}

/// The parts that `testbed/setup` brings, each under its pinned version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Etcd,
    Kubernetes,
    Prometheus,
    Flagger,
    FlaggerController,
    FlaggerManifests,
    FlaggerAffinity,
    ArgoRollouts,
    ArgoManifests,
    Osm,
    GatewayApi,
    Istio,
    IstioCharts,
    CiliumCharts,
    EnvoyGatewayCharts,
    KumaCharts,
    LinkerdCharts,
    AppMesh,
    Helm,
    Moto,
    Istiod,
    Envoy,
    GoControlPlane,
    Promtool,
    Glua,
    Actionlint,
    Chromium,
    AxeCore,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Part::Etcd => "etcd",
            Part::Kubernetes => "kubernetes",
            Part::Prometheus => "prometheus",
            Part::Flagger => "flagger",
            Part::FlaggerController => "flagger-controller",
            Part::FlaggerManifests => "flagger-manifests",
            Part::FlaggerAffinity => "flagger-affinity",
            Part::ArgoRollouts => "argo-rollouts",
            Part::ArgoManifests => "argo-manifests",
            Part::Osm => "osm",
            Part::GatewayApi => "gateway-api",
            Part::Istio => "istio",
            Part::IstioCharts => "istio-charts",
            Part::CiliumCharts => "cilium-charts",
            Part::EnvoyGatewayCharts => "envoy-gateway-charts",
            Part::KumaCharts => "kuma-charts",
            Part::LinkerdCharts => "linkerd-charts",
            Part::AppMesh => "app-mesh",
            Part::Helm => "helm",
            Part::Moto => "moto",
            Part::Istiod => "istiod",
            Part::Envoy => "envoy",
            Part::GoControlPlane => "go-control-plane",
            Part::Promtool => "promtool",
            Part::Glua => "glua",
            Part::Actionlint => "actionlint",
            Part::Chromium => "chromium",
            Part::AxeCore => "axe-core",
        })
    }
}

impl Part {
    /// The folder it lives in, which exists once it has been set up.
    pub fn folder(self) -> PathBuf {
        cache().join(format!("{self}-{}", self.version()))
    }

    /// Read from the same pins as `testbed/setup` reads.
    fn version(self) -> &'static str {
        let (pins, name) = match self {
            Part::Etcd => (include_str!("../../testbed/etcd/go.mod"), "go.etcd.io/etcd/server/v3"),
            Part::Kubernetes => (include_str!("../../testbed/kubernetes/go.mod"), "k8s.io/kubernetes"),
            Part::Prometheus | Part::Promtool => {
                (include_str!("../../testbed/prometheus/go.mod"), "github.com/prometheus/prometheus")
            }
            Part::Flagger | Part::FlaggerAffinity | Part::FlaggerController | Part::FlaggerManifests => {
                (include_str!("../../testbed/versions"), "flagger")
            }
            Part::ArgoRollouts | Part::ArgoManifests => {
                (include_str!("../../testbed/versions"), "argo-rollouts")
            }
            Part::Osm => (include_str!("../../testbed/versions"), "osm"),
            Part::GatewayApi => (include_str!("../../testbed/versions"), "gateway-api"),
            Part::Istio => (include_str!("../../testbed/versions"), "istio"),
            Part::CiliumCharts => (include_str!("../../testbed/versions"), "cilium-charts"),
            Part::EnvoyGatewayCharts => (include_str!("../../testbed/versions"), "envoy-gateway-charts"),
            Part::KumaCharts => (include_str!("../../testbed/versions"), "kuma-charts"),
            Part::LinkerdCharts => (include_str!("../../testbed/versions"), "linkerd-charts"),
            Part::AppMesh => (include_str!("../../testbed/versions"), "app-mesh"),
            Part::Helm => (include_str!("../../testbed/versions"), "helm"),
            Part::Moto => (include_str!("../../testbed/moto/requirements.txt"), "moto"),
            Part::Istiod | Part::IstioCharts => {
                (include_str!("../../testbed/istiod/go.mod"), "istio.io/istio")
            }
            Part::Envoy => (include_str!("../../testbed/versions"), "envoy"),
            Part::GoControlPlane => (
                include_str!("../../testbed/go-control-plane/go.mod"),
                "github.com/envoyproxy/go-control-plane",
            ),
            Part::Glua => (include_str!("../../testbed/versions"), "glua"),
            Part::Actionlint => (include_str!("../../testbed/versions"), "actionlint"),
            Part::Chromium => (include_str!("../../testbed/versions"), "chromium"),
            Part::AxeCore => (include_str!("../../testbed/versions"), "axe-core"),
        };
        pins.lines()
            .map(|line| line.trim_start_matches("require "))
            .map(|line| line.split([' ', '\t', '=']).filter(|word| !word.is_empty()))
            .find_map(|mut words| words.next().is_some_and(|word| word == name).then(|| words.next()))
            .flatten()
            .unwrap_or_else(|| panic!("no pin of {name} in testbed/"))
    }
}

fn cache() -> PathBuf {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("SERIN_TESTBED").unwrap_or_else(|| {
        set("XDG_CACHE_HOME")
            .or_else(|| set("HOME").map(|home| home.join(".cache")))
            .expect("one of SERIN_TESTBED, XDG_CACHE_HOME and HOME is set")
            .join("serin/testbed")
    })
}

/// Waits until a condition holds; panics after `limit`.
pub async fn eventually(what: &str, limit: Duration, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < limit, "{what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// A task that ends when its handle is dropped.
pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

async fn config(kubeconfig: Kubeconfig) -> Config {
    serin::tls::install_crypto_provider();
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.expect("a complete kubeconfig")
}

/// A free loopback port outside the kernel's ephemeral range: one inside it could be
/// taken before the server has started.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let ports = 20_000..32_000_u32;
    // Test programs that run at the same time begin elsewhere.
    let begin = std::process::id() * 101;
    let next = || (begin + TAKEN.fetch_add(1, Ordering::Relaxed)) % ports.len() as u32 + ports.start;
    let is_free = |port: &u16| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok();
    let mut tried = ports.clone().map(|_| u16::try_from(next()).expect("a port"));
    tried.find(is_free).expect("a free loopback port")
}
