//! A cluster with a Deployment `web`, requests to its pods, a controller, and its
//! HTTP pages.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube_local::{ApiServer, Cluster};
use serde_json::{Value, json};
use serin::api::canary::{CanaryStatus, Phase};
use serin::api::{AlertProvider, Canary};
use serin::controller::fence::Fence;
use serin::controller::membership::ReplicaConfig;
use serin::controller::{self, Controller, Environment, run_replicated};
use serin::metrics::scrape::Fetch;
use serin::server::{self, BoundServer, ServerHandle};
use serin::telemetry::Telemetry;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tower::BoxError;

use crate::support::node::FromNode;
use crate::support::{definitions, objects};

/// Everything is slow on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(240);

const NAMESPACE: &str = "default";

pub struct World {
    pub api_server: ApiServer,
    pub client: Client,
    pub vitals: Arc<Telemetry>,
    cluster: Cluster,
}

impl World {
    /// With `web:v1` deployed, two pods of it.
    pub async fn new() -> Self {
        serin::tls::install_crypto_provider();
        let local = ApiServer::new(kube_local::Options::default());
        let (cluster, client) = (local.start_cluster(false), local.client());
        let world = Self { api_server: local, client, vitals: Arc::default(), cluster };
        let definitions = definitions::ours().into_iter().chain(definitions::smi());
        definitions::install(&world.client, definitions).await;
        objects::create::<Deployment>(&world.client, NAMESPACE, objects::deployment("web", "web:v1")).await;
        world
    }

    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    /// A Canary `name` of `web` with these fields beside those it needs.
    pub async fn canary(&self, name: &str, spec: Value) {
        let mut fields = json!({
            "analysis": {
                "interval": "1s", "warmup": "0s", "threshold": 2, "stepWeights": [10, 30],
                "metrics": [{"name": "request-success-rate"}],
            },
        });
        json_patch::merge(&mut fields, &spec);
        objects::create::<Canary>(&self.client, NAMESPACE, objects::canary(name, &fields)).await;
    }

    pub async fn edit(&self, name: &str, spec: Value) {
        let patch = Patch::Merge(json!({ "spec": spec }));
        self.api::<Canary>().patch(name, &PatchParams::default(), &patch).await.expect("an edit");
    }

    pub async fn delete_canary(&self, name: &str) {
        self.api::<Canary>().delete(name, &DeleteParams::default()).await.expect("a deletion");
    }

    pub async fn alert_provider(&self, url: &str) {
        let provider = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "AlertProvider", "metadata": {"name": "chat"},
            "spec": {"type": "slack", "channel": "releases", "address": url},
        });
        objects::create::<AlertProvider>(&self.client, NAMESPACE, provider).await;
    }

    /// As a person pushes a new image.
    pub async fn push(&self, image: &str) {
        let patch =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
        let patch = Patch::Strategic(patch);
        self.api::<Deployment>().patch("web", &PatchParams::default(), &patch).await.expect("a push");
    }

    pub async fn controller(&self, client: Client) -> Controller {
        let options = controller::Options::default();
        self.controller_with(client, options).await
    }

    pub async fn controller_with(&self, client: Client, options: controller::Options) -> Controller {
        let namespace = client.default_namespace().to_owned();
        let service = tower::service_fn(move |request| {
            let client = client.clone();
            async move { client.send(request).await.map_err(BoxError::from) }
        });
        let client = Client::new(self.vitals.count_requests(service), namespace);
        let environment = Environment {
            telemetry: Arc::clone(&self.vitals),
            ..Environment::new(client, self.api_server.clock(), self.fetch())
        };
        Controller::new(environment, Fence::unsharded(), options).await.expect("a controller")
    }

    /// Starts a controller; dropped, it is as if killed.
    pub async fn start(&self) -> AbortOnDropHandle<()> {
        let controller = self.controller(self.client.clone()).await;
        AbortOnDropHandle::new(tokio::spawn(controller.run(std::future::pending())))
    }

    /// Starts one replica of several, and its pages, until the token is cancelled.
    pub async fn replica(&self, me: &str, shards: u32) -> (Pages, CancellationToken, JoinHandle<()>) {
        let options = controller::Options::default();
        let environment = Environment::new(self.client.clone(), self.api_server.clock(), self.fetch());
        let pages = pages(Arc::clone(&environment.telemetry), server::Options::default()).await;
        let claim = ReplicaConfig { namespace: "default".to_owned(), identity: me.to_owned(), shards };
        let stop = CancellationToken::new();
        let run = run_replicated(environment, options, claim, stop.clone());
        (pages, stop, tokio::spawn(async move { run.await.expect("a replica") }))
    }

    pub async fn pages(&self, options: server::Options) -> Pages {
        pages(Arc::clone(&self.vitals), options).await
    }

    fn fetch(&self) -> Arc<dyn Fetch> {
        Arc::new(FromNode(self.cluster.node.clone()))
    }

    /// Calls every pod again and again, until dropped.
    pub fn traffic(&self) -> AbortOnDropHandle<()> {
        let (pods, node): (Api<Pod>, _) = (self.api(), self.cluster.node.clone());
        AbortOnDropHandle::new(tokio::spawn(async move {
            loop {
                let pods = pods.list(&ListParams::default()).await.expect("pods");
                let address =
                    |pod: &Pod| format!("{}:8080", pod.status.as_ref()?.pod_ip.as_ref()?).parse().ok();
                for to in pods.items.iter().filter_map(address) {
                    for _ in 0..20 {
                        let request = Request::get("/").body(Body::empty()).expect("a request");
                        // One that does not listen yet is called again.
                        let _ = node.call(to, request).await;
                    }
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }))
    }

    /// As an approver does.
    pub async fn approve_when_asked(&self, name: &str, gate: &str) {
        let began = Instant::now();
        loop {
            let canary = self.api::<Canary>().get(name).await.expect("the Canary");
            let status = canary.status.unwrap_or_default();
            let Some(asked) = status.gates.iter().find(|known| known.name == gate) else {
                assert!(began.elapsed() < TIMEOUT, "{gate} is never reached: {status:#?}");
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let approval = json!([{
                "release": status.releases, "gate": gate, "step": asked.step, "answer": "yes",
                "at": "2025-03-01T09:00:00Z",
            }]);
            let annotations = json!({"serin.dev/approvals": approval.to_string()});
            let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
            self.api::<Canary>().patch(name, &PatchParams::default(), &patch).await.expect("an approval");
            return;
        }
    }

    pub async fn reaches(&self, name: &str, phase: Phase) -> CanaryStatus {
        let began = Instant::now();
        loop {
            let canary = self.api::<Canary>().get(name).await.expect("the Canary");
            let status = canary.status.unwrap_or_default();
            if status.phase == phase {
                return status;
            }
            assert!(began.elapsed() < TIMEOUT, "it never becomes {phase:?}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

async fn pages(vitals: Arc<Telemetry>, options: server::Options) -> Pages {
    let server = BoundServer::bind(([127, 0, 0, 1], 0).into()).await.expect("a free port");
    Pages { serving: server.serve(server::metrics_router(vitals, options), None) }
}

/// The HTTP pages of a controller.
pub struct Pages {
    pub serving: ServerHandle,
}

pub struct PageResponse {
    pub code: u16,
    pub kind: String,
    pub text: String,
}

impl Pages {
    pub async fn get(&self, path: &str) -> PageResponse {
        get(&format!("http://{}{path}", self.serving.address), "*/*").await
    }

    /// Every series, by name and labels as they are written.
    pub async fn series(&self) -> Series {
        let answer = self.get("/metrics").await;
        assert_eq!((answer.code, answer.kind.as_str()), (200, "text/plain; version=0.0.4; charset=utf-8"));
        Series::of(&answer.text)
    }

    /// Waits until a page has this status.
    pub async fn becomes(&self, path: &str, code: u16, says: &str) {
        let began = Instant::now();
        loop {
            let answer = self.get(path).await;
            if answer.code == code && answer.text.contains(says) {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "{path}: {} {}", answer.code, answer.text);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until a series has a value.
    pub async fn shows(&self, series: &str, value: f64) -> Series {
        let began = Instant::now();
        loop {
            let shown = self.series().await;
            if shown.0.get(series) == Some(&value) {
                return shown;
            }
            assert!(began.elapsed() < TIMEOUT, "{series} is not {value}: {:#?}", shown.0);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

pub async fn get(url: &str, accept: &str) -> PageResponse {
    let client = reqwest::Client::builder().no_proxy().timeout(TIMEOUT).build().expect("an HTTP client");
    let answer = client.get(url).header("accept", accept).send().await;
    let answer = answer.unwrap_or_else(|error| panic!("{url}: {error:?}"));
    let kind = answer.headers().get("content-type").map(|kind| kind.to_str().expect("text").to_owned());
    PageResponse {
        code: answer.status().as_u16(),
        kind: kind.unwrap_or_default(),
        text: answer.text().await.expect("a body"),
    }
}

pub struct Series(pub BTreeMap<String, f64>);

impl Series {
    pub fn of(text: &str) -> Self {
        let mut series = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line} is no series"));
            let value = value.parse().unwrap_or_else(|_| panic!("{line} has no number"));
            assert_eq!(series.insert(name.to_owned(), value), None, "{name} is there twice");
        }
        Self(series)
    }

    #[track_caller]
    pub fn is(&self, series: &str, value: f64) {
        assert_eq!(self.0.get(series), Some(&value), "{series}: {:#?}", self.0);
    }

    #[track_caller]
    pub fn at_least(&self, series: &str, value: f64) {
        assert!(self.0.get(series).is_some_and(|shown| *shown >= value), "{series}: {:#?}", self.0);
    }

    pub fn containing(&self, word: &str) -> Vec<&String> {
        self.0.keys().filter(|series| series.contains(word)).collect()
    }
}
