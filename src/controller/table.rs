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

use super::wake::Version;

/// Clones of what it hands out share the object.
pub struct Table<K> {
    rows: RwLock<HashMap<String, Rows<K>>>,
    changes: AtomicU64,
}

/// Of one namespace.
struct Rows<K> {
    named: BTreeMap<String, Arc<K>>,
    /// The last change among them.
    changed: u64,
}

/// Namespace and name of an object; a cluster's own have an empty namespace.
pub type Key = (String, String);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { rows: RwLock::default(), changes: AtomicU64::default() }
    }
}

impl<K: Resource> Table<K> {
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.rows.read().get(namespace)?.named.get(name).cloned()
    }

    /// Stays the same for as long as everything in a namespace does.
    pub fn state(&self, namespace: &str) -> u64 {
        self.rows.read().get(namespace).map_or(0, |rows| rows.changed)
    }

    /// Everything in a namespace, in the order of names.
    pub fn all(&self, namespace: &str) -> Vec<Arc<K>> {
        self.rows.read().get(namespace).map(|rows| rows.named.values().cloned().collect()).unwrap_or_default()
    }

    /// Everything, in no order.
    pub fn everything(&self) -> Vec<Arc<K>> {
        self.rows.read().values().flat_map(|rows| rows.named.values()).cloned().collect()
    }

    /// Is an object of which this is the metadata not here yet, or only an older
    /// version of it?
    pub fn lacks(&self, meta: &ObjectMeta) -> bool {
        let rows = self.rows.read();
        let held = rows.get(meta.namespace.as_deref().unwrap_or_default());
        let held = held.and_then(|rows| rows.named.get(meta.name.as_deref().unwrap_or_default()));
        held.is_none_or(|held| is_newer(meta, held.meta()))
    }

    /// Takes in an object; none if what is here is as new already, or is the
    /// same but for its version. A watch may well tell of a version that a
    /// write's answer has overtaken.
    pub fn put(&self, object: K, is_same: fn(&K, &K) -> bool) -> Option<Key> {
        let key = key(object.meta());
        let mut rows = self.rows.write();
        let rows = rows.entry(key.0.clone()).or_insert_with(|| Rows { named: BTreeMap::new(), changed: 0 });
        let held = rows.named.get(&key.1);
        if held.is_some_and(|held| !is_newer(object.meta(), held.meta())) {
            return None;
        }
        let same = held.is_some_and(|held| is_same(held, &object));
        rows.named.insert(key.1.clone(), Arc::new(object));
        if same {
            return None;
        }
        rows.changed = self.next_change();
        Some(key)
    }

    /// Takes in the answer to a request, unless the object is gone or another
    /// by now, or what is here is as new already.
    pub fn put_answer(&self, object: K) -> Option<Key> {
        let key = key(object.meta());
        let mut rows = self.rows.write();
        let rows = rows.get_mut(&key.0)?;
        let held = rows.named.get_mut(&key.1)?;
        let is_news = held.meta().uid == object.meta().uid && is_newer(object.meta(), held.meta());
        is_news.then(|| {
            *held = Arc::new(object);
            rows.changed = self.next_change();
            key
        })
    }

    /// Takes in the answer to a write, which is read only if a watch was not
    /// faster. None if what is here is not of that version.
    pub fn learn<T: Resource>(&self, answer: T, read: impl FnOnce(T) -> K) -> Option<Arc<K>> {
        let (key, version) = (key(answer.meta()), Version::of(answer.meta()));
        if self.lacks(answer.meta()) {
            self.put_answer(read(answer));
        }
        self.get(&key.0, &key.1).filter(|held| Version::of(held.meta()) == version)
    }

    pub fn remove(&self, meta: &ObjectMeta) -> Key {
        let key = key(meta);
        let mut rows = self.rows.write();
        if let Some(Rows { named, changed }) = rows.get_mut(&key.0) {
            named.remove(&key.1);
            *changed = self.next_change();
            if named.is_empty() {
                rows.remove(&key.0);
            }
        }
        key
    }

    /// Takes in a complete list of a namespace, or of all of them; says which
    /// are new, changed or gone.
    pub fn replace(&self, scope: Option<&str>, listed: Vec<K>) -> Vec<Key> {
        let known: HashSet<Key> = listed.iter().map(|object| key(object.meta())).collect();
        let mut changed: Vec<Key> =
            listed.into_iter().filter_map(|object| self.put(object, differ)).collect();
        let mut rows = self.rows.write();
        rows.retain(|namespace, rows| {
            if scope.is_none_or(|scope| scope == namespace) {
                rows.named.retain(|name, _| {
                    let key = (namespace.clone(), name.clone());
                    let stays = known.contains(&key);
                    if !stays {
                        changed.push(key);
                        rows.changed = self.next_change();
                    }
                    stays
                });
            }
            !rows.named.is_empty()
        });
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
