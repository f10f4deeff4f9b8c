//! A cluster with a Deployment `web`, a Canary of it, people who call it, and
//! the controller.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Event, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::{Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::{CanaryStatus, Phase};
use serin::clock::Clock;
use serin::controller::lease::{Claim, Fence};
use serin::controller::{Controller, Options, run_elected};
use serin::local::faults::FaultPlan;
use serin::local::mesh::Mesh;
use serin::local::node::address::Network;
use serin::local::node::{Node, NodeOptions};
use serin::local::{Cluster, Local};
use serin::metrics::scrape::Fetch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::support;

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
    local: Option<(Local, Cluster)>,
    _tasks: Vec<AbortOnDropHandle<()>>,
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

/// People who call the Service, until dropped.
pub struct Traffic {
    pub bad: Arc<AtomicU64>,
    _work: AbortOnDropHandle<()>,
}

impl World {
    /// With `web:v1` deployed, two pods of it.
    pub async fn new() -> Self {
        Self::with(serin::local::Options::default()).await
    }

    pub async fn with(options: serin::local::Options) -> Self {
        let local = Local::new(options);
        let cluster = local.start_cluster(false);
        let (client, own, node) = (local.steady_client(), local.client(), cluster.node.clone());
        let (clock, namespace) = (local.clock(), "default".to_owned());
        Self::of(client, own, clock, namespace, node, Some((local, cluster)), Vec::new()).await
    }

    /// On the real API server with the real controller-manager; only the node
    /// is ours.
    pub async fn real() -> Self {
        let cluster = support::real().await;
        let (client, namespace) = (cluster.client().await, cluster.namespace("release").await);
        let options =
            NodeOptions { listen: false, network: Network::Twin, ..NodeOptions::named(support::NODE) };
        let node = Node::new(client.clone(), options);
        let running = spawn({
            let node = node.clone();
            async move { node.run().await }
        });
        let own = cluster.client().await;
        Self::of(client, own, Clock::system(), namespace, node, None, vec![running]).await
    }

    async fn of(
        client: Client,
        own: Client,
        clock: Clock,
        namespace: String,
        node: Node,
        local: Option<(Local, Cluster)>,
        mut tasks: Vec<AbortOnDropHandle<()>>,
    ) -> Self {
        for definition in serin::api::crds().into_iter().chain([split_definition()]) {
            install(&client, definition).await;
        }
        let mesh = Mesh::new(client.clone(), splits(), node.clone(), 1);
        tasks.push(spawn({
            let mesh = mesh.clone();
            async move { mesh.run().await }
        }));
        let requests = Arc::default();
        let world = Self { client, clock, namespace, own, node, mesh, requests, local, _tasks: tasks };
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": "web"}},
                "template": {
                    "metadata": {"labels": {"app": "web"}},
                    "spec": {"containers": [{
                        "name": "web", "image": "web:v1", "ports": [{"name": "http", "containerPort": 8080}],
                    }]},
                },
            },
        });
        let deployments: Api<Deployment> = world.api();
        let deployment = serde_json::from_value(deployment).expect("a Deployment");
        deployments.create(&PostParams::default(), &deployment).await.expect("the Deployment");
        world
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A Canary of `web` with these fields beside those it needs.
    pub async fn canary(&self, spec: Value) {
        let mut canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": "web"},
            "spec": {
                "provider": "smi:v1alpha2",
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "service": {"port": 80, "targetPort": 8080},
                "analysis": {
                    "interval": "10s", "threshold": 2, "stepWeights": [10, 30, 60],
                    "metrics": [{"name": "request-success-rate"}, {"name": "request-duration"}],
                },
            },
        });
        json_patch::merge(&mut canary["spec"], &spec);
        let canary: Canary = serde_json::from_value(canary).expect("a Canary");
        self.api::<Canary>().create(&PostParams::default(), &canary).await.expect("the Canary is accepted");
    }

    pub async fn edit(&self, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        let edited = self.api::<Canary>().patch("web", &PatchParams::default(), &patch).await;
        edited.expect("the Canary is edited");
    }

    /// As a person pushes a new image.
    pub async fn push(&self, image: &str) {
        let patch =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
        let deployments: Api<Deployment> = self.api();
        deployments.patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await.expect("a push");
    }

    /// Starts a controller.
    pub async fn serin(&self) -> Running {
        let fetch = Arc::new(FromNode(self.node.clone()));
        let client = counting(self.own.clone(), Arc::clone(&self.requests));
        let controller = Controller::new(client, self.clock, fetch, Fence::open(), self.options()).await;
        let controller = controller.expect("a controller");
        let stop = CancellationToken::new();
        let stopped = stop.clone().cancelled_owned();
        Running { stop, work: AbortOnDropHandle::new(tokio::spawn(controller.run(stopped))) }
    }

    /// Starts one replica of several.
    pub fn replica(&self, me: &str) -> Running {
        let fetch = Arc::new(FromNode(self.node.clone()));
        let claim = Claim { namespace: self.namespace.clone(), name: "serin".to_owned(), me: me.to_owned() };
        let (stop, options) = (CancellationToken::new(), self.options());
        let run = run_elected(self.own.clone(), self.clock, fetch, options, claim, stop.clone());
        let work = tokio::spawn(async move { run.await.expect("a controller") });
        Running { stop, work: AbortOnDropHandle::new(work) }
    }

    fn options(&self) -> Options {
        Options { namespaces: vec![self.namespace.clone()], ..Options::default() }
    }

    /// From now on requests of the controller fail now and then.
    pub fn set_faults(&self, plan: FaultPlan) {
        let (local, _) = self.local.as_ref().expect("faults are for the local server");
        local.set_faults(plan);
    }

    pub async fn holder(&self) -> Option<String> {
        let lease = self.api::<Lease>().get_opt("serin").await.expect("an answer")?;
        lease.spec?.holder_identity
    }

    /// A hundred requests a second.
    pub fn traffic(&self) -> Traffic {
        let bad = Arc::<AtomicU64>::default();
        let (mesh, namespace, count) = (self.mesh.clone(), self.namespace.clone(), Arc::clone(&bad));
        let work = spawn(async move {
            loop {
                sleep(Duration::from_millis(10)).await;
                let (mesh, namespace, count) = (mesh.clone(), namespace.clone(), Arc::clone(&count));
                tokio::spawn(async move {
                    let request = Request::get("/").body(Body::empty()).expect("a request");
                    let answer = mesh.send(&namespace, "web", request).await;
                    if !answer.is_ok_and(|answer| answer.response.status().is_success()) {
                        count.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        Traffic { bad, _work: work }
    }

    /// Requests of the controller so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
    }

    pub async fn status(&self) -> CanaryStatus {
        let canary = self.api::<Canary>().get("web").await.expect("the Canary");
        canary.status.unwrap_or_default()
    }

    pub async fn reaches(&self, phase: Phase) -> CanaryStatus {
        self.becomes(&format!("{phase:?}"), |status| status.phase == phase).await
    }

    /// Waits until the status is so.
    pub async fn becomes(&self, what: &str, is_so: impl Fn(&CanaryStatus) -> bool) -> CanaryStatus {
        let patience = Instant::now() + Duration::from_secs(900);
        loop {
            let status = self.status().await;
            if is_so(&status) {
                return status;
            }
            if Instant::now() > patience {
                panic!("it never becomes {what}: {status:#?}\n{:#?}", self.news().await);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// What was told, as Events.
    pub async fn news(&self) -> Vec<String> {
        let events: Api<Event> = self.api();
        let mut events = events.list(&ListParams::default()).await.expect("events").items;
        events.retain(|event| event.involved_object.kind.as_deref() == Some("Canary"));
        events.sort_by_key(|event| event.name_any());
        let told = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        events.into_iter().map(told).collect()
    }

    pub async fn image(&self, deployment: &str) -> String {
        let deployment = self.deployment(deployment).await;
        let spec = deployment.spec.and_then(|spec| spec.template.spec).expect("a template");
        spec.containers[0].image.clone().expect("an image")
    }

    pub async fn deployment(&self, name: &str) -> Deployment {
        self.api::<Deployment>().get(name).await.expect("the Deployment")
    }

    pub async fn replicas(&self, name: &str) -> i32 {
        self.deployment(name).await.spec.and_then(|spec| spec.replicas).unwrap_or(1)
    }

    pub async fn service(&self, name: &str) -> Option<Service> {
        self.api::<Service>().get_opt(name).await.expect("an answer")
    }

    /// Weights of canary and primary.
    pub async fn split(&self) -> Option<(u64, u64)> {
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &self.namespace, &splits());
        let split = api.get_opt("web").await.expect("an answer")?;
        let weight = |service: &str| {
            let backends = split.data["spec"]["backends"].as_array()?;
            backends.iter().find(|backend| backend["service"] == *service)?["weight"].as_u64()
        };
        Some((weight("web-canary")?, weight("web-primary")?))
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

fn spawn(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(work))
}

fn splits() -> ApiResource {
    let kind = GroupVersionKind::gvk("split.smi-spec.io", "v1alpha2", "TrafficSplit");
    ApiResource::from_gvk_with_plural(&kind, "trafficsplits")
}

fn split_definition() -> CustomResourceDefinition {
    let backend = json!({
        "type": "object", "required": ["service", "weight"],
        "properties": {"service": {"type": "string"}, "weight": {"type": "integer"}},
    });
    let spec = json!({
        "type": "object", "required": ["service", "backends"],
        "properties": {"service": {"type": "string"}, "backends": {"type": "array", "items": backend}},
    });
    serde_json::from_value(json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "trafficsplits.split.smi-spec.io"},
        "spec": {
            "group": "split.smi-spec.io", "scope": "Namespaced",
            "names": {
                "kind": "TrafficSplit", "listKind": "TrafficSplitList",
                "plural": "trafficsplits", "singular": "trafficsplit",
            },
            "versions": [{
                "name": "v1alpha2", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}},
            }],
        },
    }))
    .expect("a definition")
}

pub async fn install(client: &Client, definition: CustomResourceDefinition) {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = definition.name_any();
    match api.create(&PostParams::default(), &definition).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        created => _ = created.expect("the definition is accepted"),
    }
    let established = |definition: &CustomResourceDefinition| {
        let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_ref());
        conditions.into_iter().flatten().any(|is| is.type_ == "Established" && is.status == "True")
    };
    while !established(&api.get(&name).await.expect("the definition")) {
        sleep(Duration::from_millis(10)).await;
    }
}
