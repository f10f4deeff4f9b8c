//! The fixture of one test: a namespace with a Canary, and helpers to read and
//! write.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use kube::{
    Client, ResourceExt as _,
    api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};
use serin::{
    api::Canary,
    engine::observed::Target,
    object_cache::ObjectCache,
    workload::{CachedWorkload, ConfigContents, FromCache, Kind, Options, Workload},
};

use crate::support::{Cluster, definitions};

pub struct World {
    pub client: Client,
    pub namespace: String,
    pub options: Options,
    pub cache: TestCache,
}

impl World {
    pub async fn on(cluster: &Cluster) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let client = cluster.client().await;
        definitions::install(&client, definitions::ours().into_iter().chain([definitions::keda()])).await;
        let prefix = format!("workload-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        Self {
            namespace: cluster.namespace(&prefix).await,
            client,
            options: Options::default(),
            cache: TestCache::default(),
        }
    }

    /// A client before each of whose first `count` patches of an object another client
    /// writes to that object.
    pub fn client_with_conflicts(&self, kind: Kind, name: &'static str, count: u32) -> Client {
        let (client, api, conflicts) = (self.client.clone(), self.api(kind), Arc::new(AtomicU32::new(0)));
        let send = move |request: http::Request<kube::client::Body>| {
            let (client, api, conflicts) = (client.clone(), api.clone(), conflicts.clone());
            async move {
                let is_patch = request.method() == http::Method::PATCH;
                if is_patch && request.uri().path().ends_with(&format!("/{name}")) {
                    let conflict = conflicts.fetch_add(1, Ordering::Relaxed) + 1;
                    let patch =
                        json!({ "metadata": { "annotations": { "conflicts": conflict.to_string() } } });
                    if conflict <= count {
                        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch)).await?;
                    }
                }
                client.send(request).await
            }
        };
        Client::new(tower::service_fn(send), self.namespace.clone())
    }

    /// Creates a Canary named after its target, with these fields merged into its
    /// spec.
    pub async fn workload(&self, kind: &str, target: &str, spec: Value) -> Workload {
        let canary = self.canary(kind, target, spec).await;
        Workload::new(&canary, &Arc::new(self.options.clone())).expect("a target of a known kind")
    }

    pub async fn canary(&self, kind: &str, target: &str, spec: Value) -> Canary {
        let api_version = if kind == "Service" { "v1" } else { "apps/v1" };
        let mut object = json!({
            "apiVersion": "serin.dev/v1alpha1",
            "kind": "Canary",
            "metadata": { "name": target },
            "spec": {
                "targetRef": { "apiVersion": api_version, "kind": kind, "name": target },
                "service": { "port": 80 },
                "analysis": { "stepWeight": 10 },
            },
        });
        json_patch::merge(&mut object["spec"], &spec);
        let canary: Canary = serde_json::from_value(object).expect("a Canary");
        self.canaries().create(&PostParams::default(), &canary).await.expect("the Canary is accepted")
    }

    pub async fn delete_canary(&self, name: &str) {
        self.canaries().delete(name, &DeleteParams::background()).await.expect("it is deleted");
    }

    fn canaries(&self) -> Api<Canary> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, kind.resource())
    }

    /// As a user applies a manifest.
    pub async fn apply(&self, kind: Kind, name: &str, fields: Value) -> Value {
        let resource = kind.resource();
        let mut object = json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": { "name": name },
        });
        json_patch::merge(&mut object, &fields);
        let applied =
            self.api(kind).patch(name, &PatchParams::apply("user").force(), &Patch::Apply(&object)).await;
        value(applied.unwrap_or_else(|error| panic!("apply {object:#}: {error}")))
    }

    pub async fn patch(&self, kind: Kind, name: &str, fields: Value) -> Value {
        let patched = self.api(kind).patch(name, &PatchParams::default(), &Patch::Merge(&fields)).await;
        value(patched.unwrap_or_else(|error| panic!("patch {name}: {error}")))
    }

    pub async fn get(&self, kind: Kind, name: &str) -> Value {
        value(self.api(kind).get(name).await.unwrap_or_else(|error| panic!("get {name}: {error}")))
    }

    pub async fn exists(&self, kind: Kind, name: &str) -> bool {
        let object = self.api(kind).get_opt(name).await.unwrap_or_else(|error| panic!("get {name}: {error}"));
        object.is_some_and(|object| object.metadata.deletion_timestamp.is_none())
    }

    pub async fn names(&self, kind: Kind) -> Vec<String> {
        let list = self.api(kind).list(&ListParams::default()).await.expect("a list");
        list.iter().map(|object| object.name_any()).collect()
    }

    pub async fn delete(&self, kind: Kind, name: &str) {
        self.api(kind).delete(name, &DeleteParams::background()).await.expect("it is deleted");
    }

    /// As a reflector stores it.
    pub async fn snapshot(&self, kind: Kind, name: &str) -> CachedWorkload {
        let api =
            Api::<CachedWorkload>::namespaced_with(self.client.clone(), &self.namespace, kind.resource());
        api.get(name).await.unwrap_or_else(|error| panic!("get {name}: {error}"))
    }

    /// The target as a controller with current caches observes it.
    pub async fn target(&self, workload: &Workload) -> Target {
        let target = self.snapshot(workload.kind(), workload.target_name()).await;
        let mut versions = BTreeMap::new();
        for kind in [Kind::ConfigMap, Kind::Secret] {
            for object in self.api(kind).list(&ListParams::default()).await.expect("a list") {
                versions.insert((kind.name().to_owned(), object.name_any()), object.resource_version());
            }
        }
        let version = |config: &serin::engine::revision::ConfigRef| {
            versions.get(&(config.kind.clone(), config.name.clone())).cloned().flatten()
        };
        let mut configs = ConfigContents::default();
        if let Err(missing) = workload.observe_target(&target, &mut configs, version, None) {
            configs.read(&self.client, &self.namespace, &missing.0).await.expect("configs can be read");
        }
        workload.observe_target(&target, &mut configs, version, None).expect("all configs are read")
    }

    pub async fn revision(&self, workload: &Workload) -> String {
        self.target(workload).await.revision
    }

    /// Creates the primary from the present target; returns the revision.
    pub async fn make_primary(&self, workload: &Workload) -> String {
        let revision = self.revision(workload).await;
        workload.create_primary(&self.client, &revision).await.expect("a primary");
        revision
    }

    /// Promotes the present target; returns the revision.
    pub async fn promote(&self, workload: &Workload) -> String {
        let revision = self.revision(workload).await;
        let target = self.snapshot(workload.kind(), workload.target_name()).await;
        let primary = self.snapshot(workload.kind(), &workload.primary_name()).await;
        let known = FromCache { target: Some(&target), primary: Some(&primary) };
        workload.promote(&self.client, &self.cache, &revision, known).await.expect("a promotion");
        revision
    }

    /// Syncs companions as a reconcile does; returns the number of writes.
    pub async fn sync_companions(&self, workload: &Workload) -> usize {
        let target = self.snapshot(workload.kind(), workload.target_name()).await;
        let canary = format!("{}-canary", workload.target_name());
        let service = match workload.kind() {
            Kind::Service if self.exists(Kind::Service, &canary).await => {
                Some(self.snapshot(Kind::Service, &canary).await)
            }
            _ => None,
        };
        let primary = self.snapshot(workload.kind(), &workload.primary_name()).await;
        let cache = TestCache::list(self).await;
        let mut writes = 0;
        for change in workload.companion_changes(&target, &primary, service.as_ref(), &cache) {
            let change = change.expect("nothing is refused");
            workload
                .apply_companion_change(&self.client, &change)
                .await
                .unwrap_or_else(|error| panic!("{change:?}: {error}"));
            writes += 1;
        }
        writes
    }

    pub async fn version(&self, kind: Kind, name: &str) -> String {
        text(&self.get(kind, name).await["metadata"]["resourceVersion"])
    }
}

/// The companions of a namespace, and the write responses it was given.
#[derive(Default)]
pub struct TestCache {
    companions: BTreeMap<Kind, Vec<Arc<DynamicObject>>>,
    responses: Mutex<Vec<DynamicObject>>,
}

impl TestCache {
    async fn list(world: &World) -> Self {
        let mut companions = BTreeMap::new();
        for kind in [Kind::HorizontalPodAutoscaler, Kind::ScaledObject, Kind::PodDisruptionBudget] {
            let list = world.api(kind).list(&ListParams::default()).await.expect("a list");
            companions.insert(kind, list.into_iter().map(Arc::new).collect());
        }
        Self { companions, responses: Mutex::default() }
    }

    /// Write responses since the last call, as the controller stores them.
    pub fn take_responses(&self) -> Vec<CachedWorkload> {
        let responses = std::mem::take(&mut *self.responses.lock().unwrap());
        responses.into_iter().map(|written| written.try_into().expect("a workload")).collect()
    }
}

impl ObjectCache for TestCache {
    fn get(&self, kind: &ApiResource, namespace: &str, name: &str) -> Option<Arc<DynamicObject>> {
        self.list(kind, namespace).into_iter().find(|object| object.name_any() == name)
    }

    fn list(&self, kind: &ApiResource, namespace: &str) -> Vec<Arc<DynamicObject>> {
        let companions = self.companions.iter().filter(|(companion, _)| companion.resource() == kind);
        let objects = companions.flat_map(|(_, objects)| objects);
        objects.filter(|object| object.namespace().as_deref() == Some(namespace)).cloned().collect()
    }

    fn apply_write_response(&self, _: &ApiResource, written: DynamicObject) {
        self.responses.lock().unwrap().push(written);
    }
}

/// A Deployment's or DaemonSet's spec, of pods with these labels and this image.
pub fn spec(labels: Value, image: &str) -> Value {
    json!({
        "selector": { "matchLabels": labels },
        "template": {
            "metadata": { "labels": labels },
            "spec": { "containers": [{ "name": "app", "image": image }] },
        },
    })
}

pub fn deployment(name: &str, image: &str) -> Value {
    let mut spec = spec(json!({ "app": name }), image);
    spec["replicas"] = 2.into();
    json!({ "spec": spec })
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_else(|| panic!("{value} is no text")).to_owned()
}

/// Waits for a condition.
pub async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while !condition().await {
        assert!(tokio::time::Instant::now() < deadline, "{what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn value(object: DynamicObject) -> Value {
    serde_json::to_value(object).expect("an object is JSON")
}
