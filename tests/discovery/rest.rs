//! Sources that MeshApis register, on the App Mesh server of the test tree, on a receiver
//! with Consul's index semantics and on a second cluster.
//!
//! A source lists at once when it starts, and it starts again when its Secret changes:
//! tests touch the Secret instead of waiting for the next poll.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::http::Method;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt as _};
use kube_local::{ApiServer, Options};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::MeshApi;
use serin::aws::{Account, Accounts};
use serin::clock::Clock;
use serin::discovery::model::{Inventory, Key, Kind, MeshKind};
use serin::discovery::rest::Sources;
use serin::discovery::rest::app_mesh::Listing;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::cluster::create;
use super::support::app_mesh::{AppMeshServer, Fault, MESH, OWNER, Path};
use super::support::{self, definitions};

pub const HOME: &str = "serin";
pub const LIMIT: Duration = Duration::from_secs(60);

/// The controller's cluster with the sources running in it.
pub struct Home {
    pub client: Client,
    pub inventory: Arc<Mutex<Inventory>>,
    pub api: ApiServer,
    _tasks: Vec<AbortOnDropHandle<()>>,
}

impl Home {
    pub async fn start() -> Self {
        serin::tls::install_crypto_provider();
        let api = ApiServer::new(Options::default());
        let client = api.client();
        definitions::install(&client, definitions::ours()).await;
        create(&client, "{apiVersion: v1, kind: Namespace, metadata: {name: serin}}").await;
        let (changes, mut received) = mpsc::channel(16);
        let sources = Sources::new(client.clone(), HOME.to_owned(), Clock::system(), changes);
        let inventory = Arc::new(Mutex::new(Inventory::default()));
        let owned = Arc::clone(&inventory);
        let apply = support::spawn(async move {
            while let Some(change) = received.recv().await {
                let mut inventory = owned.lock();
                inventory.change(change);
                inventory.refresh();
            }
        });
        let run = support::spawn(sources.run(CancellationToken::new()));
        Self { client, inventory, api, _tasks: vec![apply, run] }
    }

    pub fn apis(&self) -> Api<MeshApi> {
        Api::namespaced(self.client.clone(), HOME)
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), HOME)
    }

    pub async fn secret(&self, name: &str, label: &str, data: &[(&str, &str)]) {
        let data: BTreeMap<&str, &str> = data.iter().copied().collect();
        let labels = if label.is_empty() { json!({}) } else { json!({"serin.dev/credentials": label}) };
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "stringData": data,
            "metadata": {"name": name, "namespace": HOME, "labels": labels}});
        create(&self.client, &secret.to_string()).await;
    }

    /// Starts the source again.
    pub async fn touch(&self, secret: &str, data: Value) {
        let encode = |value: &Value| {
            use base64::Engine as _;
            let text = value.as_str().expect("text");
            json!(base64::engine::general_purpose::STANDARD.encode(text))
        };
        let data: BTreeMap<&String, Value> =
            data.as_object().expect("data").iter().map(|(key, value)| (key, encode(value))).collect();
        let patch = Patch::Merge(json!({ "data": data }));
        self.secrets().patch(secret, &PatchParams::default(), &patch).await.expect("a Secret");
    }

    pub async fn mesh_api(&self, name: &str, spec: Value) {
        let api = json!({"apiVersion": "serin.dev/v1alpha1", "kind": "MeshApi",
            "metadata": {"name": name, "namespace": HOME}, "spec": spec});
        create(&self.client, &api.to_string()).await;
    }

    /// An account of App Mesh with the keys `AKIATEST`.
    pub async fn account(&self, name: &str, server: &str) {
        self.secret(name, "rest-api", &[("accessKeyId", "AKIATEST"), ("secretAccessKey", "hidden")]).await;
        let app_mesh = json!({"regions": ["eu-west-1"], "endpoint": server, "pollInterval": "30s"});
        self.mesh_api(name, json!({"appMesh": app_mesh, "secretRef": {"name": name}})).await;
    }

    pub fn keys(&self, kind: Kind) -> Vec<String> {
        let inventory = self.inventory.lock();
        let keys = inventory.keys().filter(|key| key.kind == kind);
        keys.map(|key| format!("{} {}/{}", key.cluster, key.namespace, key.name)).collect()
    }

    pub async fn until_keys(&self, kind: Kind, expected: &[&str]) {
        let what = format!("{kind:?} are {expected:?}");
        support::eventually(&what, LIMIT, async || self.keys(kind) == expected).await;
    }

    /// Message of the condition Ready, once it has this status.
    pub async fn until_ready(&self, name: &str, status: &str, message: &str) -> Value {
        let mut last = Value::Null;
        let what = format!("{name} is Ready={status} with {message:?}");
        support::eventually(&what, LIMIT, async || {
            let api = self.apis().get(name).await.expect("a MeshApi");
            last = json!(api.status);
            let ready = &last["conditions"][0];
            ready["status"] == status && ready["message"].as_str().is_some_and(|text| text.contains(message))
        })
        .await;
        last
    }
}

pub fn node_spec(host: &str) -> Value {
    json!({"serviceDiscovery": {"dns": {"hostname": host}},
        "listeners": [{"portMapping": {"port": 8080, "protocol": "http"}}]})
}

pub fn with_nodes(server: &AppMeshServer, names: &[&str]) {
    server.as_user(|user| {
        for name in names {
            user.create(&Path::Node((*name).to_owned()), node_spec(name), BTreeMap::new());
        }
    });
}

fn with_route(server: &AppMeshServer) {
    let target = |node: &str, weight: u32| json!({"virtualNode": node, "weight": weight});
    let action = json!({"weightedTargets": [target("web", 90), target("web-canary", 10)]});
    let router = json!({"virtualRouter": {"virtualRouterName": "web"}});
    server.as_user(|user| {
        user.create(&Path::Router("web".to_owned()), json!({"listeners": []}), BTreeMap::new());
        let route = Path::Route { router: "web".to_owned(), name: "all".to_owned() };
        user.create(
            &route,
            json!({"httpRoute": {"match": {"prefix": "/"}, "action": action}}),
            BTreeMap::new(),
        );
        user.create(&Path::Service("web.shop".to_owned()), json!({ "provider": router }), BTreeMap::new());
    });
}

fn always(path: &'static str, code: &'static str) -> Fault {
    Fault { method: Method::GET, path, code, times: u32::MAX }
}

const WEB: &str = "aws:123456789012:eu-west-1 shop-mesh/web";
const CANARY: &str = "aws:123456789012:eu-west-1 shop-mesh/web-canary";

#[tokio::test]
async fn an_account_is_registered_rotated_and_removed_at_run_time() {
    let (home, server) = (Home::start().await, AppMeshServer::start());
    with_nodes(&server, &["web", "web-canary"]);
    with_route(&server);
    server.set_page(1);
    home.account("prod", &server.url).await;
    home.until_keys(Kind::AppMeshVirtualNode, &[WEB, CANARY]).await;
    home.until_keys(Kind::AppMeshRoute, &["aws:123456789012:eu-west-1 shop-mesh/web/all"]).await;
    home.until_keys(Kind::AppMeshVirtualService, &["aws:123456789012:eu-west-1 shop-mesh/web.shop"]).await;
    let status = home.until_ready("prod", "True", "complete").await;
    assert_eq!((&status["meshes"], &status["objects"]), (&json!(1), &json!(6)), "{status}");
    let meshes = home.inventory.lock().meshes();
    let [mesh] = &meshes[..] else { panic!("{meshes:#?}") };
    assert_eq!((mesh.kind, mesh.name.as_str()), (MeshKind::AppMesh, MESH));
    assert_eq!(mesh.facts[0].evidence.field, "App Mesh lists it, tags team=shop");

    server.accept_only("AKIANEW");
    with_nodes(&server, &["api"]);
    home.touch("prod", json!({"note": "1"})).await;
    let status = home.until_ready("prod", "False", "UnrecognizedClientException").await;
    assert!(!status.to_string().contains("hidden"), "{status}");
    home.until_keys(Kind::AppMeshVirtualNode, &[WEB, CANARY]).await;
    home.touch("prod", json!({"accessKeyId": "AKIANEW"})).await;
    home.until_keys(Kind::AppMeshVirtualNode, &["aws:123456789012:eu-west-1 shop-mesh/api", WEB, CANARY])
        .await;
    home.until_ready("prod", "True", "complete").await;

    home.apis().delete("prod", &DeleteParams::default()).await.expect("deleted");
    support::eventually("nothing is left", LIMIT, async || home.inventory.lock().is_empty()).await;
}

#[tokio::test]
async fn a_failed_throttled_or_partial_listing_prunes_nothing() {
    let (home, server) = (Home::start().await, AppMeshServer::start());
    with_nodes(&server, &["web", "web-canary"]);
    home.account("prod", &server.url).await;
    home.until_keys(Kind::AppMeshVirtualNode, &[WEB, CANARY]).await;
    server.as_user(|user| user.delete(&Path::Node("web-canary".to_owned())));
    // The last list of a mesh: everything before it was answered.
    for (at, fault) in [
        always("/meshes", "ServiceUnavailableException"),
        always("/meshes", "TooManyRequestsException"),
        always("/virtualGateways", "InternalServerErrorException"),
    ]
    .into_iter()
    .enumerate()
    {
        let code = fault.code;
        server.fail(fault);
        home.touch("prod", json!({"note": at.to_string()})).await;
        home.until_ready("prod", "False", code).await;
        assert_eq!(home.keys(Kind::AppMeshVirtualNode), [WEB, CANARY], "{code}");
        server.clear_faults();
    }
    server.fail(Fault { times: 1, ..always("/meshes", "TooManyRequestsException") });
    home.touch("prod", json!({"note": "a retry is enough"})).await;
    home.until_keys(Kind::AppMeshVirtualNode, &[WEB]).await;
    home.until_ready("prod", "True", "complete").await;
}

#[tokio::test]
async fn two_accounts_do_not_prune_each_other() {
    let home = Home::start().await;
    let (first, second) = (AppMeshServer::start(), AppMeshServer::start_as(MESH, "999999999999"));
    with_nodes(&first, &["web"]);
    with_nodes(&second, &["web"]);
    home.account("first", &first.url).await;
    home.account("second", &second.url).await;
    let other = "aws:999999999999:eu-west-1 shop-mesh/web";
    home.until_keys(Kind::AppMeshVirtualNode, &[WEB, other]).await;
    first.as_user(|user| user.delete(&Path::Node("web".to_owned())));
    home.touch("first", json!({"note": "1"})).await;
    home.until_keys(Kind::AppMeshVirtualNode, &[other]).await;
    home.apis().delete("second", &DeleteParams::default()).await.expect("deleted");
    home.until_keys(Kind::AppMeshVirtualNode, &[]).await;
    home.until_keys(Kind::AppMeshMesh, &["aws:123456789012:eu-west-1 /shop-mesh"]).await;
}

#[tokio::test]
async fn a_source_that_hangs_delays_no_other() {
    let home = Home::start().await;
    let (stuck, healthy) = (AppMeshServer::start(), AppMeshServer::start_as(MESH, "999999999999"));
    stuck.hang(true);
    with_nodes(&healthy, &["web"]);
    home.account("stuck", &stuck.url).await;
    home.account("healthy", &healthy.url).await;
    home.until_keys(Kind::AppMeshVirtualNode, &["aws:999999999999:eu-west-1 shop-mesh/web"]).await;
    home.until_ready("healthy", "True", "complete").await;
    home.until_ready("stuck", "False", "list meshes in eu-west-1").await;
    home.apis().delete("stuck", &DeleteParams::default()).await.expect("deleted");
    home.touch("healthy", json!({"note": "1"})).await;
    home.until_ready("healthy", "True", "complete").await;
}

#[tokio::test]
async fn unchanged_resources_are_not_described_again() {
    let server = AppMeshServer::start();
    with_nodes(&server, &["web", "web-canary"]);
    with_route(&server);
    let account: Account = server.options().account;
    let (accounts, pace) = (Accounts::default(), Default::default());
    let listing = Listing::new(&accounts, &account, Some(OWNER.to_owned()), &pace);
    let mut listing = listing.await.expect("a region");
    let described = |from: usize| -> Vec<String> {
        let is_describe = |request: &&String| {
            ["virtualNodes/", "virtualServices/", "routes/"].iter().any(|kind| request.contains(kind))
        };
        server.requests()[from..].iter().filter(is_describe).cloned().collect()
    };
    let first = listing.list(&BTreeSet::new()).await.expect("a listing").objects;
    assert_eq!(described(0).len(), 4, "two nodes, a service and a route");
    let from = server.requests().len();
    assert_eq!(listing.list(&BTreeSet::new()).await.expect("a listing").objects, first);
    assert_eq!(described(from), [] as [String; 0]);
    server.as_user(|user| user.update(&Path::Node("web".to_owned()), node_spec("other")));
    let from = server.requests().len();
    listing.list(&BTreeSet::new()).await.expect("a listing");
    assert_eq!(described(from), ["GET meshes/shop-mesh/virtualNodes/web"]);
}

/// Without a Secret, with one that lacks the label, and with a command in a kubeconfig.
#[tokio::test]
async fn credentials_that_may_not_be_used_are_refused_in_one_sentence() {
    let home = Home::start().await;
    let cluster = |secret: &str| json!({"kubernetes": {}, "secretRef": {"name": secret}});
    home.mesh_api("absent", cluster("absent")).await;
    home.until_ready("absent", "False", "the Secret absent does not exist").await;
    home.secret("unlabelled", "", &[("kubeconfig", "hidden")]).await;
    home.mesh_api("unlabelled", cluster("unlabelled")).await;
    home.until_ready("unlabelled", "False", "lacks the label serin.dev/credentials").await;
    home.secret("wrong", "rest-api", &[("kubeconfig", "hidden")]).await;
    home.mesh_api("wrong", cluster("wrong")).await;
    home.until_ready("wrong", "False", "needs the label serin.dev/credentials: kubernetes").await;
    let config = json!({"apiVersion": "v1", "kind": "Config", "current-context": "a",
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "a", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "hidden", "interactiveMode": "Never"}}}]});
    home.secret("command", "kubernetes", &[("kubeconfig", &config.to_string())]).await;
    home.mesh_api("command", cluster("command")).await;
    let status = home.until_ready("command", "False", "has a command (exec)").await;
    assert!(!status.to_string().contains("hidden"), "{status}");
    let role = [("roleArn", "arn:aws:iam::123456789012:role/serin")];
    home.secret("role", "rest-api", &role).await;
    let app_mesh = json!({"regions": ["eu-west-1"], "endpoint": "http://127.0.0.1:1"});
    home.mesh_api("role", json!({"appMesh": app_mesh, "secretRef": {"name": "role"}})).await;
    home.until_ready("role", "False", "the controller's own credentials would be sent there").await;
}

/// The other cluster's API server is the in-process one, served on loopback.
#[tokio::test]
async fn another_cluster_joins_under_its_name_and_leaves() {
    let (home, other) = (Home::start().await, ApiServer::new(Options::default()));
    let client = other.client();
    create(&client, "{apiVersion: v1, kind: Namespace, metadata: {name: shop}}").await;
    create(&client, &super::cluster::workload("web", "sidecar.istio.io/status: '{}'")).await;
    let serving = other.serve(([127, 0, 0, 1], 0).into()).await.expect("a served API");
    home.secret("west", "kubernetes", &[("kubeconfig", &serving.kubeconfig())]).await;
    home.mesh_api("west", json!({"kubernetes": {}, "secretRef": {"name": "west"}})).await;
    home.until_keys(Kind::Deployment, &["west shop/web"]).await;
    let key = Key::new("west", "shop", Kind::Deployment, "web");
    let in_istio = async || {
        let inventory = home.inventory.lock();
        inventory.workload(&key).and_then(|web| web.mesh()).is_some_and(|mesh| mesh.mesh == MeshKind::Istio)
    };
    support::eventually("web is in Istio", LIMIT, in_istio).await;
    create(&client, &super::cluster::workload("api", "")).await;
    home.until_keys(Kind::Deployment, &["west shop/api", "west shop/web"]).await;
    definitions::install(&client, definitions::ours()).await;
    let served =
        async || home.keys(Kind::ServedResource).iter().any(|key| key.contains("canaries.serin.dev"));
    support::eventually("a new definition is noticed", LIMIT, served).await;
    home.until_ready("west", "True", "complete").await;
    home.apis().delete("west", &DeleteParams::default()).await.expect("deleted");
    support::eventually("nothing is left", LIMIT, async || home.inventory.lock().is_empty()).await;
}

/// The name of a MeshApi is no secret; its status has no key of a Secret's data.
#[tokio::test]
async fn an_idle_source_writes_its_status_once() {
    let (home, server) = (Home::start().await, AppMeshServer::start());
    home.account("prod", &server.url).await;
    home.until_ready("prod", "True", "complete").await;
    let before = home.apis().get("prod").await.expect("a MeshApi").resource_version();
    let lists = || server.requests().iter().filter(|request| *request == "GET meshes").count();
    let seen = lists();
    home.touch("prod", json!({"note": "1"})).await;
    support::eventually("it is listed again", LIMIT, async || lists() > seen).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(home.apis().get("prod").await.expect("a MeshApi").resource_version(), before);
}
