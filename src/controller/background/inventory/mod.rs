//! The inventory in the controller: feeds it once somebody wants it, and reconciles a
//! Canary that names no provider when another one would be chosen.
//!
//! ```text
//!   want ─▶ discovery ─▶ one reflector per served kind, shared with releases ─▶ LiveInventory
//!              ▲                                                                    │ changed
//!   CustomResourceDefinitions (metadata watch)                 followers ◀──────────┤
//!                                                              resources ◀──────────┘
//! ```
//!
//! Nothing is polled: kinds appear and go with the watch of their definitions. A
//! controller of some namespaces may not watch these; it discovers with
//! [`served_kinds_watch`](super::served_kinds_watch).

mod definitions;
pub mod followers;
mod mesh_apis;
mod registries;
mod resource_specs;
mod resources;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use kube::{Api, core::ApiResource};
use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::{definitions::Definitions, followers::Followers, resources::ResourceWriter};
use crate::{
    controller::{cache::reflector::NotSynced, context::Context, queue::trigger::NamespacedName},
    discovery::{
        kubernetes::{ServedResources, Unread, resource_name, wanted_config_maps},
        live::LiveInventory,
        model::{Key, Kind, ListScope, Object, Role},
    },
};

/// Changes within this time are processed together.
const BATCH_DELAY: Duration = Duration::from_millis(100);
/// Between two attempts to discover the served kinds.
const DISCOVERY_RETRY: Duration = Duration::from_secs(5);
/// Of the read of one ConfigMap.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// When the cluster is watched for the inventory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InventoryMode {
    /// Never: a Canary has to name its provider.
    Never,
    /// From when a Canary without a provider or a request for the inventory needs it.
    #[default]
    Demand,
    /// From the start.
    Always,
}

/// Settings of the inventory.
#[derive(Clone, Debug, Default)]
pub struct InventoryOptions {
    pub mode: InventoryMode,
    pub resources: InventoryResources,
    /// Follow the APIs that MeshApis in the controller's namespace register.
    pub mesh_apis: bool,
}

/// The custom resources that are written while the cluster is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum InventoryResources {
    None,
    #[default]
    Meshes,
    /// Also workloads and services.
    All,
}

#[derive(Default)]
pub struct InventoryWatch {
    pub followers: Followers,
    watched: Mutex<BTreeMap<Kind, ApiResource>>,
    /// Somebody found other kinds than before.
    pub served_changed: Notify,
}

/// The replica that holds the shard of this name follows MeshApis and writes resources.
fn writer(ctx: &Context) -> NamespacedName {
    NamespacedName { namespace: ctx.options.controller_namespace.clone(), name: "inventory".to_owned() }
}

/// Feeds the inventory until dropped.
pub fn spawn(ctx: &Arc<Context>) -> AbortOnDropHandle<()> {
    let ctx = Arc::clone(ctx);
    AbortOnDropHandle::new(tokio::spawn(async move {
        let _mesh_apis = mesh_apis::spawn(&ctx);
        match ctx.options.inventory.mode {
            InventoryMode::Never => std::future::pending().await,
            InventoryMode::Demand => ctx.inventory.wanted().await,
            InventoryMode::Always => ctx.inventory.want(),
        }
        Feeder::new(&ctx).run().await;
    }))
}

struct Feeder<'c> {
    ctx: &'c Arc<Context>,
    live: &'c LiveInventory,
    served: ServedResources,
    config_maps: BTreeSet<(String, String)>,
    writer: ResourceWriter,
}

impl<'c> Feeder<'c> {
    fn new(ctx: &'c Arc<Context>) -> Self {
        Self {
            ctx,
            live: &ctx.inventory,
            served: ServedResources::default(),
            config_maps: BTreeSet::new(),
            writer: ResourceWriter::new(ctx),
        }
    }

    async fn run(mut self) {
        tracing::info!(cluster = self.live.cluster(), "watching the cluster for the inventory");
        self.ctx.caches.feed_inventory();
        while !self.discover().await {
            sleep(DISCOVERY_RETRY).await;
        }
        self.wait_for_lists().await;
        self.process_changes().await;
        self.live.set_ready();
        let mut definitions = Definitions::watch(self.ctx);
        let mut batch: Option<Instant> = None;
        loop {
            let due = batch.into_iter().chain(self.writer.next_write()).min();
            tokio::select! {
                // In this order, so that simulations replay.
                biased;
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if batch.take_if(|batch| *batch <= Instant::now()).is_some() {
                        self.process_changes().await;
                    }
                    self.writer.write(self.ctx).await;
                }
                () = self.live.changed(), if batch.is_none() => batch = Some(Instant::now() + BATCH_DELAY),
                () = definitions.stale(&self.served) => {
                    self.discover().await;
                }
                () = self.ctx.inventory_watch.served_changed.notified() => {
                    self.discover().await;
                }
            }
        }
    }

    /// Watches the kinds that are served, and no others. False if discovery failed.
    async fn discover(&mut self) -> bool {
        let served = match ServedResources::discover(&self.ctx.client).await {
            Ok(served) => served,
            Err(error) => {
                tracing::warn!(%error, "the inventory does not know which kinds are served");
                return false;
            }
        };
        if served == self.served {
            return true;
        }
        let cluster = self.live.cluster();
        let scope = |kind| ListScope { cluster: cluster.to_owned(), kind, namespace: None };
        self.live.update(|inventory| {
            let resources: Vec<Object> =
                served.names().into_iter().map(|name| Object::served(cluster, name)).collect();
            let shown = resources.iter().map(|object| object.key.clone()).collect();
            resources.into_iter().for_each(|object| inventory.apply(object));
            inventory.list_complete(&scope(Kind::ServedResource), &shown);
        });
        let mut watched = self.ctx.inventory_watch.watched.lock();
        for kind in self.readable_kinds() {
            let (known, found) = (watched.get(&kind).cloned(), served.resource(kind));
            if known.as_ref() == found {
                continue;
            }
            if let Some(gone) = known {
                self.ctx.caches.unwatch(&gone);
                watched.remove(&kind);
                self.live.update(|inventory| inventory.list_complete(&scope(kind), &BTreeSet::new()));
            }
            if let Some(found) = found {
                self.ctx.caches.watch_for_inventory(found);
                watched.insert(kind, found.clone());
            }
        }
        drop(watched);
        self.served = served;
        true
    }

    /// Canaries have their own reflector, ConfigMaps are read by name. A controller of
    /// some namespaces reads nothing outside of them.
    fn readable_kinds(&self) -> impl Iterator<Item = Kind> + use<> {
        let everywhere = self.ctx.options.namespaces.is_empty();
        Kind::ALL.iter().copied().filter(move |kind| {
            !matches!(kind, Kind::ServedResource | Kind::ConfigMap | Kind::Canary)
                && (everywhere || !kind.is_cluster_scoped())
        })
    }

    fn watched(&self) -> Vec<ApiResource> {
        self.ctx.inventory_watch.watched.lock().values().cloned().collect()
    }

    /// Until every kind was listed, or cannot be.
    async fn wait_for_lists(&self) {
        loop {
            let kinds = self.watched();
            for kind in &kinds {
                // The reason is read below.
                let _ = self.ctx.caches.ensure_synced(kind).await;
            }
            if self.ctx.caches.unlisted(&kinds).iter().all(|(_, why)| why.has_failed()) {
                return;
            }
        }
    }

    async fn process_changes(&mut self) {
        let changed = self.live.take_changes();
        self.note_unread();
        if self.touches_control_plane(&changed) {
            self.read_config_maps().await;
        }
        self.ctx.inventory_watch.followers.notify(self.live, &changed, &self.ctx.requests);
        self.writer.changed(&changed, Instant::now());
    }

    fn note_unread(&self) {
        let unlisted = self.ctx.caches.unlisted(&self.watched());
        if unlisted.is_empty() && self.live.unread().is_empty() {
            return;
        }
        let watched = self.ctx.inventory_watch.watched.lock().clone();
        let unread = |(resource, why): (ApiResource, NotSynced)| {
            let kind = watched.iter().find(|(_, watched)| **watched == resource).map(|(kind, _)| *kind)?;
            Some(Unread { resource: resource_name(kind), namespace: None, why: why.to_string() })
        };
        self.live.set_unread(unlisted.into_iter().filter_map(unread).collect());
    }

    /// A workload that is gone may have been one.
    fn touches_control_plane(&self, changed: &BTreeSet<Key>) -> bool {
        self.live.read(|inventory| {
            changed
                .iter()
                .filter(|key| key.kind.is_workload())
                .any(|key| inventory.workload(key).is_none_or(|workload| workload.role == Role::ControlPlane))
        })
    }

    /// The ConfigMaps of control planes that are new: each is read once.
    async fn read_config_maps(&mut self) {
        if !self.ctx.options.namespaces.is_empty() {
            return;
        }
        let wanted = self.live.read(wanted_config_maps);
        let cluster = self.live.cluster();
        for (namespace, name) in wanted.difference(&self.config_maps) {
            let api: Api<k8s_openapi::api::core::v1::ConfigMap> =
                Api::namespaced(self.ctx.client.clone(), namespace);
            let Ok(Ok(Some(found))) = timeout(READ_TIMEOUT, api.get_opt(name)).await else { continue };
            let manifest = json!({ "metadata": found.metadata, "data": found.data });
            let object = Object::parse(cluster, Kind::ConfigMap, &manifest);
            self.live.update(|inventory| object.into_iter().for_each(|object| inventory.apply(object)));
        }
        for (namespace, name) in self.config_maps.difference(&wanted) {
            let key = Key::new(cluster, namespace, Kind::ConfigMap, name);
            self.live.update(|inventory| inventory.remove(&key, None));
        }
        self.config_maps = wanted;
    }
}
