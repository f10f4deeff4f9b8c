//! The demo's environment in this process: API server, node with pods, mesh,
//! controller, and a kubeconfig for kubectl.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use axum::body::Body;
use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::BoxStream;
use http::{Request, Uri};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, Patch, PatchParams};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::{Scope, pinned_kind};
use kube::runtime::wait::{await_condition, conditions};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, ResourceExt as _};
use serde_json::json;
use tokio_util::task::AbortOnDropHandle;

use super::manifests::{self, Manifests};
use crate::api::{self, Canary, CanaryStatus};
use crate::clock::Clock;
use crate::controller::{self, Controller, Environment, fence::Fence};
use crate::metrics::scrape::Fetch;
use kube_local::mesh::Mesh;
use kube_local::node::Node;
use kube_local::serve::ApiServerHandle;
use kube_local::{ApiServer, Cluster};

const FIELD_MANAGER: &str = "serin-demo";

/// CRDs are established at once; longer is a bug.
const CRD_ESTABLISHED_TIMEOUT: Duration = Duration::from_secs(10);

/// Everything stops when dropped.
pub struct Stage {
    pub mesh: Mesh,
    pub kubeconfig: PathBuf,
    client: Client,
    _tasks: [AbortOnDropHandle<()>; 2],
    _cluster: Cluster,
    _serving: ApiServerHandle,
}

impl Stage {
    /// Serves the API on `address` and starts everything.
    pub async fn start(address: SocketAddr) -> anyhow::Result<Self> {
        let seed = random_seed();
        let server =
            ApiServer::new(kube_local::Options { clock: Some(Clock::system()), seed, ..Default::default() });
        let serving = server.serve(address).await?;
        let kubeconfig =
            std::env::temp_dir().join(format!("serin-demo-{}.kubeconfig", serving.address.port()));
        serving.write_kubeconfig(&kubeconfig)?;
        let cluster = server.start_cluster(true);
        let client = server.client();
        let (mesh, mesh_task) = start_mesh(&client, &cluster, seed).await?;
        let fetch = Arc::new(PodFetch(cluster.node.clone()));
        let options = controller::Options::default();
        let environment = Environment::new(client.clone(), server.clock(), fetch);
        let controller = Controller::new(environment, Fence::unsharded(), options).await?;
        let controller_task = tokio::spawn(controller.run(std::future::pending()));
        Ok(Self {
            mesh,
            kubeconfig,
            client,
            _tasks: [mesh_task, AbortOnDropHandle::new(controller_task)],
            _cluster: cluster,
            _serving: serving,
        })
    }

    /// Like `kubectl apply`.
    pub async fn apply(&self, manifests: &Manifests) -> anyhow::Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": manifests.namespace}});
        namespaces
            .patch(&manifests.namespace, &apply_params(), &Patch::Apply(namespace))
            .await
            .with_context(|| format!("create the namespace {}", manifests.namespace))?;
        for object in &manifests.objects {
            let name = object.name_any();
            self.apply_one(object.clone()).await.with_context(|| {
                format!("apply the {} {name}", object.types.as_ref().map_or("object", |types| &types.kind))
            })?;
        }
        Ok(())
    }

    async fn apply_one(&self, mut object: DynamicObject) -> anyhow::Result<()> {
        let types = object.types.as_ref().context("it has no apiVersion or no kind")?;
        let kind = GroupVersionKind::try_from(types).context("its apiVersion is invalid")?;
        let (resource, capabilities) = pinned_kind(&self.client, &kind).await?;
        let objects: Api<DynamicObject> = match (capabilities.scope, object.namespace()) {
            (Scope::Namespaced, Some(namespace)) => {
                Api::namespaced_with(self.client.clone(), &namespace, &resource)
            }
            _ => {
                object.metadata.namespace = None;
                Api::all_with(self.client.clone(), &resource)
            }
        };
        objects.patch(&object.name_any(), &apply_params(), &Patch::Apply(&object)).await?;
        Ok(())
    }

    /// Like `kubectl set image`.
    pub async fn set_image(&self, manifests: &Manifests, image: &str) -> anyhow::Result<()> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), &manifests.namespace);
        let containers = json!([{"name": manifests.container, "image": image}]);
        let patch = json!({"spec": {"template": {"spec": {"containers": containers}}}});
        deployments
            .patch(&manifests.deployment, &PatchParams::default(), &Patch::Strategic(patch))
            .await
            .with_context(|| format!("set the image of {} to {image}", manifests.deployment))?;
        Ok(())
    }

    /// The status of the Canary, now and whenever it changes.
    pub fn watch_status(&self, manifests: &Manifests) -> BoxStream<'static, CanaryStatus> {
        let canaries: Api<Canary> = Api::namespaced(self.client.clone(), &manifests.namespace);
        let config = watcher::Config::default().fields(&format!("metadata.name={}", manifests.canary));
        watcher(canaries, config)
            .default_backoff()
            .applied_objects()
            // The watcher restarts a broken watch.
            .filter_map(async |canary| Some(canary.ok()?.status.unwrap_or_default()))
            .boxed()
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.kubeconfig);
    }
}

/// The definitions of Serin and of TrafficSplits, and a mesh that follows them until the
/// handle is dropped.
pub async fn start_mesh(
    client: &Client,
    cluster: &Cluster,
    seed: u64,
) -> anyhow::Result<(Mesh, AbortOnDropHandle<()>)> {
    for crd in api::crds() {
        install_crd(client, &crd).await?;
    }
    install_crd(client, &manifests::traffic_split()?).await?;
    let mesh = Mesh::new(client.clone(), traffic_splits(), None, cluster.node.clone(), seed);
    let running = tokio::spawn({
        let mesh = mesh.clone();
        async move { mesh.run().await }
    });
    Ok((mesh, AbortOnDropHandle::new(running)))
}

/// Scrapes pods without a network.
struct PodFetch(Node);

#[async_trait]
impl Fetch for PodFetch {
    async fn fetch(&self, url: &str, limit: usize) -> Result<Bytes, String> {
        let uri: Uri = url.parse().map_err(|_| format!("{url} is not a URL"))?;
        let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
        let address = authority.parse().map_err(|_| format!("{authority} is not the address of a pod"))?;
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = uri;
        let response = self.0.call(address, request).await.map_err(|error| error.to_string())?;
        if !response.status().is_success() {
            return Err(format!("it responded {}", response.status()));
        }
        let body = Limited::new(response.into_body(), limit).collect().await;
        Ok(body.map_err(|error| error.to_string())?.to_bytes())
    }
}

/// Different in each run: the operating system seeds the keys of hashes.
pub fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, RandomState};
    RandomState::new().hash_one(0)
}

fn apply_params() -> PatchParams {
    PatchParams::apply(FIELD_MANAGER).force()
}

fn traffic_splits() -> ApiResource {
    ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("split.smi-spec.io", "v1alpha4", "TrafficSplit"),
        "trafficsplits",
    )
}

async fn install_crd(client: &Client, crd: &CustomResourceDefinition) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.name_any();
    definitions
        .patch(&name, &apply_params(), &Patch::Apply(crd))
        .await
        .with_context(|| format!("install the CRD {name}"))?;
    let established = await_condition(definitions, &name, conditions::is_crd_established());
    tokio::time::timeout(CRD_ESTABLISHED_TIMEOUT, established)
        .await
        .with_context(|| format!("{name} is not served after {CRD_ESTABLISHED_TIMEOUT:?}"))??;
    Ok(())
}
