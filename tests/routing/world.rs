//! The fixture of one test: a namespace, a Canary in it, and a router.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use serin::api::{Canary, Weight};
use serin::engine::action::{Split, Stable};
use serin::object_cache::ObjectCache;
use serin::routing::{Capabilities, Error, ObjectKey, PodSelectors, RouteContext, Router, ServicesMemo};
use tokio::sync::Mutex;

use crate::external_mesh;
use crate::routers::RouterCase;
use crate::support::app_mesh::AppMeshServer;
use crate::support::route_status::{self, Implementation};
use crate::support::{Cluster, definitions};

pub struct World {
    pub client: Client,
    pub namespace: String,
    pub case: RouterCase,
    pub canary: Canary,
    pub selectors: PodSelectors,
    /// Kept between reconciles, as the controller does.
    services_memo: ServicesMemo,
}

/// The objects that the reflectors would have: all that the router watches.
#[derive(Clone, Default)]
pub struct CachedObjects(HashMap<ObjectKey, Arc<DynamicObject>>);

impl ObjectCache for CachedObjects {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.0.get(&ObjectKey { kind: kind.clone(), namespace, name }).cloned()
    }

    fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        let is_meant = |key: &ObjectKey| key.kind == *kind && key.namespace == namespace;
        let mut found: Vec<_> = self.0.iter().filter(|(key, _)| is_meant(key)).collect();
        found.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        found.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    fn apply_write_response(&self, _: &ApiResource, _: DynamicObject) {}
}

impl World {
    pub async fn new(cluster: &Cluster, case: RouterCase) -> World {
        let client = cluster.client().await;
        install_definitions(cluster, &client).await;
        let namespace = cluster.namespace("routing").await;
        let pods = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let selectors = PodSelectors {
            primary: pods("web-primary"),
            canary: pods("web"),
            previous: pods("web-previous"),
            ports: BTreeMap::from([("http".to_owned(), 8080), ("admin".to_owned(), 9090)]),
        };
        let mut spec = json!({
            "provider": case.provider,
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80, "targetPort": 8080},
            "analysis": {"iterations": 1},
        });
        json_patch::merge(&mut spec["service"], &case.service);
        let canary = create_canary(&client, &namespace, "web", spec).await;
        World { client, namespace, case, canary, selectors, services_memo: ServicesMemo::default() }
    }

    pub fn router(&self) -> &dyn Router {
        &*self.case.router
    }

    pub fn capabilities(&self) -> Capabilities {
        self.router().capabilities(&self.canary)
    }

    /// The route object: the apex Service if there is no other.
    pub fn route(&self) -> ObjectKey {
        if self.case.mesh.is_some() {
            return external_mesh::object_key(&self.namespace, "Route", "web");
        }
        let objects = self.router().objects(&self.canary);
        objects.iter().find(|object| object.kind.kind != "Service").unwrap_or(&objects[0]).clone()
    }

    /// Every object that the router writes, also outside the cluster.
    pub fn objects(&self) -> Vec<ObjectKey> {
        let mut objects = self.router().objects(&self.canary);
        if self.case.mesh.is_some() {
            objects.extend(external_mesh::objects(&self.namespace));
        }
        objects
    }

    /// The number of writes outside the cluster.
    pub fn external_writes(&self) -> usize {
        self.case.mesh.as_ref().map_or(0, |mesh| mesh.writes())
    }

    pub fn service(&self, name: &str) -> ObjectKey {
        let kind = ApiResource::erase::<Service>(&());
        ObjectKey { kind, namespace: self.namespace.clone(), name: name.to_owned() }
    }

    pub async fn cached_objects(&self) -> CachedObjects {
        self.router().refresh(&self.canary).await.unwrap_or_else(|error| panic!("refresh: {error}"));
        let mut cached = HashMap::new();
        for name in self.router().objects(&self.canary) {
            if let Some(object) = self.find(&name).await {
                cached.insert(name, Arc::new(object));
            }
        }
        CachedObjects(cached)
    }

    /// The split in force once the controllers of the mesh have reported.
    pub async fn split(&self) -> Option<Split> {
        let route = self.route();
        match route.kind.group.as_str() {
            "gateway.networking.k8s.io" => self.report_parents_ready(&route).await,
            "appmesh.k8s.aws" => self.report_mesh_active(&route, "True").await,
            "serin.dev" => self.report_acknowledged(&route).await,
            _ => {}
        }
        self.split_in(&self.cached_objects().await)
    }

    /// Writes the status as the controllers of a route's parents would.
    pub async fn report_parents_ready(&self, route: &ObjectKey) {
        let Some(live) = self.find(route).await else { return };
        self.write_status(route, route_status::parent_status(&json!(live))).await;
    }

    /// Writes the status as this implementation would.
    pub async fn report_as(&self, route: &ObjectKey, by: &Implementation, backends_exist: bool) {
        let live = self.get(route).await;
        self.write_status(route, by.status(&json!(live), backends_exist)).await;
    }

    /// Writes the status as the App Mesh controller would.
    pub async fn report_mesh_active(&self, router: &ObjectKey, active: &str) {
        let Some(live) = self.find(router).await else { return };
        self.write_status(router, route_status::app_mesh_status(&json!(live), active)).await;
    }

    /// Writes the status as the replicas would once all of their proxies have
    /// acknowledged the route.
    pub async fn report_acknowledged(&self, route: &ObjectKey) {
        let Some(generation) = self.find(route).await.and_then(|live| live.metadata.generation) else {
            return;
        };
        let replica =
            |name: &str| json!({"name": name, "generation": generation, "proxies": 2, "acknowledged": 2});
        self.write_status(route, json!({"replicas": [replica("serin-0"), replica("serin-1")]})).await;
    }

    pub async fn write_status(&self, object: &ObjectKey, status: Value) {
        let params = PatchParams { field_manager: Some("mesh".to_owned()), ..Default::default() };
        let patch = Patch::Merge(json!({"status": status}));
        let written = self.api(object).patch_status(&object.name, &params, &patch).await;
        written.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub fn split_in(&self, cache: &CachedObjects) -> Option<Split> {
        self.router().effective_split(&self.route_context(), cache)
    }

    /// Sets a split and asserts that it is in force.
    #[track_caller]
    pub fn set<'a>(&'a self, split: &'a Split) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            self.try_set(split).await.unwrap_or_else(|error| panic!("{caller}: {error}"));
            assert_eq!(self.split().await.as_ref(), Some(split), "{caller}");
        }
    }

    pub async fn try_set(&self, split: &Split) -> Result<(), Error> {
        self.set_from(&self.cached_objects().await, split).await
    }

    pub async fn set_from(&self, cache: &CachedObjects, split: &Split) -> Result<(), Error> {
        self.router().apply_split(&self.client, &self.route_context(), cache, split).await
    }

    pub fn route_context(&self) -> RouteContext<'_> {
        RouteContext {
            canary: &self.canary,
            pod_selectors: &self.selectors,
            services_memo: Some(&self.services_memo),
        }
    }

    pub async fn restore(&self) {
        let cache = self.cached_objects().await;
        self.router().restore(&self.client, &self.canary, &cache).await.unwrap();
        assert!(self.is_restored().await, "restored");
    }

    pub async fn is_restored(&self) -> bool {
        self.router().is_restored(&self.canary, &self.cached_objects().await)
    }

    /// Changes the spec of the Canary by a merge patch.
    pub async fn edit(&mut self, spec: Value) {
        let canaries = Api::<Canary>::namespaced(self.client.clone(), &self.namespace);
        let patch = Patch::Merge(json!({"spec": spec}));
        self.canary = canaries.patch(&self.canary.name_any(), &PatchParams::default(), &patch).await.unwrap();
    }

    /// Changes the status of the Canary by a merge patch.
    pub async fn edit_status(&mut self, status: Value) {
        let canaries = Api::<Canary>::namespaced(self.client.clone(), &self.namespace);
        let patch = Patch::Merge(json!({"status": status}));
        let written = canaries.patch_status(&self.canary.name_any(), &PatchParams::default(), &patch).await;
        self.canary = written.unwrap();
    }

    pub fn api(&self, object: &ObjectKey) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &object.namespace, &object.kind)
    }

    pub async fn find(&self, object: &ObjectKey) -> Option<DynamicObject> {
        if let Some(mesh) = self.mesh_of(object) {
            return external_mesh::find(mesh, object, &self.canary);
        }
        self.api(object).get_opt(&object.name).await.unwrap_or_else(|error| panic!("{object}: {error}"))
    }

    pub async fn get(&self, object: &ObjectKey) -> DynamicObject {
        self.find(object).await.unwrap_or_else(|| panic!("{object} does not exist"))
    }

    fn mesh_of(&self, object: &ObjectKey) -> Option<&AppMeshServer> {
        self.case.mesh.as_ref().filter(|_| object.kind.group == external_mesh::GROUP)
    }

    /// Creates an object as another client.
    pub async fn create(&self, object: &ObjectKey, body: Value) -> DynamicObject {
        if let Some(mesh) = self.mesh_of(object) {
            external_mesh::create(mesh, object, &body);
            return self.get(object).await;
        }
        let mut manifest = body;
        manifest["apiVersion"] = json!(object.kind.api_version);
        manifest["kind"] = json!(object.kind.kind);
        manifest["metadata"]["name"] = json!(object.name);
        let new = serde_json::from_value(manifest).expect("an object");
        self.api(object)
            .create(&PostParams::default(), &new)
            .await
            .unwrap_or_else(|e| panic!("{object}: {e}"))
    }

    /// Patches an object as another client.
    pub async fn patch_as_user(&self, object: &ObjectKey, patch: &Value) {
        if let Some(mesh) = self.mesh_of(object) {
            return external_mesh::patch_as_user(mesh, object, patch);
        }
        let params = PatchParams { field_manager: Some("other-client".to_owned()), ..Default::default() };
        let written = self.api(object).patch(&object.name, &params, &Patch::Merge(patch)).await;
        written.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub async fn delete(&self, object: &ObjectKey) {
        if let Some(mesh) = self.mesh_of(object) {
            return mesh.as_user(|user| user.delete(&external_mesh::path(object)));
        }
        self.api(object).delete(&object.name, &Default::default()).await.unwrap();
    }

    /// 10 %, or 100 % if the router can only switch.
    pub fn partial_weight(&self) -> Weight {
        let ten = Weight::from_percent(10.0).unwrap();
        if self.capabilities().finest_weight <= ten { ten } else { Weight::FULL }
    }

    pub async fn selector(&self, service: &str) -> Value {
        self.get(&self.service(service)).await.data["spec"]["selector"].clone()
    }
}

/// The fields of an object that users write and that must be restored.
pub fn user_fields(object: &DynamicObject) -> Value {
    json!({"labels": object.labels(), "annotations": object.annotations(), "spec": object.data["spec"]})
}

pub fn previous() -> Split {
    Split { stable: Stable::Previous, ..Split::all_primary() }
}

pub async fn create_canary(client: &Client, namespace: &str, name: &str, spec: Value) -> Canary {
    let manifest = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": name}, "spec": spec,
    });
    let canary: Canary = serde_json::from_value(manifest).expect("a Canary");
    let canaries = Api::namespaced(client.clone(), namespace);
    canaries.create(&PostParams::default(), &canary).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Installs our definitions and those of every mesh, once per cluster.
async fn install_definitions(cluster: &Cluster, client: &Client) {
    static DEFINED: Mutex<BTreeSet<PathBuf>> = Mutex::const_new(BTreeSet::new());
    let mut defined = DEFINED.lock().await;
    if defined.insert(cluster.kubeconfig()) {
        let all = definitions::ours().into_iter().chain(definitions::smi()).chain(definitions::gateway());
        definitions::install(client, all.chain(definitions::istio()).chain(definitions::app_mesh())).await;
    }
}

/// A client that counts its requests.
pub fn counting_client(client: &Client) -> (Client, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let (client, counter) = (client.clone(), count.clone());
    let service = tower::service_fn(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), count)
}

pub fn is_owned_by(object: &DynamicObject, canary: &Canary) -> bool {
    object.meta().owner_references.iter().flatten().any(|owner| Some(&owner.uid) == canary.uid().as_ref())
}
