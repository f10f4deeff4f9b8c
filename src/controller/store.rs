//! Objects of one kind, by namespace and name, as watches tell of them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use kube::{Resource, core::ObjectMeta};
use parking_lot::RwLock;

use super::{labelled::Labelled, wake::Version};

/// What a table can hold.
pub trait Held {
    fn metadata(&self) -> &ObjectMeta;
}

impl<K: Resource> Held for K {
    fn metadata(&self) -> &ObjectMeta {
        self.meta()
    }
}

/// Clones of what it hands out share the object.
pub struct Table<K> {
    rows: RwLock<HashMap<String, Rows<K>>>,
    changes: AtomicU64,
    by_label: bool,
}

/// Of one namespace.
struct Rows<K> {
    /// Looked up a dozen times in a reconcile, so not in an order: the way through
    /// a tree of names is one of memory that is not at hand.
    named: HashMap<String, Arc<K>>,
    /// None if nobody looks for them so.
    labelled: Option<Labelled>,
    /// The last change among them.
    changed: u64,
}

/// Namespace and name of an object; a cluster's own have an empty namespace.
pub type Key = (String, String);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { rows: RwLock::default(), changes: AtomicU64::default(), by_label: false }
    }
}

impl<K: Held> Rows<K> {
    fn set(&mut self, name: &str, object: K) {
        let object = Arc::new(object);
        if let Some(labelled) = &mut self.labelled {
            let before = self.named.get(name).and_then(|before| before.metadata().labels.as_ref());
            if before != object.metadata().labels.as_ref() {
                labelled.remove(name, before);
                labelled.add(name, object.metadata().labels.as_ref());
            }
        }
        self.named.insert(name.to_owned(), object);
    }

    fn remove(&mut self, name: &str) {
        let gone = self.named.remove(name);
        if let (Some(labelled), Some(gone)) = (&mut self.labelled, gone) {
            labelled.remove(name, gone.metadata().labels.as_ref());
        }
    }
}

impl<K: Held> Table<K> {
    /// Whose objects can be [selected](Self::selected).
    pub fn by_label() -> Self {
        Self { by_label: true, ..Self::default() }
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.rows.read().get(namespace)?.named.get(name).cloned()
    }

    /// Stays the same for as long as everything in a namespace does.
    pub fn state(&self, namespace: &str) -> u64 {
        self.rows.read().get(namespace).map_or(0, |rows| rows.changed)
    }

    /// Everything in a namespace, in the order of names.
    pub fn all(&self, namespace: &str) -> Vec<Arc<K>> {
        let rows = self.rows.read();
        let mut all: Vec<_> = rows.get(namespace).iter().flat_map(|rows| &rows.named).collect();
        all.sort_by_key(|(name, _)| *name);
        all.into_iter().map(|(_, object)| Arc::clone(object)).collect()
    }

    /// What has all of these labels, in the order of names.
    pub fn selected(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<K>> {
        let rows = self.rows.read();
        let Some(Rows { named, labelled: Some(labelled), .. }) = rows.get(namespace) else {
            return Vec::new();
        };
        labelled.with(labels).into_iter().filter_map(|name| named.get(name).cloned()).collect()
    }

    /// Everything, in the order of namespaces and names.
    pub fn everything(&self) -> Vec<Arc<K>> {
        let rows = self.rows.read();
        let mut all: Vec<Arc<K>> = rows.values().flat_map(|rows| rows.named.values().cloned()).collect();
        all.sort_by(|a, b| {
            let (a, b) = (a.metadata(), b.metadata());
            (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name))
        });
        all
    }

    /// Is an object of which this is the metadata not here yet, or only an older
    /// version of it?
    pub fn lacks(&self, meta: &ObjectMeta) -> bool {
        let rows = self.rows.read();
        let held = rows.get(meta.namespace.as_deref().unwrap_or_default());
        let held = held.and_then(|rows| rows.named.get(meta.name.as_deref().unwrap_or_default()));
        held.is_none_or(|held| is_newer(meta, held.metadata()))
    }

    /// Takes in an object; none if what is here is as new already, or is the
    /// same but for its version. A watch may well tell of a version that a
    /// write's answer has overtaken.
    pub fn put(&self, object: K, is_same: fn(&K, &K) -> bool) -> Option<Key> {
        let key = key(object.metadata());
        let mut rows = self.rows.write();
        let labelled = self.by_label.then(Labelled::default);
        let new = || Rows { named: HashMap::new(), labelled, changed: 0 };
        let rows = rows.entry(key.0.clone()).or_insert_with(new);
        let held = rows.named.get(&key.1);
        if held.is_some_and(|held| !is_newer(object.metadata(), held.metadata())) {
            return None;
        }
        let same = held.is_some_and(|held| is_same(held, &object));
        rows.set(&key.1, object);
        if same {
            return None;
        }
        rows.changed = self.next_change();
        Some(key)
    }

    /// Takes in the answer to a request, unless the object is gone or another
    /// by now, or what is here is as new already.
    pub fn put_answer(&self, object: K) -> Option<Key> {
        let key = key(object.metadata());
        let mut rows = self.rows.write();
        let rows = rows.get_mut(&key.0)?;
        let held = rows.named.get(&key.1)?;
        let is_news =
            held.metadata().uid == object.metadata().uid && is_newer(object.metadata(), held.metadata());
        is_news.then(|| {
            rows.set(&key.1, object);
            rows.changed = self.next_change();
            key
        })
    }

    /// Takes in the answer to a write, which is read only if a watch was not
    /// faster. None if what is here is not of that version.
    pub fn learn<T: Held>(&self, answer: T, read: impl FnOnce(T) -> K) -> Option<Arc<K>> {
        let (key, version) = (key(answer.metadata()), Version::of(answer.metadata()));
        if self.lacks(answer.metadata()) {
            self.put_answer(read(answer));
        }
        self.get(&key.0, &key.1).filter(|held| Version::of(held.metadata()) == version)
    }

    pub fn remove(&self, meta: &ObjectMeta) -> Key {
        let key = key(meta);
        let mut rows = self.rows.write();
        if let Some(among) = rows.get_mut(&key.0) {
            among.remove(&key.1);
            among.changed = self.next_change();
            if among.named.is_empty() {
                rows.remove(&key.0);
            }
        }
        key
    }

    /// Takes in a complete list of a namespace, or of all of them; says which
    /// are new, changed or gone.
    pub fn replace(&self, scope: Option<&str>, listed: Vec<K>) -> Vec<Key> {
        let known: HashSet<Key> = listed.iter().map(|object| key(object.metadata())).collect();
        let mut changed: Vec<Key> =
            listed.into_iter().filter_map(|object| self.put(object, differ)).collect();
        let mut gone: Vec<Key> = Vec::new();
        let mut rows = self.rows.write();
        rows.retain(|namespace, rows| {
            if scope.is_none_or(|scope| scope == namespace) {
                let keys = rows.named.keys().map(|name| (namespace.clone(), name.clone()));
                let unlisted: Vec<Key> = keys.filter(|key| !known.contains(key)).collect();
                for (_, name) in &unlisted {
                    rows.remove(name);
                    rows.changed = self.next_change();
                }
                gone.extend(unlisted);
            }
            !rows.named.is_empty()
        });
        // In an order, so that simulations replay.
        gone.sort();
        changed.extend(gone);
        changed
    }

    fn next_change(&self) -> u64 {
        self.changes.fetch_add(1, Ordering::Relaxed) + 1
    }
}

/// Every version counts.
pub fn differ<K>(_: &K, _: &K) -> bool {
    false
}

fn key(meta: &ObjectMeta) -> Key {
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Versions that are no numbers cannot be compared: then the latest word counts.
fn is_newer(told: &ObjectMeta, held: &ObjectMeta) -> bool {
    let version = |meta: &ObjectMeta| meta.resource_version.as_ref()?.parse::<u64>().ok();
    let same = told.uid == held.uid;
    match (version(told), version(held)) {
        (Some(told), Some(held)) if same => told > held,
        _ => told.resource_version != held.resource_version || !same,
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

    fn held(table: &Table<ConfigMap>) -> Vec<(String, String)> {
        let told = |object: &Arc<ConfigMap>| {
            (object.metadata.name.clone().unwrap(), object.metadata.resource_version.clone().unwrap())
        };
        table.all("shop").iter().map(told).collect()
    }

    #[test]
    fn an_older_version_changes_nothing() {
        let table = Table::default();
        assert!(table.put(config("a", 10), differ).is_some());
        assert!(table.put(config("a", 9), differ).is_none() && table.put(config("a", 10), differ).is_none());
        assert_eq!(held(&table), [("a".to_owned(), "10".to_owned())]);
    }

    #[test]
    fn what_is_the_same_is_kept_and_not_told() {
        let table = Table::default();
        assert!(table.put(config("a", 1), |_, _| true).is_some());
        assert!(table.put(config("a", 2), |_, _| true).is_none());
        assert_eq!(held(&table), [("a".to_owned(), "2".to_owned())]);
    }

    /// Whoever takes Canaries over wakes them so, and simulations replay.
    #[test]
    fn everything_is_told_in_an_order() {
        let table = Table::default();
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        names.iter().rev().for_each(|name| drop(table.put(config(name, 1), differ)));
        let all = table.everything();
        let told: Vec<_> = all.iter().filter_map(|config| config.metadata.name.as_deref()).collect();
        assert_eq!(told, names);
        let gone: Vec<_> = table.replace(None, vec![]).into_iter().map(|(_, name)| name).collect();
        assert_eq!(gone, names);
    }

    #[test]
    fn a_list_tells_what_is_new_and_what_is_gone() {
        let table = Table::default();
        for name in ["a", "b", "c"] {
            table.put(config(name, 1), differ);
        }
        let mut changed = table.replace(Some("shop"), vec![config("a", 1), config("b", 2), config("d", 3)]);
        changed.sort();
        let names: Vec<_> = changed.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        assert!(table.get("shop", "c").is_none());
    }

    #[test]
    fn what_is_selected_follows_labels_that_come_and_go() {
        let table = Table::<ConfigMap>::by_label();
        let labels = |app: &str| BTreeMap::from([("app".to_owned(), app.to_owned())]);
        let with = |name: &str, version: u64, app: &str| {
            let mut config = config(name, version);
            config.metadata.labels = Some(labels(app));
            config
        };
        let names = |app: &str| -> Vec<_> {
            let found = table.selected("shop", &labels(app));
            found.iter().map(|object| object.metadata.name.clone().unwrap()).collect()
        };
        table.put(with("a", 1, "web"), differ);
        table.put(with("b", 2, "web"), differ);
        assert_eq!((names("web"), names("api")), (vec!["a".to_owned(), "b".to_owned()], vec![]));
        table.put(with("a", 3, "api"), differ);
        table.put_answer(with("b", 4, "api"));
        assert_eq!((names("web"), names("api")), (vec![], vec!["a".to_owned(), "b".to_owned()]));
        table.remove(&config("a", 3).metadata);
        assert_eq!(names("api"), ["b"]);
        table.replace(Some("shop"), vec![with("c", 5, "api")]);
        assert_eq!(names("api"), ["c"]);
    }

    #[test]
    fn the_state_of_a_namespace_tells_whether_anything_in_it_changed() {
        let table = Table::default();
        let mut states = vec![table.state("shop")];
        let mut changes = |change: &dyn Fn(&Table<ConfigMap>), expected: bool| {
            let before = table.state("shop");
            change(&table);
            let after = table.state("shop");
            assert_eq!(after != before, expected, "{states:?}, then {after}");
            assert!(!expected || after == 0 || !states.contains(&after), "{states:?}, then {after} again");
            states.push(after);
        };
        changes(&|table| drop(table.put(config("a", 1), differ)), true);
        changes(&|table| drop(table.put(config("a", 1), differ)), false);
        changes(&|table| drop(table.put(config("a", 2), |_, _| true)), false);
        changes(&|table| drop(table.put_answer(config("a", 3))), true);
        changes(&|table| drop(table.put(config("b", 4), differ)), true);
        changes(&|table| drop(table.replace(None, vec![config("a", 3)])), true);
        changes(&|table| drop(table.replace(None, vec![config("a", 3)])), false);
        changes(&|table| drop(table.remove(&config("a", 3).metadata)), true);
        changes(&|table| drop(table.put(config("a", 5), differ)), true);
    }

    #[test]
    fn the_answer_to_a_write_brings_nothing_back() {
        let table = Table::default();
        table.put(config("a", 1), differ);
        table.remove(&config("a", 1).metadata);
        assert!(table.learn(config("a", 2), identity).is_none());
        assert!(table.get("shop", "a").is_none());
    }

    #[test]
    fn what_was_written_is_known_whoever_told_of_it() {
        let (table, written) = (Table::default(), config("a", 2));
        table.put(config("a", 1), differ);
        assert!(table.learn(written.clone(), identity).is_some(), "the answer");
        table.put(config("a", 3), differ);
        let unread = |_| panic!("a watch was faster");
        assert!(table.learn(config("a", 3), unread).is_some());
        assert!(table.learn(written, unread).is_none(), "it is not here any more");
    }
}
