//! A cluster in this process with a Deployment `web` under traffic, a controller, and its
//! page; users with different rights.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::Body;
use http::Request;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube_local::access::{Grant, Identity};
use kube_local::{ApiServer, Cluster};
use serde_json::{Value, json};
use serin::api::Canary;
use serin::api::canary::Phase;
use serin::controller::fence::Fence;
use serin::controller::{self, Controller, Environment};
use serin::server::{self, Access, BoardSources, BoundServer, ServerHandle};
use serin::telemetry::Telemetry;
use tokio_util::task::AbortOnDropHandle;

use crate::support::node::FromNode;
use crate::support::{definitions, objects};

/// Everything is slow on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(240);
const NAMESPACE: &str = "default";

pub struct World {
    pub api_server: ApiServer,
    pub client: Client,
    pub telemetry: Arc<Telemetry>,
    cluster: Cluster,
}

fn grant(subject: &str, verb: &str, group: &str, resource: &str, namespace: &str) -> Grant {
    let [subject, verb, group, resource, namespace] =
        [subject, verb, group, resource, namespace].map(str::to_owned);
    Grant { subject, verb, group, resource, namespace }
}

impl World {
    /// Olga operates everything, Vera views, Nora may do nothing.
    pub async fn new() -> Self {
        serin::tls::install_crypto_provider();
        let known = |name: &str| {
            (format!("token-of-{name}"), Identity { user: name.to_owned(), groups: vec!["staff".to_owned()] })
        };
        let views = |who| {
            vec![
                grant(who, "*", "serin.dev", "canaries", "*"),
                grant(who, "get", "apps", "deployments", "*"),
                grant(who, "list", "", "pods", "*"),
                grant(who, "list", "", "events", "*"),
            ]
        };
        let mut grants = [views("olga"), views("vera")].concat();
        grants.push(grant("olga", "update", "serin.dev", "canaries/approve", "*"));
        let users = Vec::from(["olga", "vera", "nora"].map(known));
        let api_server =
            ApiServer::new(kube_local::Options { users, grants, ..kube_local::Options::default() });
        let (cluster, client) = (api_server.start_cluster(false), api_server.client());
        let world = Self { api_server, client, telemetry: Arc::default(), cluster };
        definitions::install(&world.client, definitions::ours().into_iter().chain(definitions::smi())).await;
        world
    }

    pub async fn with_web(self) -> Self {
        objects::create::<Deployment>(&self.client, NAMESPACE, objects::deployment("web", "shop/web:v1"))
            .await;
        self
    }

    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), NAMESPACE)
    }

    pub async fn canary(&self, spec: Value) {
        objects::create::<Canary>(&self.client, NAMESPACE, objects::canary("web", &spec)).await;
    }

    /// As a person pushes a new image.
    pub async fn push(&self, image: &str) {
        let patch =
            json!({"spec": {"template": {"spec": {"containers": [{"name": "web", "image": image}]}}}});
        let patch = Patch::Strategic(patch);
        self.api::<Deployment>().patch("web", &PatchParams::default(), &patch).await.expect("a push");
    }

    /// Starts a controller; dropped, it is as if killed.
    pub async fn start(&self) -> AbortOnDropHandle<()> {
        let fetch = Arc::new(FromNode(self.cluster.node.clone()));
        let environment = Environment {
            telemetry: Arc::clone(&self.telemetry),
            ..Environment::new(self.client.clone(), self.api_server.clock(), fetch)
        };
        let controller = Controller::new(environment, Fence::unsharded(), controller::Options::default());
        let controller = controller.await.expect("a controller");
        AbortOnDropHandle::new(tokio::spawn(controller.run(std::future::pending())))
    }

    pub fn access(&self) -> Arc<Access> {
        Access::by_token(self.client.clone(), Vec::new())
    }

    /// The page and its API, at this address or any.
    pub async fn serve(&self, port: u16) -> ServerHandle {
        let server = BoundServer::bind(([127, 0, 0, 1], port).into()).await.expect("a free port");
        let clock = self.api_server.clock();
        let router = router(self.access(), &self.telemetry, Arc::new(move || clock.now()), None);
        server.for_viewers().serve(router, None)
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

    pub async fn reaches(&self, phase: Phase) {
        let began = Instant::now();
        loop {
            let canary = self.api::<Canary>().get("web").await.expect("the Canary");
            let status = canary.status.unwrap_or_default();
            if status.phase == phase {
                return;
            }
            assert!(began.elapsed() < TIMEOUT, "it never becomes {phase:?}: {status:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// With the name of the provider to sign in at.
pub fn router(
    access: Arc<Access>,
    telemetry: &Telemetry,
    clock: Now,
    provider: Option<&str>,
) -> axum::Router {
    server::command_router(Arc::clone(&access), &[])
        .merge(server::board_router(BoardSources {
            access,
            live: Arc::clone(&telemetry.live),
            cluster: "test".to_owned(),
            clock,
            inventory: false,
        }))
        .merge(server::dashboard::dashboard_router(provider))
}

/// The page for one user: their token is in the part of the address that is not sent.
pub fn url(server: &ServerHandle, user: &str) -> String {
    format!("http://{}/#token=token-of-{user}", server.address)
}
