//! What one law works with: a namespace with a Canary in it, and a router.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use serin::api::{Canary, Weight};
use serin::engine::action::{Split, Stable};
use serin::routing::{Arms, Capabilities, Error, Lookup, ObjectName, Router, Subject};
use tokio::sync::Mutex;

use crate::rows::Row;
use crate::support::{Cluster, Part};

pub struct World {
    pub client: Client,
    pub namespace: String,
    pub row: Row,
    pub canary: Canary,
    pub arms: Arms,
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
        World { client, namespace, row, canary, arms }
    }

    pub fn router(&self) -> &dyn Router {
        &*self.row.router
    }

    pub fn can(&self) -> Capabilities {
        self.router().capabilities(&self.canary)
    }

    /// The object that carries the route: the apex Service if there is no other.
    pub fn route(&self) -> ObjectName {
        let objects = self.router().objects(&self.canary);
        objects.iter().find(|object| object.kind.kind != "Service").unwrap_or(&objects[0]).clone()
    }

    pub fn service(&self, name: &str) -> ObjectName {
        let kind = ApiResource::erase::<Service>(&());
        ObjectName { kind, namespace: self.namespace.clone(), name: name.to_owned() }
    }

    pub async fn seen(&self) -> Seen {
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
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "observedGeneration": live.metadata.generation,
                "reason": "Because", "message": "The test says so.", "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let report = |parent: &Value| {
            json!({"parentRef": parent, "controllerName": "example.com/gateway",
                "conditions": [condition("Accepted", "True"), condition("ResolvedRefs", resolved)]})
        };
        let parents = live.data["spec"]["parentRefs"].as_array().into_iter().flatten();
        self.report(route, json!({"parents": parents.map(report).collect::<Vec<_>>()})).await;
    }

    /// Plays the controller of App Mesh: the mesh has the router as it is.
    pub async fn activate(&self, router: &ObjectName, active: &str) {
        let Some(live) = self.find(router).await else { return };
        let condition =
            json!({"type": "VirtualRouterActive", "status": active, "message": "the test says so"});
        let generation = live.metadata.generation;
        self.report(router, json!({"observedGeneration": generation, "conditions": [condition]})).await;
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
        Subject { canary: &self.canary, arms: &self.arms }
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
        self.api(object).get_opt(&object.name).await.unwrap_or_else(|error| panic!("{object}: {error}"))
    }

    pub async fn get(&self, object: &ObjectName) -> DynamicObject {
        self.find(object).await.unwrap_or_else(|| panic!("{object} is not there"))
    }

    /// Somebody else creates it.
    pub async fn create(&self, object: &ObjectName, body: Value) -> DynamicObject {
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
        let params = PatchParams { field_manager: Some("somebody".to_owned()), ..Default::default() };
        let written = self.api(object).patch(&object.name, &params, &Patch::Merge(patch)).await;
        written.unwrap_or_else(|error| panic!("{object}: {error}"));
    }

    pub async fn delete(&self, object: &ObjectName) {
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

/// A definition as others ship it.
pub fn definition(part: Part, file: &str) -> Value {
    let path = part.folder().join(file);
    let text = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}: run `testbed/setup {part}`", path.display()));
    serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub async fn install(client: &Client, definitions: Vec<Value>) {
    let api = Api::<CustomResourceDefinition>::all(client.clone());
    for definition in definitions {
        let name = definition["metadata"]["name"].as_str().expect("a definition has a name").to_owned();
        let params = PatchParams::apply("serin-tests").force();
        let applied = api.patch(&name, &params, &Patch::Apply(&definition)).await;
        let crd = applied.unwrap_or_else(|error| panic!("install {name}: {error}"));
        for version in crd.spec.versions.iter().filter(|version| version.served) {
            let path = format!("/apis/{}/{}/{}", crd.spec.group, version.name, crd.spec.names.plural);
            await_served(client, &path).await;
        }
    }
}

/// A definition is served some moments after it was accepted.
async fn await_served(client: &Client, path: &str) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    let request = || http::Request::get(path).body(Vec::new()).expect("a plain request");
    while let Err(error) = client.request_text(request()).await {
        assert!(tokio::time::Instant::now() < deadline, "{path} is not served: {error}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Ours and every mesh's. A cluster has one definition of a TrafficSplit, so every
/// version of it is served beside the others, v1alpha1 with the schema that
/// its specification describes.
async fn define(cluster: &Cluster, client: &Client) {
    static DEFINED: Mutex<BTreeSet<PathBuf>> = Mutex::const_new(BTreeSet::new());
    let mut defined = DEFINED.lock().await;
    if defined.insert(cluster.kubeconfig()) {
        let mut definitions: Vec<Value> = serin::api::crds().iter().map(|crd| json!(crd)).collect();
        definitions.push(every_version(definition(Part::ArgoRollouts, "split.yaml")));
        definitions.push(definition(Part::Osm, "smi_http_route_group.yaml"));
        for kind in ["httproutes", "grpcroutes"] {
            let file = format!("gateway.networking.k8s.io_{kind}.yaml");
            definitions.push(definition(Part::GatewayApi, &file));
        }
        for kind in ["virtualservices", "destinationrules"] {
            definitions.push(definition(Part::Istio, &format!("{kind}.yaml")));
        }
        for kind in ["virtualrouters", "virtualnodes", "virtualservices"] {
            let file = format!("appmesh.k8s.aws_{kind}.yaml");
            definitions.push(converted(definition(Part::AppMesh, &file)));
        }
        install(client, definitions).await;
    }
}

/// A definition in apiextensions.k8s.io/v1beta1, which servers no longer know,
/// in the words of v1.
pub fn converted(mut old: Value) -> Value {
    let spec = old["spec"].as_object_mut().expect("a definition");
    let columns = spec.remove("additionalPrinterColumns").unwrap_or(json!([]));
    let column = |column: &Value| {
        let mut column = column.clone();
        column["jsonPath"] = column.as_object_mut().expect("a column").remove("JSONPath").expect("a path");
        column
    };
    let mut version = spec.remove("versions").expect("versions")[0].clone();
    version["additionalPrinterColumns"] = columns.as_array().expect("columns").iter().map(column).collect();
    version["schema"] = spec.remove("validation").expect("a schema");
    version["subresources"] = spec.remove("subresources").expect("subresources");
    spec.remove("version");
    spec.insert("versions".to_owned(), json!([version]));
    let (name, spec) = (&old["metadata"]["name"], &old["spec"]);
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": old["kind"], "metadata": {"name": name}, "spec": spec})
}

fn every_version(mut split: Value) -> Value {
    let versions = split["spec"]["versions"].as_array_mut().expect("a definition has versions");
    let mut first = versions.last().expect("at least one").clone();
    first["name"] = json!("v1alpha1");
    let backend = "/schema/openAPIV3Schema/properties/spec/properties/backends/items";
    *first.pointer_mut(backend).expect("a TrafficSplit has backends") = json!({
        "type": "object",
        "required": ["service"],
        "properties": {"service": {"type": "string"}, "weight": {"x-kubernetes-int-or-string": true}},
    });
    versions.push(first);
    for version in versions {
        version["served"] = json!(true);
    }
    split
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
