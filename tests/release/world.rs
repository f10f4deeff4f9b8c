//! A namespace with a workload `web` in it, a Canary of it, people who call
//! it, and the controller; on `serin::local` or on the real servers.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use futures::join;
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::ConditionStatus;
use serin::api::{AlertProvider, Canary};
use serin::clock::Clock;
use serin::controller::lease::Fence;
use serin::controller::replica::Claim;
use serin::controller::{Controller, Options, StartError, run_replicated};
use serin::local::faults::FaultPlan;
use serin::local::mesh::Mesh;
use serin::local::node::address::Network;
use serin::local::node::{Node, NodeOptions};
use serin::local::{Cluster, Local};
use serin::metrics::scrape::Fetch;
use tokio::runtime::Runtime;
use tokio::sync::{OnceCell, oneshot};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, advance, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::callers::{Traffic, call};
use crate::followed::Followed;
use crate::support::receiver::{Answer, Receiver};
use crate::support::{self, definitions};

/// Clones are the same world.
#[derive(Clone)]
pub struct World {
    /// Of people: spared from faults, and not counted.
    pub client: Client,
    pub clock: Clock,
    pub namespace: String,
    /// Of the controller.
    own: Client,
    node: Node,
    mesh: Mesh,
    requests: Arc<Mutex<Vec<String>>>,
    ground: Arc<Ground>,
}

/// What it all stands on.
enum Ground {
    Local {
        local: Local,
        _cluster: Cluster,
        _mesh: AbortOnDropHandle<()>,
        pace: OnceLock<AbortOnDropHandle<()>>,
    },
    Real(&'static support::Cluster),
}

/// A running controller; dropped, it is as if killed.
pub struct Running {
    stop: CancellationToken,
    work: AbortOnDropHandle<()>,
}

impl Running {
    /// As a service manager ends it.
    pub async fn end(self) {
        self.stop.cancel();
        self.work.await.expect("the controller ends well");
    }
}

/// Where worlds come from.
impl World {
    pub async fn new() -> Self {
        Self::with(serin::local::Options::default()).await
    }

    pub async fn with(options: serin::local::Options) -> Self {
        let local = Local::new(options);
        let cluster = local.start_cluster(false);
        let (client, own, node) = (local.steady_client(), local.client(), cluster.node.clone());
        definitions::install(&client, all_definitions()).await;
        let mesh = mesh(client.clone(), node.clone());
        let following = spawn({
            let mesh = mesh.clone();
            async move { mesh.run().await }
        });
        let (clock, namespace) = (local.clock(), "default".to_owned());
        let ground = Ground::Local { local, _cluster: cluster, _mesh: following, pace: OnceLock::new() };
        let (requests, ground) = (Arc::default(), Arc::new(ground));
        Self { client, clock, namespace, own, node, mesh, requests, ground }
    }

    /// On the real API server with the real controller-manager; only the node
    /// and the mesh are ours.
    pub async fn real() -> Self {
        static SHARED: OnceCell<(Node, Mesh)> = OnceCell::const_new();
        let cluster = support::real().await;
        let (node, mesh) = SHARED.get_or_init(|| run_real(cluster)).await.clone();
        let (client, own) = (cluster.client().await, cluster.client().await);
        let (clock, namespace) = (Clock::system(), cluster.namespace("release").await);
        let (requests, ground) = (Arc::default(), Arc::new(Ground::Real(cluster)));
        Self { client, clock, namespace, own, node, mesh, requests, ground }
    }

    /// Another namespace of the same cluster.
    pub async fn beside(&self) -> Self {
        let namespace = match &*self.ground {
            Ground::Real(cluster) => cluster.namespace("release").await,
            Ground::Local { .. } => {
                let name = format!("{}-beside", self.namespace);
                let namespace: Namespace =
                    serde_json::from_value(json!({"metadata": {"name": name}})).expect("a Namespace");
                let namespaces = Api::all(self.client.clone());
                namespaces.create(&PostParams::default(), &namespace).await.expect("a namespace");
                name
            }
        };
        Self { namespace, ..self.clone() }
    }

    pub fn is_real(&self) -> bool {
        matches!(*self.ground, Ground::Real(_))
    }

    /// Long enough for whatever would happen to have happened.
    pub async fn a_long_time(&self) {
        sleep(Duration::from_secs(if self.is_real() { 8 } else { 1200 })).await;
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(if self.is_real() { 240 } else { 3600 })
    }

    /// Somebody on the other end of a real connection.
    pub async fn receiver(&self, answers: impl IntoIterator<Item = Answer>) -> Receiver {
        if let Ground::Local { pace, .. } = &*self.ground {
            pace.get_or_init(|| spawn(keep_pace()));
        }
        Receiver::start(answers).await
    }

    /// From now on requests of the controller fail now and then.
    pub fn set_faults(&self, plan: FaultPlan) {
        let Ground::Local { local, .. } = &*self.ground else { panic!("faults are for the local server") };
        local.set_faults(plan);
    }
}

/// What people do.
impl World {
    /// A Canary of the Deployment `web` with these fields beside those it needs.
    pub async fn canary(&self, spec: Value) {
        self.canary_of("Deployment", spec).await;
    }

    /// A Canary of `web`, which is made if it is not there.
    pub async fn canary_of(&self, kind: &str, spec: Value) {
        if self.find(kind, "web").await.is_none() {
            self.apply(workload(kind, "web", "web:v1")).await;
        }
        let group = if kind == "Service" { "v1" } else { "apps/v1" };
        let mut canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
            "spec": {
                "provider": "smi:v1alpha2",
                "targetRef": {"apiVersion": group, "kind": kind, "name": "web"},
                "service": {"port": 80, "targetPort": 8080},
                "analysis": {
                    "interval": "2s", "threshold": 2, "stepWeights": [20, 50],
                    "metrics": [{"name": "request-success-rate"}, {"name": "request-duration"}],
                },
            },
        });
        json_patch::merge(&mut canary["spec"], &spec);
        self.apply(canary).await;
    }

    /// A Canary of the Deployment `web` that is initialized, and its controller.
    pub async fn initialized(&self, spec: Value) -> Running {
        self.canary(spec).await;
        let serin = self.serin().await;
        self.reaches(Phase::Initialized).await;
        self.eventually("web answers", async || call(&self.mesh, &self.namespace, &[]).await.is_ok()).await;
        serin
    }

    pub async fn edit(&self, spec: Value) {
        self.patch("Canary", "web", json!({ "spec": spec })).await;
    }

    pub async fn annotate(&self, annotation: &str, value: Value) {
        let annotations = json!({annotation: value.to_string()});
        self.patch("Canary", "web", json!({"metadata": {"annotations": annotations}})).await;
    }

    /// As a person pushes a new image.
    pub async fn push(&self, image: &str) {
        self.push_to("Deployment", image).await;
    }

    pub async fn push_to(&self, kind: &str, image: &str) {
        let containers = json!([{"name": "web", "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        let api = self.objects(kind);
        api.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a push");
    }

    /// A hundred requests a second to `web`.
    pub fn traffic(&self) -> Traffic {
        self.callers(&[])
    }

    /// The same, each with these headers.
    pub fn callers(&self, headers: &[(&'static str, &str)]) -> Traffic {
        Traffic::start(self.mesh.clone(), &self.namespace, headers)
    }
}

/// The controller.
impl World {
    /// Starts one.
    pub async fn serin(&self) -> Running {
        self.serin_with(self.options()).await
    }

    pub async fn serin_with(&self, options: Options) -> Running {
        let fetch = Arc::new(FromNode(self.node.clone()));
        let client = counting(self.own.clone(), Arc::clone(&self.requests));
        let controller = Controller::new(client, self.clock, fetch, Fence::open(), options).await;
        let controller = controller.expect("a controller");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        Running { stop, work: AbortOnDropHandle::new(tokio::spawn(controller.run(stopped))) }
    }

    /// Starts one replica of several.
    pub fn replica(&self, me: &str, shards: u32) -> Running {
        let (stop, run) = self.run_replica(me, shards);
        let work = tokio::spawn(async move { run.await.expect("a controller") });
        Running { stop, work: AbortOnDropHandle::new(work) }
    }

    pub fn run_replica(
        &self,
        me: &str,
        shards: u32,
    ) -> (CancellationToken, impl Future<Output = Result<(), StartError>> + use<>) {
        let fetch = Arc::new(FromNode(self.node.clone()));
        let claim = Claim { namespace: self.namespace.clone(), me: me.to_owned(), shards };
        let (stop, options) = (CancellationToken::new(), self.options());
        let client = counting(self.own.clone(), Arc::clone(&self.requests));
        (stop.clone(), run_replicated(client, self.clock, fetch, options, claim, stop))
    }

    pub fn options(&self) -> Options {
        Options { namespaces: vec![self.namespace.clone()], ..Options::default() }
    }

    /// Who holds each shard, without the process's own part of the name.
    pub async fn holders(&self) -> Vec<String> {
        let shards = ListParams::default().labels("serin.dev/shard");
        let leases = self.objects("Lease").list(&shards).await.expect("leases").items;
        let holder = |lease: DynamicObject| {
            let name = lease.data["spec"]["holderIdentity"].as_str()?;
            Some(name.split('-').next()?.to_owned())
        };
        leases.into_iter().filter_map(holder).collect()
    }

    /// Requests of the controller so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }
}

/// What people look at.
impl World {
    pub async fn status(&self) -> CanaryStatus {
        let status = self.get("Canary", "web").await["status"].take();
        serde_json::from_value::<Option<_>>(status).expect("a status").unwrap_or_default()
    }

    pub async fn reaches(&self, phase: Phase) -> CanaryStatus {
        self.becomes(&format!("{phase:?}"), |status| status.phase == phase).await
    }

    /// Waits until the so-manieth release is over and everything is at rest.
    pub async fn released(&self, count: u64) -> CanaryStatus {
        let ended = |status: &CanaryStatus| matches!(status.phase, Phase::Succeeded | Phase::Failed);
        let over =
            |status: &CanaryStatus| status.releases == count && status.release.is_none() && ended(status);
        self.becomes(&format!("done with release {count}"), over).await
    }

    /// Waits until the status is so.
    pub async fn becomes(&self, what: &str, is_so: impl Fn(&CanaryStatus) -> bool) -> CanaryStatus {
        let met = |canary: Option<&Canary>| {
            canary.is_some_and(|canary| is_so(&canary.status.clone().unwrap_or_default()))
        };
        let canaries = Api::<Canary>::namespaced(self.client.clone(), &self.namespace);
        match timeout(self.patience(), await_condition(canaries, "web", met)).await {
            Ok(found) => found.expect("a watch").and_then(|canary| canary.status).unwrap_or_default(),
            Err(_) => {
                panic!("it never becomes {what}: {:#?}\n{:#?}", self.status().await, self.news().await)
            }
        }
    }

    /// Waits until something else is so.
    pub async fn eventually(&self, what: &str, mut is_so: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + self.patience();
        while !is_so().await {
            if Instant::now() > deadline {
                panic!("{what}: {:#?}\n{:#?}", self.status().await, self.news().await);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What was told, as Events.
    pub async fn news(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = events.list(&ListParams::default()).await.expect("events").items;
        events.retain(|event| event.involved_object.kind.as_deref() == Some("Canary"));
        events.sort_by_key(|event| event.name_any());
        let told = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        events.into_iter().map(told).collect()
    }

    /// Waits until an Event says so.
    pub async fn is_told(&self, text: &str) {
        self.eventually(text, async || self.news().await.iter().any(|told| told.contains(text))).await;
    }

    pub async fn image(&self, deployment: &str) -> String {
        self.image_of("Deployment", deployment).await
    }

    pub async fn image_of(&self, kind: &str, name: &str) -> String {
        let object = self.get(kind, name).await;
        let image = &object["spec"]["template"]["spec"]["containers"][0]["image"];
        image.as_str().expect("an image").to_owned()
    }

    pub async fn replicas(&self, deployment: &str) -> u64 {
        self.get("Deployment", deployment).await["spec"]["replicas"].as_u64().expect("replicas")
    }

    /// Weights of canary and primary.
    pub async fn split(&self) -> Option<(u64, u64)> {
        let split = self.find("TrafficSplit", "web").await?;
        Some((weight(&split, "web-canary")?, weight(&split, "web-primary")?))
    }

    /// The canary's weight from now on, each time it is written differently.
    pub async fn weights(&self) -> Followed<u64> {
        self.follow("TrafficSplit", "web", |split| weight(split, "web-canary")).await
    }

    /// Something about an object from now on, each time it is another.
    pub async fn follow<T>(&self, kind: &str, name: &str, read: fn(&Value) -> Option<T>) -> Followed<T>
    where
        T: Clone + PartialEq + std::fmt::Debug + Send + 'static,
    {
        Followed::start(self.objects(kind), name, read).await
    }
}

/// Any object.
impl World {
    pub fn objects(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    pub async fn find(&self, kind: &str, name: &str) -> Option<Value> {
        let found = self.objects(kind).get_opt(name).await;
        let found = found.unwrap_or_else(|error| panic!("{kind} {name}: {error}"))?;
        Some(serde_json::to_value(found).expect("an object is JSON"))
    }

    pub async fn get(&self, kind: &str, name: &str) -> Value {
        self.find(kind, name).await.unwrap_or_else(|| panic!("{kind} {name} is not there"))
    }

    /// As a person applies a manifest.
    pub async fn apply(&self, manifest: Value) {
        self.try_apply(&manifest).await.unwrap_or_else(|error| panic!("{manifest:#}: {error}"));
    }

    pub async fn try_apply(&self, manifest: &Value) -> kube::Result<DynamicObject> {
        let text = |value: &Value| value.as_str().expect("a manifest names itself").to_owned();
        let (kind, name) = (text(&manifest["kind"]), text(&manifest["metadata"]["name"]));
        self.objects(&kind).patch(&name, &PatchParams::apply("people").force(), &Patch::Apply(manifest)).await
    }

    pub async fn patch(&self, kind: &str, name: &str, patch: Value) {
        let patched = self.objects(kind).patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
        patched.unwrap_or_else(|error| panic!("{kind} {name}: {error}"));
    }

    pub async fn delete(&self, kind: &str, name: &str) {
        self.objects(kind).delete(name, &DeleteParams::background()).await.expect("a deletion");
    }

    /// Waits until it is not there any more.
    pub async fn is_gone(&self, kind: &str, name: &str) {
        let what = format!("{kind} {name} is gone");
        self.eventually(&what, async || self.find(kind, name).await.is_none()).await;
    }
}

/// Two pods of an image, behind labels of its own; of a Service, none at all.
pub fn workload(kind: &str, name: &str, image: &str) -> Value {
    if kind == "Service" {
        let ports = json!([{"name": "http", "port": 80, "targetPort": 8080}]);
        let spec = json!({"selector": {"app": name}, "ports": ports});
        return json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    }
    // As people write it who lose no request: an endpoint that is being taken
    // away is still called for a moment.
    let container = json!({
        "name": "web", "image": image, "ports": [{"name": "http", "containerPort": 8080}],
        "lifecycle": {"preStop": {"sleep": {"seconds": 2}}},
    });
    let mut spec = json!({
        "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}},
    });
    if kind == "Deployment" {
        spec["replicas"] = json!(2);
    }
    json!({"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// Does this condition hold?
pub fn holds(status: &CanaryStatus, condition: &str) -> ConditionStatus {
    let found = status.conditions.iter().find(|found| found.type_ == condition);
    found.unwrap_or_else(|| panic!("no condition {condition}: {status:#?}")).status
}

/// What a TrafficSplit gives a backend.
pub fn weight(split: &Value, service: &str) -> Option<u64> {
    let backends = split["spec"]["backends"].as_array()?;
    backends.iter().find(|backend| backend["service"] == *service)?["weight"].as_u64()
}

fn resource(kind: &str) -> ApiResource {
    let made = |group: &str, version: &str| {
        let api_version = format!("{group}/{version}").trim_start_matches('/').to_owned();
        let (group, version, plural) = (group.to_owned(), version.to_owned(), kind.to_lowercase() + "s");
        ApiResource { group, version, api_version, kind: kind.to_owned(), plural }
    };
    match kind {
        "Canary" => ApiResource::erase::<Canary>(&()),
        "AlertProvider" => ApiResource::erase::<AlertProvider>(&()),
        "TrafficSplit" => made("split.smi-spec.io", "v1alpha4"),
        "HTTPRouteGroup" => made("specs.smi-spec.io", "v1alpha4"),
        "ScaledObject" => made("keda.sh", "v1alpha1"),
        "HorizontalPodAutoscaler" => made("autoscaling", "v2"),
        "Lease" => made("coordination.k8s.io", "v1"),
        "Deployment" | "DaemonSet" | "StatefulSet" => made("apps", "v1"),
        _ => made("", "v1"),
    }
}

fn all_definitions() -> impl Iterator<Item = Value> {
    definitions::ours().into_iter().chain(definitions::smi()).chain([definitions::keda()])
}

fn mesh(client: Client, node: Node) -> Mesh {
    Mesh::new(client, resource("TrafficSplit"), Some(resource("HTTPRouteGroup")), node, 1)
}

/// One node and one mesh for every test of this binary, on a thread of their
/// own: they outlive the test that asked first.
async fn run_real(cluster: &'static support::Cluster) -> (Node, Mesh) {
    let (tell, told) = oneshot::channel();
    thread::spawn(move || {
        Runtime::new().expect("a tokio runtime").block_on(async {
            let client = cluster.client().await;
            definitions::install(&client, all_definitions()).await;
            let options =
                NodeOptions { listen: false, network: Network::Twin, ..NodeOptions::named(support::NODE) };
            let node = Node::new(client.clone(), options);
            let mesh = mesh(client, node.clone());
            let _ = tell.send((node.clone(), mesh.clone()));
            join!(node.run(), mesh.run());
        });
    });
    told.await.expect("a node and a mesh")
}

/// Paused time leaps to whatever is next, and would leave real connections
/// behind. With somebody at work on another thread it does not leap, but goes
/// as we let it: five times as fast as the clock on the wall.
async fn keep_pace() {
    loop {
        let _ = spawn_blocking(|| thread::sleep(Duration::from_millis(1))).await;
        advance(Duration::from_millis(5)).await;
    }
}

/// Reads pods that have no sockets.
struct FromNode(Node);

#[async_trait]
impl Fetch for FromNode {
    async fn fetch(&self, url: &str, _limit: usize) -> Result<Bytes, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("{error}"))?;
        let to = uri.authority().ok_or("no address")?.as_str();
        let to = to.parse().map_err(|error| format!("{to}: {error}"))?;
        let request = Request::get(uri.path()).body(Body::empty()).map_err(|error| error.to_string())?;
        let response = self.0.call(to, request).await.map_err(|error| error.to_string())?;
        let body = response.into_body().collect().await.map_err(|error| error.to_string())?;
        Ok(body.to_bytes())
    }
}

/// A client whose requests are counted, except watches.
fn counting(client: Client, requests: Arc<Mutex<Vec<String>>>) -> Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (client, requests) = (client.clone(), Arc::clone(&requests));
        async move {
            if !request.uri().query().is_some_and(|query| query.contains("watch=true")) {
                requests.lock().push(format!("{} {}", request.method(), request.uri().path()));
            }
            client.send(request).await
        }
    });
    Client::new(service, "default")
}

pub fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}
