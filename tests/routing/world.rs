//! What one law works with: a namespace with a Canary in it, and a router.

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
use serin::routing::{Arms, Capabilities, Error, Lookup, ObjectName, Router, Stood, Subject};
use tokio::sync::Mutex;

use crate::elsewhere;
use crate::rows::Row;
use crate::support::app_mesh::AppMeshServer;
use crate::support::{Cluster, definitions, reports};

pub struct World {
    pub client: Client,
    pub namespace: String,
    pub row: Row,
    pub canary: Canary,
    pub arms: Arms,
    /// As a controller remembers it from look to look.
    stood: Stood,
}

/// What the reflectors would have: everything the router asked to be watched.
#[derive(Clone, Default)]
pub struct Seen(HashMap<ObjectName, Arc<DynamicObject>>);

impl Lookup for Seen {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        self.0.get(&ObjectName { kind: kind.clone(), namespace, name }).cloned()
    }
}

impl World {
    pub async fn new(cluster: &Cluster, row: Row) -> World {
        let client = cluster.client().await;
        define(cluster, &client).await;
        let namespace = cluster.namespace("routing").await;
        let pods = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let arms = Arms {
            primary: pods("web-primary"),
            canary: pods("web"),
            previous: pods("web-previous"),
            ports: BTreeMap::from([("http".to_owned(), 8080), ("admin".to_owned(), 9090)]),
        };
        let mut spec = json!({
            "provider": row.provider,
            "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "service": {"port": 80, "targetPort": 8080},
            "analysis": {"iterations": 1},
        });
        json_patch::merge(&mut spec["service"], &row.service);
        let canary = create_canary(&client, &namespace, "web", spec).await;
        World { client, namespace, row, canary, arms, stood: Stood::default() }
    }

    pub fn router(&self) -> &dyn Router {
        &*self.row.router
    }

    pub fn can(&self) -> Capabilities {
        self.router().capabilities(&self.canary)
    }

    /// The object that carries the route: the apex Service if there is no other.
    pub fn route(&self) -> ObjectName {
        if self.row.mesh.is_some() {
            return elsewhere::named(&self.namespace, "Route", "web");
        }
        let objects = self.router().objects(&self.canary);
        objects.iter().find(|object| object.kind.kind != "Service").unwrap_or(&objects[0]).clone()
    }

    /// Everything that the router writes, wherever it is.
    pub fn objects(&self) -> Vec<ObjectName> {
        let mut objects = self.router().objects(&self.canary);
        if self.row.mesh.is_some() {
            objects.extend(elsewhere::objects(&self.namespace));
        }
        objects
    }

    /// How much was written elsewhere than in the cluster.
    pub fn writes_elsewhere(&self) -> usize {
        self.row.mesh.as_ref().map_or(0, |mesh| mesh.writes())
    }

    pub fn service(&self, name: &str) -> ObjectName {
        let kind = ApiResource::erase::<Service>(&());
        ObjectName { kind, namespace: self.namespace.clone(), name: name.to_owned() }
    }

    pub async fn seen(&self) -> Seen {
        self.router().look(&self.canary).await.unwrap_or_else(|error| panic!("look: {error}"));
        let mut seen = HashMap::new();
        for name in self.router().objects(&self.canary) {
            if let Some(object) = self.find(&name).await {
                seen.insert(name, Arc::new(object));
            }
        }
        Seen(seen)
    }

    /// What is in force once everybody who has a say has said it.
    pub async fn split(&self) -> Option<Split> {
        let route = self.route();
        match route.kind.group.as_str() {
            "gateway.networking.k8s.io" => self.carry(&route, "True").await,
            "appmesh.k8s.aws" => self.activate(&route, "True").await,
            _ => {}
        }
        self.split_in(&self.seen().await)
    }

    /// Plays the controllers of a route's parents: all report on it as it is.
    pub async fn carry(&self, route: &ObjectName, resolved: &str) {
        let Some(live) = self.find(route).await else { return };
        self.report(route, reports::of_parents(&json!(live), resolved)).await;
    }

    /// Plays the controller of App Mesh: the mesh has the router as it is.
    pub async fn activate(&self, router: &ObjectName, active: &str) {
        let Some(live) = self.find(router).await else { return };
        self.report(router, reports::of_app_mesh(&json!(live), active)).await;
    }

    async fn report(&self, object: &ObjectName, status: Value) {
        let params = PatchParams { field_manager: Some("mesh".to_owned()), ..Default::default() };
        let patch = Patch::Merge(json!({"status": status}));
        let written = self.api(object).patch_status(&object.name, &params, &patch).await;
        written.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub fn split_in(&self, seen: &Seen) -> Option<Split> {
        self.router().split(&self.subject(), seen)
    }

    /// Sets a split and sees that it is in force.
    #[track_caller]
    pub fn set<'a>(&'a self, split: &'a Split) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            self.try_set(split).await.unwrap_or_else(|error| panic!("{caller}: {error}"));
            assert_eq!(self.split().await.as_ref(), Some(split), "{caller}");
        }
    }

    pub async fn try_set(&self, split: &Split) -> Result<(), Error> {
        self.set_from(&self.seen().await, split).await
    }

    pub async fn set_from(&self, seen: &Seen, split: &Split) -> Result<(), Error> {
        self.router().set(&self.client, &self.subject(), seen, split).await
    }

    pub fn subject(&self) -> Subject<'_> {
        Subject { canary: &self.canary, arms: &self.arms, stood: Some(&self.stood) }
    }

    pub async fn restore(&self) {
        let seen = self.seen().await;
        self.router().restore(&self.client, &self.canary, &seen).await.unwrap();
        assert!(self.is_restored().await, "restoring restores");
    }

    pub async fn is_restored(&self) -> bool {
        self.router().restored(&self.canary, &self.seen().await)
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

    pub fn api(&self, object: &ObjectName) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &object.namespace, &object.kind)
    }

    pub async fn find(&self, object: &ObjectName) -> Option<DynamicObject> {
        if let Some(mesh) = self.mesh_of(object) {
            return elsewhere::find(mesh, object, &self.canary);
        }
        self.api(object).get_opt(&object.name).await.unwrap_or_else(|error| panic!("{object}: {error}"))
    }

    pub async fn get(&self, object: &ObjectName) -> DynamicObject {
        self.find(object).await.unwrap_or_else(|| panic!("{object} is not there"))
    }

    fn mesh_of(&self, object: &ObjectName) -> Option<&AppMeshServer> {
        self.row.mesh.as_ref().filter(|_| object.kind.group == elsewhere::GROUP)
    }

    /// Somebody else creates it.
    pub async fn create(&self, object: &ObjectName, body: Value) -> DynamicObject {
        if let Some(mesh) = self.mesh_of(object) {
            elsewhere::create(mesh, object, &body);
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

    /// Somebody else changes it.
    pub async fn meddle(&self, object: &ObjectName, patch: &Value) {
        if let Some(mesh) = self.mesh_of(object) {
            return elsewhere::meddle(mesh, object, patch);
        }
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..Default::default() };
        let written = self.api(object).patch(&object.name, &params, &Patch::Merge(patch)).await;
        written.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub async fn delete(&self, object: &ObjectName) {
        if let Some(mesh) = self.mesh_of(object) {
            return mesh.as_people(|people| people.delete(&elsewhere::path(object)));
        }
        self.api(object).delete(&object.name, &Default::default()).await.unwrap();
    }

    /// Part of the traffic, or all of it if the router cannot divide.
    pub fn some(&self) -> Weight {
        let ten = Weight::from_percent(10.0).unwrap();
        if self.can().finest_weight <= ten { ten } else { Weight::FULL }
    }

    pub async fn selector(&self, service: &str) -> Value {
        self.get(&self.service(service)).await.data["spec"]["selector"].clone()
    }
}

/// What people wrote in an object and can expect to find again.
pub fn written(object: &DynamicObject) -> Value {
    json!({"labels": object.labels(), "annotations": object.annotations(), "spec": object.data["spec"]})
}

pub fn previous() -> Split {
    Split { stable: Stable::Previous, ..Split::home() }
}

pub async fn create_canary(client: &Client, namespace: &str, name: &str, spec: Value) -> Canary {
    let manifest = json!({
        "apiVersion": "serin.dev/v1alpha1", "kind": "Canary", "metadata": {"name": name}, "spec": spec,
    });
    let canary: Canary = serde_json::from_value(manifest).expect("a Canary");
    let canaries = Api::namespaced(client.clone(), namespace);
    canaries.create(&PostParams::default(), &canary).await.unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Ours and every mesh's, once for each cluster.
async fn define(cluster: &Cluster, client: &Client) {
    static DEFINED: Mutex<BTreeSet<PathBuf>> = Mutex::const_new(BTreeSet::new());
    let mut defined = DEFINED.lock().await;
    if defined.insert(cluster.kubeconfig()) {
        let all = definitions::ours().into_iter().chain(definitions::smi()).chain(definitions::gateway());
        definitions::install(client, all.chain(definitions::istio()).chain(definitions::app_mesh())).await;
    }
}

/// The same client, counting what it sends.
pub fn counted(client: &Client) -> (Client, Arc<AtomicU32>) {
    let count = Arc::new(AtomicU32::new(0));
    let (client, counter) = (client.clone(), count.clone());
    let service = tower::service_fn(move |request| {
        counter.fetch_add(1, Ordering::Relaxed);
        let client = client.clone();
        async move { client.send(request).await }
    });
    (Client::new(service, "default"), count)
}

/// Is this object the Canary's own?
pub fn is_owned_by(object: &DynamicObject, canary: &Canary) -> bool {
    object.meta().owner_references.iter().flatten().any(|owner| Some(&owner.uid) == canary.uid().as_ref())
}
