//! A namespace with a workload `web`, its Canary, requests to it, and the
//! controller; on `kube_local` or on the real servers.

// Several test binaries compile this module, each uses a part of it.
#![allow(dead_code, unused_imports)]

mod backend;
mod callers;
mod followed;
mod objects;
mod refusals;
pub mod together;

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use k8s_openapi::api::core::v1::Event;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::{Client, ResourceExt as _};
use kube_local::mesh::Mesh;
use kube_local::node::Node;
use parking_lot::Mutex;
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::condition::ConditionStatus;
use serin::clock::Clock;
use serin::controller::fence::Fence;
use serin::controller::membership::ReplicaConfig;
use serin::controller::{Controller, Environment, Options, StartError, run_replicated};
use serin::discovery::live::{DEFAULT_CLUSTER, LiveInventory};
use serin::engine::command::Verb;
use serin::gates::commands::{self, Caller, CanaryRef};
use serin::metrics::scrape::Fetch;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use backend::Backend;
pub use backend::{NodeAndMesh, run_node_and_mesh};
pub use callers::Traffic;
use callers::call;
use followed::Followed;
pub use objects::{weight, workload};
use refusals::Refusals;
pub use refusals::{Refusal, denied_by_admission, forbidden, webhook_failed};

pub use crate::support::spawn;
use crate::support::{self, node::FromNode};

/// Clones are the same world.
#[derive(Clone)]
pub struct World {
    /// Of users: exempt from faults, and not counted.
    pub client: Client,
    pub clock: Clock,
    pub namespace: String,
    /// Of the controller.
    controller_client: Client,
    node: Node,
    mesh: Mesh,
    requests: Arc<Mutex<Vec<String>>>,
    refusals: Refusals,
    backend: Arc<Backend>,
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

/// Actions of users.
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
        let mut fields = json!({
            "targetRef": {"apiVersion": group, "kind": kind, "name": "web"},
            "analysis": {
                "interval": "2s", "threshold": 2, "stepWeights": [20, 50], "warmup": "0s",
                "metrics": [{"name": "request-success-rate"}, {"name": "request-duration"}],
            },
        });
        json_patch::merge(&mut fields, &spec);
        self.apply(support::objects::canary("web", &fields)).await;
    }

    /// A Canary of the Deployment `web` that is initialized, and its controller.
    pub async fn initialized(&self, spec: Value) -> Running {
        self.canary(spec).await;
        let serin = self.serin().await;
        self.reaches(Phase::Initialized).await;
        self.eventually("web answers", async || self.answers().await).await;
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

    /// As `serin retry` and its siblings do.
    pub async fn command(&self, verb: Verb) {
        let name = CanaryRef { namespace: &self.namespace, name: "web" };
        commands::command(&self.client, &Caller::Current, name, verb, None).await.expect("a command");
    }

    /// Refuses these requests of the controller from now on.
    pub fn refuse(&self, refusal: Refusal) {
        self.refusals.add(refusal);
    }

    /// Refuses nothing any more.
    pub fn refuse_nothing(&self) {
        self.refusals.clear();
    }

    /// Does `web` answer?
    pub async fn answers(&self) -> bool {
        call(&self.mesh, &self.namespace, "web", &[]).await.is_ok()
    }

    /// A hundred requests a second to `web`.
    pub fn traffic(&self) -> Traffic {
        self.callers(&[])
    }

    /// The same, each with these headers.
    pub fn callers(&self, headers: &[(&'static str, &str)]) -> Traffic {
        Traffic::start(self.mesh.clone(), &self.namespace, "web", headers)
    }

    /// The same to the canary's own Service, whatever the weight.
    pub fn direct_traffic(&self) -> Traffic {
        Traffic::start(self.mesh.clone(), &self.namespace, "web-canary", &[])
    }
}

/// The controller.
impl World {
    /// Starts one.
    pub async fn serin(&self) -> Running {
        self.serin_with(self.options()).await
    }

    pub async fn serin_with(&self, options: Options) -> Running {
        self.serin_feeding(LiveInventory::new(DEFAULT_CLUSTER), options).await
    }

    /// One that feeds this inventory once it is wanted.
    pub async fn serin_feeding(&self, inventory: Arc<LiveInventory>, options: Options) -> Running {
        let environment = self.environment(Arc::new(self.scraper()));
        self.serin_in(Environment { inventory, ..environment }, options).await
    }

    /// One that reads the metrics pages of pods in this way.
    pub async fn serin_scraping(&self, fetch: Arc<dyn Fetch>) -> Running {
        self.serin_in(self.environment(fetch), self.options()).await
    }

    /// Reads the metrics pages of pods.
    pub fn scraper(&self) -> FromNode {
        FromNode(self.node.clone())
    }

    fn environment(&self, fetch: Arc<dyn Fetch>) -> Environment {
        let client = self.refusals.client(self.controller_client.clone());
        Environment::new(counting(client, Arc::clone(&self.requests)), self.clock, fetch)
    }

    async fn serin_in(&self, environment: Environment, options: Options) -> Running {
        let controller = Controller::new(environment, Fence::unsharded(), options).await;
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
        let fetch = Arc::new(self.scraper());
        let claim = ReplicaConfig { namespace: self.namespace.clone(), identity: me.to_owned(), shards };
        let (stop, options) = (CancellationToken::new(), self.options());
        let client = counting(self.controller_client.clone(), Arc::clone(&self.requests));
        (stop.clone(), run_replicated(Environment::new(client, self.clock, fetch), options, claim, stop))
    }

    pub fn options(&self) -> Options {
        Options { namespaces: vec![self.namespace.clone()], ..Options::default() }
    }

    /// Requests of the controller so far.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().clone()
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
}

/// Observations.
impl World {
    pub async fn status(&self) -> CanaryStatus {
        let status = self.get("Canary", "web").await["status"].take();
        serde_json::from_value::<Option<_>>(status).expect("a status").unwrap_or_default()
    }

    pub async fn reaches(&self, phase: Phase) -> CanaryStatus {
        self.becomes(&format!("{phase:?}"), |status| status.phase == phase).await
    }

    /// Waits until this release is over and the canary is scaled down.
    pub async fn released(&self, count: u64) -> CanaryStatus {
        let ended = |status: &CanaryStatus| matches!(status.phase, Phase::Succeeded | Phase::Failed);
        let over =
            |status: &CanaryStatus| status.releases == count && status.release.is_none() && ended(status);
        let status = self.becomes(&format!("done with release {count}"), over).await;
        if let Some(after) = status.scale_down_after_release {
            let target = self.get("Canary", "web").await["spec"]["targetRef"].take();
            let [kind, name] = ["kind", "name"].map(|field| target[field].as_str().expect("a name"));
            let emptied = async || {
                let target = self.get(kind, name).await;
                let note = target["metadata"]["annotations"]["serin.dev/scaled-down-after"].as_str();
                note.is_some_and(|note| note.ends_with(&format!("/{after}")))
            };
            self.eventually("the canary's pods go", emptied).await;
        }
        status
    }

    /// Waits until the status satisfies the test.
    pub async fn becomes(&self, what: &str, condition: impl Fn(&CanaryStatus) -> bool) -> CanaryStatus {
        let met = |canary: Option<&Canary>| {
            canary.is_some_and(|canary| condition(&canary.status.clone().unwrap_or_default()))
        };
        let canaries = Api::<Canary>::namespaced(self.client.clone(), &self.namespace);
        match timeout(self.timeout(), await_condition(canaries, "web", met)).await {
            Ok(found) => found.expect("a watch").and_then(|canary| canary.status).unwrap_or_default(),
            Err(_) => {
                panic!(
                    "it never becomes {what}: {:#?}\n{:#?}",
                    self.status().await,
                    self.event_messages().await
                )
            }
        }
    }

    /// Waits until a condition holds.
    pub async fn eventually(&self, what: &str, mut condition: impl AsyncFnMut() -> bool) {
        let deadline = Instant::now() + self.timeout();
        while !condition().await {
            if Instant::now() > deadline {
                panic!("{what}: {:#?}\n{:#?}", self.status().await, self.event_messages().await);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    /// Events of the Canary, as `reason: message`.
    pub async fn event_messages(&self) -> Vec<String> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let mut events = events.list(&ListParams::default()).await.expect("events").items;
        events.retain(|event| event.involved_object.kind.as_deref() == Some("Canary"));
        events.sort_by_key(|event| event.name_any());
        let describe = |event: Event| {
            format!("{}: {}", event.reason.unwrap_or_default(), event.message.unwrap_or_default())
        };
        events.into_iter().map(describe).collect()
    }

    /// Waits until an Event contains the text.
    pub async fn event_contains(&self, text: &str) {
        self.eventually(text, async || {
            self.event_messages().await.iter().any(|message| message.contains(text))
        })
        .await;
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

/// Does this condition hold?
pub fn holds(status: &CanaryStatus, condition: &str) -> ConditionStatus {
    let found = status.conditions.iter().find(|found| found.type_ == condition);
    found.unwrap_or_else(|| panic!("no condition {condition}: {status:#?}")).status
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
