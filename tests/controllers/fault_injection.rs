//! Whole clusters in simulation: paused time, no sockets, and every request of
//! the controllers and the node may go wrong. A failing seed is named; this runs
//! it again: `STORM=<seed> cargo test --test controllers fault_injection::`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::FutureExt;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use kube_local::faults::FaultPlan;
use kube_local::node::{self, Node, NodeOptions};
use kube_local::{ApiServer, Options, controllers};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::support::objects;

const NAMESPACE: &str = "shop";

/// Longer than any back-off.
const SETTLE_TIME: Duration = Duration::from_secs(120);

#[tokio::test(start_paused = true)]
async fn workloads_survive_injected_faults() {
    let seeds = match std::env::var("STORM") {
        Ok(seed) => vec![seed.parse().expect("STORM is a number")],
        Err(_) => (0..8).collect(),
    };
    for seed in seeds {
        let outcome = std::panic::AssertUnwindSafe(check_seed(seed)).catch_unwind().await;
        assert!(outcome.is_ok(), "the storm of seed {seed} did damage; STORM={seed} runs it again");
    }
}

async fn check_seed(seed: u64) {
    let faults = FaultPlan {
        conflict: 0.05,
        too_many_requests: 0.03,
        error_before: 0.05,
        error_after: 0.05,
        slow_request: 0.1,
        slow_response: 0.1,
        latency: Duration::from_millis(300),
        watch_dropped: 0.02,
        watch_delayed: 0.1,
        watch_expired: 0.01,
    };
    let cluster = Simulated::start(seed, faults, |client| client);
    cluster.create_namespace().await;
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": 8080}]},
    });
    objects::create::<Service>(&cluster.client, NAMESPACE, service).await;
    objects::create::<Deployment>(&cluster.client, NAMESPACE, deployment(4)).await;
    sleep(SETTLE_TIME).await;
    cluster.expect_pods(4, "app:v1").await;

    cluster
        .change(json!({"spec": {"template": {"spec": {"containers": [{"name": "app", "image": "app:v2"}]}}}}))
        .await;
    sleep(SETTLE_TIME).await;
    cluster.expect_pods(4, "app:v2").await;

    cluster.change(json!({"spec": {"replicas": 1}})).await;
    sleep(SETTLE_TIME).await;
    cluster.expect_pods(1, "app:v2").await;

    cluster.api::<Deployment>().delete("web", &DeleteParams::foreground()).await.expect("a deletion");
    sleep(SETTLE_TIME).await;
    assert!(
        cluster.api::<Deployment>().get_opt("web").await.expect("an answer").is_none(),
        "the deployment is left"
    );
    assert!(cluster.list::<ReplicaSet>().await.is_empty(), "a replica set is left");
    assert!(cluster.list::<Pod>().await.is_empty(), "a pod is left");

    let namespaces: Api<Namespace> = Api::all(cluster.client.clone());
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await.expect("a deletion");
    sleep(SETTLE_TIME).await;
    assert!(namespaces.get_opt(NAMESPACE).await.expect("an answer").is_none(), "the namespace is left");
}

#[tokio::test(start_paused = true)]
async fn an_idle_cluster_sends_no_requests() {
    let requests = Arc::new(AtomicUsize::new(0));
    let counted = requests.clone();
    let cluster = Simulated::start(1, FaultPlan::default(), move |client| {
        let counted = counted.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let watches = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            counted.fetch_add(usize::from(!watches), Ordering::Relaxed);
            let client = client.clone();
            async move { client.send(request).await }
        });
        Client::new(service, "default")
    });
    cluster.create_namespace().await;
    objects::create::<Deployment>(&cluster.client, NAMESPACE, deployment(3)).await;
    sleep(SETTLE_TIME).await;
    cluster.expect_pods(3, "app:v1").await;
    let before = requests.load(Ordering::Relaxed);
    assert!(before > 0, "the controllers and the node send requests");
    sleep(Duration::from_secs(24 * 3600)).await;
    assert_eq!(requests.load(Ordering::Relaxed) - before, 0, "requests in a day without change");
}

#[tokio::test(start_paused = true)]
async fn pods_answer_without_sockets() {
    let cluster = Simulated::start(1, FaultPlan::default(), |client| client);
    cluster.create_namespace().await;
    objects::create::<Deployment>(&cluster.client, NAMESPACE, deployment(1)).await;
    sleep(SETTLE_TIME).await;
    let pod = cluster.list::<Pod>().await.remove(0);
    let ip = pod.status.and_then(|status| status.pod_ip).expect("an address");
    let to = |port| format!("{ip}:{port}").parse().expect("an address");
    let request = || http::Request::get("/").body(axum::body::Body::empty()).expect("a request");
    assert_eq!(cluster.node.call(to(8080), request()).await.expect("an answer").status(), 200);
    assert!(cluster.node.call(to(81), request()).await.is_err());
    cluster.change(json!({"spec": {"replicas": 0}})).await;
    sleep(SETTLE_TIME).await;
    assert!(cluster.node.call(to(8080), request()).await.is_err());
}

/// A server, its controllers and a node; it ends when dropped.
struct Simulated {
    node: Node,
    /// Spared by faults.
    client: Client,
    _tasks: [AbortOnDropHandle<()>; 2],
}

impl Simulated {
    fn start(seed: u64, faults: FaultPlan, through: impl Fn(Client) -> Client) -> Simulated {
        let local = ApiServer::new(Options { seed, faults, ..Options::default() });
        let options =
            NodeOptions { clock: local.clock(), listen: false, seed, ..NodeOptions::named(node::NAME) };
        let node = Node::new(through(local.client()), options);
        let options = controllers::Options { clock: local.clock(), nodes: vec![node::NAME.to_owned()] };
        let controllers = tokio::spawn(controllers::run(through(local.client()), options));
        let runs = node.clone();
        let running = tokio::spawn(async move { runs.run().await });
        let _tasks = [controllers, running].map(AbortOnDropHandle::new);
        Simulated { node, client: local.fault_exempt_client(), _tasks }
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    async fn create_namespace(&self) {
        let shop = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}})).expect("a Namespace");
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &shop).await.expect("a namespace");
    }

    async fn change(&self, patch: serde_json::Value) {
        let patched =
            self.api::<Deployment>().patch("web", &PatchParams::default(), &Patch::Strategic(patch)).await;
        patched.expect("a change");
    }

    async fn list<K>(&self) -> Vec<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + DeserializeOwned,
    {
        self.api::<K>().list(&ListParams::default()).await.expect("a list").items
    }

    /// Exactly these pods are ready, with this image, and in the EndpointSlices.
    async fn expect_pods(&self, count: usize, image: &str) {
        let pods = self.list::<Pod>().await;
        let images: Vec<_> = pods
            .iter()
            .flat_map(|pod| pod.spec.iter().flat_map(|spec| &spec.containers))
            .map(|container| container.image.as_deref())
            .collect();
        assert_eq!(images, vec![Some(image); count]);
        let ready = |pod: &Pod| {
            pod.status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten())
                .any(|condition| condition.type_ == "Ready" && condition.status == "True")
        };
        assert!(pods.iter().all(ready), "a pod is not ready");
        let deployment = self.api::<Deployment>().get("web").await.expect("the deployment");
        let status = deployment.status.expect("a status");
        let wanted = Some(i32::try_from(count).expect("a small number"));
        assert_eq!(
            (status.replicas, status.updated_replicas, status.available_replicas),
            (wanted, wanted, wanted)
        );
        assert_eq!(status.observed_generation, deployment.metadata.generation);
        for slice in self.list::<EndpointSlice>().await {
            let mut endpoints: Vec<_> = slice
                .endpoints
                .iter()
                .map(|endpoint| endpoint.target_ref.as_ref().and_then(|to| to.name.clone()))
                .collect();
            endpoints.sort();
            assert_eq!(endpoints, pods.iter().map(|pod| Some(pod.name_any())).collect::<Vec<_>>());
            assert!(
                slice
                    .endpoints
                    .iter()
                    .all(|endpoint| endpoint.conditions.as_ref().and_then(|now| now.ready) == Some(true))
            );
        }
    }
}

fn deployment(replicas: i32) -> serde_json::Value {
    json!({"metadata": {"name": "web"}, "spec": {
        "replicas": replicas,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "app", "image": "app:v1"}]},
        },
    }})
}
