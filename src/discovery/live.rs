//! The inventory of a running controller: reflectors put object versions in, readers
//! see views that are current.
//!
//! ```text
//!   reflector ─ Tap ─▶ LiveInventory ─▶ changed() ─▶ take_changes()   one reader: the controller
//!                          ▲    └─────▶ read()                        anybody
//!                     want()  ready()
//! ```
//!
//! Nothing is watched before somebody wants the inventory; it is ready once every kind
//! that may be read was listed. A version is applied under a lock in microseconds, and
//! views are recomputed when they are read or taken.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{Notify, SetOnce};

use super::kubernetes::Unread;
use super::model::{Inventory, Key, Kind, ListScope, Object};

/// Name of the controller's own cluster in keys, unless another is set.
pub const DEFAULT_CLUSTER: &str = "local";

/// For a first listing.
const READY_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("the inventory of the cluster is not complete yet")]
pub struct NotReady;

pub struct LiveInventory {
    cluster: String,
    state: Mutex<State>,
    changed: Notify,
    /// Set once.
    wanted: SetOnce<()>,
    ready: SetOnce<()>,
}

#[derive(Default)]
struct State {
    inventory: Inventory,
    /// Views that changed since they were last taken.
    changed: BTreeSet<Key>,
    unread: Vec<Unread>,
    /// Another replica follows the APIs that MeshApis register.
    followed_elsewhere: bool,
}

impl LiveInventory {
    /// `cluster` is the name of the controller's own cluster.
    pub fn new(cluster: &str) -> Arc<Self> {
        Arc::new(Self {
            cluster: cluster.to_owned(),
            state: Mutex::default(),
            changed: Notify::new(),
            wanted: SetOnce::new(),
            ready: SetOnce::new(),
        })
    }

    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// From now on the cluster is watched.
    pub fn want(&self) {
        // Others may have wanted it before.
        let _ = self.wanted.set(());
    }

    pub fn is_wanted(&self) -> bool {
        self.wanted.initialized()
    }

    pub async fn wanted(&self) {
        self.wanted.wait().await;
    }

    pub fn set_ready(&self) {
        let _ = self.ready.set(());
    }

    /// Wants the inventory, and waits until it is complete.
    pub async fn ready(&self) -> Result<(), NotReady> {
        self.want();
        if self.ready.initialized() {
            return Ok(());
        }
        tokio::time::timeout(READY_TIMEOUT, self.ready.wait()).await.map(drop).map_err(|_| NotReady)
    }

    /// Changes objects: of this cluster, or of another source.
    pub fn update<R>(&self, change: impl FnOnce(&mut Inventory) -> R) -> R {
        let result = change(&mut self.state.lock().inventory);
        self.changed.notify_one();
        result
    }

    /// Reads views that are current.
    pub fn read<R>(&self, read: impl FnOnce(&Inventory) -> R) -> R {
        let mut state = self.state.lock();
        let changed = state.inventory.refresh();
        if !changed.is_empty() {
            state.changed.extend(changed);
            self.changed.notify_one();
        }
        read(&state.inventory)
    }

    /// Completes after an object changed. For one task.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Workloads and Services whose view changed, appeared or went since the last call.
    pub fn take_changes(&self) -> BTreeSet<Key> {
        let mut state = self.state.lock();
        let mut changed = state.inventory.refresh();
        changed.append(&mut state.changed);
        changed
    }

    pub fn set_unread(&self, unread: Vec<Unread>) {
        self.state.lock().unread = unread;
    }

    pub fn set_followed_elsewhere(&self, elsewhere: bool) {
        self.state.lock().followed_elsewhere = elsewhere;
    }

    /// Kinds that may not be read, and objects that another replica has.
    pub fn unread(&self) -> Vec<Unread> {
        let state = self.state.lock();
        let elsewhere = state.followed_elsewhere.then(|| Unread {
            resource: "meshapis.serin.dev".to_owned(),
            namespace: None,
            why: "another replica follows the registered APIs and has their objects; ask again to reach it, or read the Mesh resources"
                .to_owned(),
        });
        state.unread.iter().cloned().chain(elsewhere).collect()
    }

    /// A Canary and the workload that it releases; none if it is gone.
    pub fn set_canary(&self, namespace: &str, name: &str, found: Option<(u64, Kind, &str)>) {
        if !self.is_wanted() {
            return;
        }
        let key = Key::new(&self.cluster, namespace, Kind::Canary, name);
        self.update(|inventory| match found {
            Some((version, kind, target)) => {
                let target = key.sibling(kind, target);
                inventory.apply(Object::canary(key, version, Some(target)));
            }
            None => inventory.remove(&key, None),
        });
    }

    /// The tap of a reflector in this namespace, or in all.
    pub fn tap(self: &Arc<Self>, kind: Kind, namespace: Option<&str>) -> Tap {
        let scope =
            ListScope { cluster: self.cluster.clone(), kind, namespace: namespace.map(str::to_owned) };
        Tap { live: Arc::clone(self), scope, shown: BTreeSet::new() }
    }
}

/// Copies what one reflector receives into the inventory, before it is projected and
/// whether or not a write response has overtaken it.
pub struct Tap {
    live: Arc<LiveInventory>,
    scope: ListScope,
    /// Of the list under way.
    shown: BTreeSet<Key>,
}

impl Tap {
    /// A list starts, from the beginning.
    pub fn list_started(&mut self) {
        self.shown.clear();
    }

    pub fn listed(&mut self, manifest: &Value) {
        if let Some(object) = self.parse(manifest) {
            self.shown.insert(object.key.clone());
            self.live.update(|inventory| inventory.apply(object));
        }
    }

    /// The list is complete: what it did not show is gone.
    pub fn list_completed(&mut self) {
        let shown = std::mem::take(&mut self.shown);
        self.live.update(|inventory| inventory.list_complete(&self.scope, &shown));
    }

    pub fn applied(&mut self, manifest: &Value) {
        if let Some(object) = self.parse(manifest) {
            self.live.update(|inventory| inventory.apply(object));
        }
    }

    pub fn deleted(&mut self, manifest: &Value) {
        if let Some(object) = self.parse(manifest) {
            self.live.update(|inventory| inventory.remove(&object.key, Some(object.version)));
        }
    }

    pub fn kind(&self) -> Kind {
        self.scope.kind
    }

    pub fn live(&self) -> &LiveInventory {
        &self.live
    }

    fn parse(&self, manifest: &Value) -> Option<Object> {
        Object::parse(&self.scope.cluster, self.scope.kind, manifest)
    }
}
