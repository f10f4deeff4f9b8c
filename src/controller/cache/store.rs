//! Objects of one kind, by namespace and name, as reflectors deliver them. Older
//! versions are rejected, and write responses are applied before their events.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::core::ObjectMeta;
use parking_lot::RwLock;

use super::label_index::LabelIndex;
use crate::controller::queue::trigger::{HasMeta, ObjectVersion};

/// Objects are shared, not copied.
pub struct Store<K> {
    namespaces: RwLock<HashMap<String, NamespaceStore<K>>>,
    last_revision: AtomicU64,
    indexes_labels: bool,
}

/// The objects of one namespace.
struct NamespaceStore<K> {
    /// Hashed, not ordered: a reconcile has a dozen lookups, and walking a tree
    /// misses the CPU cache.
    by_name: HashMap<String, Arc<K>>,
    /// None unless objects are listed by label.
    label_index: Option<LabelIndex>,
    /// Number of the last change.
    revision: u64,
}

/// Namespace and name of an object; the namespace of cluster-wide ones is empty.
pub type Key = (String, String);

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self { namespaces: RwLock::default(), last_revision: AtomicU64::default(), indexes_labels: false }
    }
}

impl<K: HasMeta> NamespaceStore<K> {
    fn set(&mut self, name: &str, object: K) {
        let object = Arc::new(object);
        if let Some(labelled) = &mut self.label_index {
            let before = self.by_name.get(name).and_then(|before| before.metadata().labels.as_ref());
            if before != object.metadata().labels.as_ref() {
                labelled.remove(name, before);
                labelled.add(name, object.metadata().labels.as_ref());
            }
        }
        self.by_name.insert(name.to_owned(), object);
    }

    fn remove(&mut self, name: &str) {
        let gone = self.by_name.remove(name);
        if let (Some(labelled), Some(gone)) = (&mut self.label_index, gone) {
            labelled.remove(name, gone.metadata().labels.as_ref());
        }
    }
}

impl<K: HasMeta> Store<K> {
    /// A store with [`list_matching`](Self::list_matching).
    pub fn with_label_index() -> Self {
        Self { indexes_labels: true, ..Self::default() }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.namespaces.read().get(namespace)?.by_name.get(name).cloned()
    }

    /// Unchanged as long as the objects of a namespace are.
    pub fn revision(&self, namespace: &str) -> u64 {
        self.namespaces.read().get(namespace).map_or(0, |rows| rows.revision)
    }

    /// The objects of a namespace, ordered by name.
    pub fn list(&self, namespace: &str) -> Vec<Arc<K>> {
        let rows = self.namespaces.read();
        let mut all: Vec<_> = rows.get(namespace).iter().flat_map(|rows| &rows.by_name).collect();
        all.sort_by_key(|(name, _)| *name);
        all.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// Objects that have all of these labels, ordered by name.
    pub fn list_matching(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<K>> {
        let rows = self.namespaces.read();
        let Some(NamespaceStore { by_name: named, label_index: Some(labelled), .. }) = rows.get(namespace)
        else {
            return Vec::new();
        };
        labelled.matching(labels).into_iter().filter_map(|name| named.get(name).cloned()).collect()
    }

    /// All objects, ordered by namespace and name.
    pub fn list_all(&self) -> Vec<Arc<K>> {
        let rows = self.namespaces.read();
        let mut all: Vec<Arc<K>> = rows.values().flat_map(|rows| rows.by_name.values().cloned()).collect();
        all.sort_by(|a, b| {
            let (a, b) = (a.metadata(), b.metadata());
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        all
    }

    /// Is the object with this metadata missing here, or older?
    pub fn is_outdated_by(&self, meta: &ObjectMeta) -> bool {
        let rows = self.namespaces.read();
        let held = rows.get(meta.namespace.as_deref().unwrap_or_default());
        let held = held.and_then(|rows| rows.by_name.get(meta.name.as_deref().unwrap_or_default()));
        held.is_none_or(|held| is_newer(meta, held.metadata()))
    }

    /// Applies a watch event. None if the stored object is as new (a write
    /// response may have overtaken the event) or if `is_same` holds.
    pub fn apply(&self, object: K, is_same: fn(&K, &K) -> bool) -> Option<Key> {
        let key = key(object.metadata());
        let mut rows = self.namespaces.write();
        let labelled = self.indexes_labels.then(LabelIndex::default);
        let new = || NamespaceStore { by_name: HashMap::new(), label_index: labelled, revision: 0 };
        let rows = rows.entry(key.0.clone()).or_insert_with(new);
        let held = rows.by_name.get(&key.1);
        if held.is_some_and(|held| !is_newer(object.metadata(), held.metadata())) {
            return None;
        }
        let same = held.is_some_and(|held| is_same(held, &object));
        rows.set(&key.1, object);
        if same {
            return None;
        }
        rows.revision = self.next_revision();
        Some(key)
    }

    /// Applies a response, unless the object was deleted or recreated, or the
    /// stored one is as new.
    pub fn apply_existing(&self, object: K) -> Option<Key> {
        let key = key(object.metadata());
        let mut rows = self.namespaces.write();
        let rows = rows.get_mut(&key.0)?;
        let held = rows.by_name.get(&key.1)?;
        let is_foreign_change =
            held.metadata().uid == object.metadata().uid && is_newer(object.metadata(), held.metadata());
        is_foreign_change.then(|| {
            rows.set(&key.1, object);
            rows.revision = self.next_revision();
            key
        })
    }

    /// Applies a write response, decoding it only if the watch was not faster.
    /// Returns the stored object if it is of that version.
    pub fn apply_write_response<T: HasMeta>(
        &self,
        response: T,
        decode: impl FnOnce(T) -> K,
    ) -> Option<Arc<K>> {
        let (key, version) = (key(response.metadata()), ObjectVersion::of(response.metadata()));
        if self.is_outdated_by(response.metadata()) {
            self.apply_existing(decode(response));
        }
        self.get(&key.0, &key.1).filter(|held| ObjectVersion::of(held.metadata()) == version)
    }

    pub fn remove(&self, meta: &ObjectMeta) -> Key {
        let key = key(meta);
        let mut rows = self.namespaces.write();
        if let Some(among) = rows.get_mut(&key.0) {
            among.remove(&key.1);
            among.revision = self.next_revision();
            if among.by_name.is_empty() {
                rows.remove(&key.0);
            }
        }
        key
    }

    /// Applies a complete list of a namespace, or of all; returns the keys that are
    /// new, changed or gone.
    pub fn replace(&self, scope: Option<&str>, listed: Vec<K>) -> Vec<Key> {
        let known: HashSet<Key> = listed.iter().map(|object| key(object.metadata())).collect();
        let mut changed: Vec<Key> =
            listed.into_iter().filter_map(|object| self.apply(object, always_differs)).collect();
        let mut gone: Vec<Key> = Vec::new();
        let mut rows = self.namespaces.write();
        rows.retain(|namespace, rows| {
            if scope.is_none_or(|scope| scope == namespace) {
                let keys = rows.by_name.keys().map(|name| (namespace.clone(), name.clone()));
                let unlisted: Vec<Key> = keys.filter(|key| !known.contains(key)).collect();
                for (_, name) in &unlisted {
                    rows.remove(name);
                    rows.revision = self.next_revision();
                }
                gone.extend(unlisted);
            }
            !rows.by_name.is_empty()
        });
        // In an order, so that simulations replay.
        gone.sort();
        changed.extend(gone);
        changed
    }

    fn next_revision(&self) -> u64 {
        self.last_revision.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// A filter that passes every version.
pub fn always_differs<K>(_: &K, _: &K) -> bool {
    false
}

fn key(meta: &ObjectMeta) -> Key {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// resourceVersions that are no numbers cannot be compared: then the latest counts.
fn is_newer(incoming: &ObjectMeta, held: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| meta.resource_version.as_ref()?.parse::<u64>().ok();
    let same = incoming.uid == held.uid;
    match (version(incoming), version(held)) {
        (Some(incoming), Some(held)) if same => incoming > held,
        _ => incoming.resource_version != held.resource_version || !same,
    }
}

#[cfg(test)]
mod tests {
    use std::convert::identity;

    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;

    fn config(name: &str, version: u64) -> ConfigMap {
        let metadata = ObjectMeta {
            namespace: Some("shop".to_owned()),
            name: Some(name.to_owned()),
            uid: Some(name.to_owned()),
            resource_version: Some(version.to_string()),
            ..Default::default()
        };
        ConfigMap { metadata, ..Default::default() }
    }

    fn contents(store: &Store<ConfigMap>) -> Vec<(String, String)> {
        let identity = |object: &Arc<ConfigMap>| {
            (object.metadata.name.clone().unwrap(), object.metadata.resource_version.clone().unwrap())
        };
        store.list("shop").iter().map(identity).collect()
    }

    #[test]
    fn an_older_version_changes_nothing() {
        let store = Store::default();
        assert!(store.apply(config("a", 10), always_differs).is_some());
        assert!(
            store.apply(config("a", 9), always_differs).is_none()
                && store.apply(config("a", 10), always_differs).is_none()
        );
        assert_eq!(contents(&store), [("a".to_owned(), "10".to_owned())]);
    }

    #[test]
    fn an_equal_object_is_kept_and_not_reported() {
        let store = Store::default();
        assert!(store.apply(config("a", 1), |_, _| true).is_some());
        assert!(store.apply(config("a", 2), |_, _| true).is_none());
        assert_eq!(contents(&store), [("a".to_owned(), "2".to_owned())]);
    }

    /// A replica that acquires shards enqueues in this order, so simulations replay.
    #[test]
    fn changes_are_reported_in_order() {
        let store = Store::default();
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        names.iter().rev().for_each(|name| drop(store.apply(config(name, 1), always_differs)));
        let all = store.list_all();
        let listed: Vec<_> = all.iter().filter_map(|config| config.metadata.name.as_deref()).collect();
        assert_eq!(listed, names);
        let gone: Vec<_> = store.replace(None, vec![]).into_iter().map(|(_, name)| name).collect();
        assert_eq!(gone, names);
    }

    #[test]
    fn a_list_reports_new_and_removed_objects() {
        let store = Store::default();
        for name in ["a", "b", "c"] {
            store.apply(config(name, 1), always_differs);
        }
        let mut changed = store.replace(Some("shop"), vec![config("a", 1), config("b", 2), config("d", 3)]);
        changed.sort();
        let names: Vec<_> = changed.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        assert!(store.get("shop", "c").is_none());
    }

    #[test]
    fn a_selection_follows_label_changes() {
        let store = Store::<ConfigMap>::with_label_index();
        let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let with = |name: &str, version: u64, app: &str| {
            let mut config = config(name, version);
            config.metadata.labels = Some(labels(app));
            config
        };
        let names = |app: &str| -> Vec<_> {
            let found = store.list_matching("shop", &labels(app));
            found.iter().map(|object| object.metadata.name.clone().unwrap()).collect()
        };
        store.apply(with("a", 1, "web"), always_differs);
        store.apply(with("b", 2, "web"), always_differs);
        assert_eq!((names("web"), names("api")), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        store.apply(with("a", 3, "api"), always_differs);
        store.apply_existing(with("b", 4, "api"));
        assert_eq!((names("web"), names("api")), (vec![], vec!["a".to_owned(), "b".to_owned()]));
        store.remove(&config("a", 3).metadata);
        assert_eq!(names("api"), ["b"]);
        store.replace(Some("shop"), vec![with("c", 5, "api")]);
        assert_eq!(names("api"), ["c"]);
    }

    #[test]
    fn the_revision_of_a_namespace_changes_with_its_objects() {
        let store = Store::default();
        let mut states = vec![store.revision("shop")];
        let mut changes = |change: &dyn Fn(&Store<ConfigMap>), expected: bool| {
            let before = store.revision("shop");
            change(&store);
            let after = store.revision("shop");
            assert_eq!(after != before, expected, "{states:?}, then {after}");
            assert!(!expected || after == 0 || !states.contains(&after), "{states:?}, then {after} again");
            states.push(after);
        };
        changes(&|store| drop(store.apply(config("a", 1), always_differs)), true);
        changes(&|store| drop(store.apply(config("a", 1), always_differs)), false);
        changes(&|store| drop(store.apply(config("a", 2), |_, _| true)), false);
        changes(&|store| drop(store.apply_existing(config("a", 3))), true);
        changes(&|store| drop(store.apply(config("b", 4), always_differs)), true);
        changes(&|store| drop(store.replace(None, vec![config("a", 3)])), true);
        changes(&|store| drop(store.replace(None, vec![config("a", 3)])), false);
        changes(&|store| drop(store.remove(&config("a", 3).metadata)), true);
        changes(&|store| drop(store.apply(config("a", 5), always_differs)), true);
    }

    #[test]
    fn a_write_response_does_not_revive_a_deleted_object() {
        let store = Store::default();
        store.apply(config("a", 1), always_differs);
        store.remove(&config("a", 1).metadata);
        assert!(store.apply_write_response(config("a", 2), identity).is_none());
        assert!(store.get("shop", "a").is_none());
    }

    #[test]
    fn a_written_object_is_cached_from_response_or_watch() {
        let (store, written) = (Store::default(), config("a", 2));
        store.apply(config("a", 1), always_differs);
        assert!(store.apply_write_response(written.clone(), identity).is_some(), "the answer");
        store.apply(config("a", 3), always_differs);
        let unread = |_| panic!("a watch was faster");
        assert!(store.apply_write_response(config("a", 3), unread).is_some());
        assert!(store.apply_write_response(written, unread).is_none(), "it is not here any more");
    }
}
