//! Writes the inventory as custom resources.
//!
//! An object is written only if the spec that people read differs from the one that was
//! written or found last, at most [`BATCH`] objects a second, by the one replica that
//! holds the shard of the inventory. What is gone from the inventory is deleted. The
//! API answers with everything; resources are for `kubectl get` and for policies.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use kube::{
    Api,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::ApiResource,
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{InventoryResources, resource_specs};
use crate::{
    api::{GROUP, Mesh, MeshService, VERSION, Workload},
    controller::{context::Context, shard::fence::stable_hash},
    discovery::model::{Inventory, Key, Kind},
    patch::FIELD_MANAGER,
};

/// Objects per [`BATCH_INTERVAL`].
const BATCH: usize = 10;
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// Meshes are computed from everything, so not more often than this.
const MESH_INTERVAL: Duration = Duration::from_secs(5);
/// After a write that failed, and while another replica writes.
const RETRY_INTERVAL: Duration = Duration::from_secs(60);
/// Views that are compared at a time.
const CHUNK: usize = 100;
const PAGE_SIZE: u32 = 500;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ResourceKind {
    Mesh,
    Workload,
    Service,
}

impl ResourceKind {
    fn resource(self) -> ApiResource {
        match self {
            Self::Mesh => ApiResource::erase::<Mesh>(&()),
            Self::Workload => ApiResource::erase::<Workload>(&()),
            Self::Service => ApiResource::erase::<MeshService>(&()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ResourceKey {
    kind: ResourceKind,
    /// Empty for meshes.
    namespace: String,
    name: String,
}

pub struct ResourceWriter {
    level: InventoryResources,
    cluster: String,
    /// Entries of other clusters are kept in this namespace.
    home: String,
    /// Views that may differ from what is written.
    pending: BTreeSet<Key>,
    mesh_check: Option<Instant>,
    /// Specs by the objects that have them; none before they were listed.
    written: Option<BTreeMap<ResourceKey, Value>>,
    next: Option<Instant>,
    has_warned: bool,
}

impl ResourceWriter {
    pub fn new(ctx: &Context) -> Self {
        let level = ctx.options.inventory.resources;
        // Control planes are in namespaces that it does not see.
        let is_partial = !ctx.options.namespaces.is_empty();
        Self {
            level: if is_partial && level == InventoryResources::Meshes {
                InventoryResources::None
            } else {
                level
            },
            cluster: ctx.inventory.cluster().to_owned(),
            home: ctx.options.controller_namespace.clone(),
            pending: BTreeSet::new(),
            mesh_check: None,
            written: None,
            next: None,
            has_warned: false,
        }
    }

    fn kinds(&self, ctx: &Context) -> Vec<ResourceKind> {
        let meshes = ctx.options.namespaces.is_empty().then_some(ResourceKind::Mesh);
        let rest = [ResourceKind::Workload, ResourceKind::Service];
        let rest = rest.into_iter().filter(|_| self.level == InventoryResources::All);
        meshes.into_iter().chain(rest).collect()
    }

    /// These views changed.
    pub fn changed(&mut self, changed: &BTreeSet<Key>, now: Instant) {
        if self.level == InventoryResources::None || changed.is_empty() {
            return;
        }
        if self.level == InventoryResources::All {
            self.pending.extend(changed.iter().cloned());
        }
        self.mesh_check.get_or_insert(now + MESH_INTERVAL);
        self.next.get_or_insert(now + BATCH_INTERVAL);
    }

    pub fn next_write(&self) -> Option<Instant> {
        self.next
    }

    /// Writes a batch, if it is time.
    pub async fn write(&mut self, ctx: &Context) {
        let now = Instant::now();
        if self.next.is_none_or(|next| next > now) {
            return;
        }
        if ctx.fence.check(&super::writer(ctx)).is_err() {
            // Another replica writes, and this one has to look again before it does.
            self.written = None;
            self.next = Some(now + RETRY_INTERVAL);
            return;
        }
        let outcome = self.write_batch(ctx).await;
        self.next = match outcome {
            Ok(true) => Some(now + BATCH_INTERVAL),
            Ok(false) => self.mesh_check,
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(
                        error = crate::api_error::api_message(&error),
                        "cannot write the inventory's resources; trying again"
                    );
                }
                Some(now + RETRY_INTERVAL)
            }
        };
    }

    /// True if there is more to write.
    async fn write_batch(&mut self, ctx: &Context) -> kube::Result<bool> {
        if self.written.is_none() {
            self.written = Some(self.list(ctx).await?);
            self.mesh_check = Some(Instant::now());
            if self.level == InventoryResources::All {
                ctx.inventory.read(|inventory| {
                    self.pending.extend(inventory.workloads().map(|workload| workload.key.clone()));
                    self.pending.extend(inventory.services().map(|service| service.key.clone()));
                });
            }
        }
        self.write_meshes(ctx).await?;
        let mut budget = BATCH;
        loop {
            let chunk: Vec<Key> = self.pending.iter().take(CHUNK).cloned().collect();
            if chunk.is_empty() {
                self.has_warned = false;
                return Ok(false);
            }
            let specs: Vec<Option<Value>> =
                ctx.inventory.read(|inventory| chunk.iter().map(|key| spec_of(inventory, key)).collect());
            for (key, spec) in chunk.into_iter().zip(specs) {
                let object = self.resource_key(&key);
                if self.known(&object) != spec.as_ref() {
                    if budget == 0 {
                        return Ok(true);
                    }
                    budget -= 1;
                    self.set(ctx, object, spec).await?;
                }
                self.pending.remove(&key);
            }
        }
    }

    /// Few, so not counted.
    async fn write_meshes(&mut self, ctx: &Context) -> kube::Result<()> {
        let is_due = self.mesh_check.is_some_and(|check| check <= Instant::now());
        if !is_due || !ctx.options.namespaces.is_empty() {
            return Ok(());
        }
        let meshes = ctx.inventory.read(Inventory::meshes);
        let mut wanted: BTreeMap<ResourceKey, Option<Value>> = BTreeMap::new();
        let known = self.written.iter().flatten().map(|(key, _)| key);
        wanted.extend(known.filter(|key| key.kind == ResourceKind::Mesh).map(|key| (key.clone(), None)));
        for mesh in &meshes {
            let name = object_name(&[&mesh.cluster, &mesh.name]);
            let key = ResourceKey { kind: ResourceKind::Mesh, namespace: String::new(), name };
            wanted.insert(key, Some(resource_specs::mesh(mesh)));
        }
        for (key, spec) in wanted {
            if self.known(&key) != spec.as_ref() {
                self.set(ctx, key, spec).await?;
            }
        }
        self.mesh_check = None;
        Ok(())
    }

    fn known(&self, key: &ResourceKey) -> Option<&Value> {
        self.written.as_ref()?.get(key)
    }

    /// Writes an object, or deletes it.
    async fn set(&mut self, ctx: &Context, key: ResourceKey, spec: Option<Value>) -> kube::Result<()> {
        match &spec {
            Some(spec) => apply(ctx, &key, spec).await?,
            None => delete(ctx, &key).await?,
        }
        let written = self.written.get_or_insert_default();
        match spec {
            Some(spec) => _ = written.insert(key, spec),
            None => _ = written.remove(&key),
        }
        Ok(())
    }

    fn resource_key(&self, key: &Key) -> ResourceKey {
        let kind = if key.kind == Kind::Service { ResourceKind::Service } else { ResourceKind::Workload };
        let is_local = key.cluster == self.cluster;
        ResourceKey {
            kind,
            namespace: if is_local { key.namespace.clone() } else { self.home.clone() },
            name: object_name(&[&key.cluster, &key.namespace, key.kind.name(), &key.name]),
        }
    }

    /// What exists. Entries of this kind that are in no view are then gone.
    async fn list(&mut self, ctx: &Context) -> kube::Result<BTreeMap<ResourceKey, Value>> {
        let mut found = BTreeMap::new();
        for kind in self.kinds(ctx) {
            let mut scopes: Vec<Option<&str>> =
                ctx.options.namespaces.iter().map(|n| Some(n.as_str())).collect();
            if scopes.is_empty() {
                scopes.push(None);
            }
            for scope in scopes {
                let api: Api<DynamicObject> = match scope {
                    Some(namespace) => Api::namespaced_with(ctx.client.clone(), namespace, &kind.resource()),
                    None => Api::all_with(ctx.client.clone(), &kind.resource()),
                };
                let mut params = ListParams::default().limit(PAGE_SIZE);
                loop {
                    let page = api.list(&params).await?;
                    for object in page.items {
                        let (namespace, name) = (object.metadata.namespace, object.metadata.name);
                        let (namespace, name) = (namespace.unwrap_or_default(), name.unwrap_or_default());
                        self.pending.extend(view_key(kind, &object.data["spec"]));
                        found.insert(ResourceKey { kind, namespace, name }, object.data["spec"].clone());
                    }
                    match page.metadata.continue_ {
                        Some(token) if !token.is_empty() => params = params.continue_token(&token),
                        _ => break,
                    }
                }
            }
        }
        Ok(found)
    }
}

fn spec_of(inventory: &Inventory, key: &Key) -> Option<Value> {
    match key.kind {
        Kind::Service => inventory.service(key).map(resource_specs::service),
        _ => inventory.workload(key).map(resource_specs::workload),
    }
}

/// The view that an existing object is about.
fn view_key(kind: ResourceKind, spec: &Value) -> Option<Key> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = &spec["ref"];
    let name = text(&of["kind"]);
    let kind = match kind {
        ResourceKind::Mesh => return None,
        ResourceKind::Service => Kind::Service,
        ResourceKind::Workload => {
            Kind::ALL.iter().copied().find(|known| known.is_workload() && known.name() == name)?
        }
    };
    Some(Key::new(&text(&spec["cluster"]), &text(&of["namespace"]), kind, &text(&of["name"])))
}

/// Readable, unique by its hash, and valid: at most 63 characters.
fn object_name(parts: &[&str]) -> String {
    let hash = stable_hash(parts.join("/").as_bytes());
    let readable: String = parts
        .last()
        .into_iter()
        .flat_map(|part| part.chars())
        .map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' })
        .take(46)
        .collect();
    format!("{}-{hash:016x}", readable.trim_matches('-')).trim_start_matches('-').to_owned()
}

fn api_of(ctx: &Context, key: &ResourceKey) -> Api<DynamicObject> {
    match key.namespace.as_str() {
        "" => Api::all_with(ctx.client.clone(), &key.kind.resource()),
        namespace => Api::namespaced_with(ctx.client.clone(), namespace, &key.kind.resource()),
    }
}

async fn apply(ctx: &Context, key: &ResourceKey, spec: &Value) -> kube::Result<()> {
    let object = json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": key.kind.resource().kind,
        "metadata": { "name": key.name, "labels": { "serin.dev/cluster": label_value(spec["cluster"].as_str().unwrap_or_default()) } },
        "spec": spec,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    match api_of(ctx, key).patch(&key.name, &params, &Patch::Apply(&object)).await {
        // Its namespace is being deleted, or is gone.
        Err(kube::Error::Api(status))
            if !key.namespace.is_empty()
                && matches!(status.code, 403 | 404)
                && status.message.contains("namespace") =>
        {
            Ok(())
        }
        written => written.map(drop),
    }
}

async fn delete(ctx: &Context, key: &ResourceKey) -> kube::Result<()> {
    match api_of(ctx, key).delete(&key.name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop),
    }
}

/// A cluster's name need not be a label.
fn label_value(cluster: &str) -> String {
    let valid = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    cluster.chars().map(valid).take(63).collect::<String>().trim_matches(['-', '_', '.']).to_owned()
}
