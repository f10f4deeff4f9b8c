//! Objects of one kind, by namespace and name, as watches tell of them.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use kube::Resource;
use parking_lot::RwLock;

/// Clones of what it hands out share the object.
pub struct Table<K> {
    rows: RwLock<HashMap<String, BTreeMap<String, Arc<K>>>>,
}

/// Namespace and name of an object; a cluster's own have an empty namespace.
pub type Key = (String, String);

impl<K> Default for Table<K> {
    fn default() -> Self {
        Self { rows: RwLock::default() }
    }
}

impl<K: Resource> Table<K> {
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.rows.read().get(namespace)?.get(name).cloned()
    }

    /// Everything there is.
    pub fn keys(&self) -> Vec<Key> {
        let rows = self.rows.read();
        let names =
            rows.iter().flat_map(|(namespace, named)| named.keys().map(move |name| (namespace, name)));
        names.map(|(namespace, name)| (namespace.clone(), name.clone())).collect()
    }

    /// Everything in a namespace, in the order of names.
    pub fn all(&self, namespace: &str) -> Vec<Arc<K>> {
        self.rows.read().get(namespace).map(|rows| rows.values().cloned().collect()).unwrap_or_default()
    }

    /// Everything, in no order.
    pub fn everything(&self) -> Vec<Arc<K>> {
        self.rows.read().values().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Takes in an object; none if what is here is as new already. A watch
    /// may well tell of a version that a write's answer has overtaken.
    pub fn put(&self, object: K) -> Option<Key> {
        let key = key(&object);
        let mut rows = self.rows.write();
        let rows = rows.entry(key.0.clone()).or_default();
        if rows.get(&key.1).is_some_and(|held| !is_newer(&object, &**held)) {
            return None;
        }
        rows.insert(key.1.clone(), Arc::new(object));
        Some(key)
    }

    /// Takes in the answer to a write, unless the object is gone or another by
    /// now.
    pub fn put_answer(&self, object: K) {
        let (namespace, name) = key(&object);
        let mut rows = self.rows.write();
        let held = rows.get_mut(&namespace).and_then(|rows| rows.get_mut(&name));
        if let Some(held) = held
            && held.meta().uid == object.meta().uid
            && is_newer(&object, &**held)
        {
            *held = Arc::new(object);
        }
    }

    pub fn remove(&self, object: &K) -> Key {
        let key = key(object);
        let mut rows = self.rows.write();
        if let Some(named) = rows.get_mut(&key.0) {
            named.remove(&key.1);
            if named.is_empty() {
                rows.remove(&key.0);
            }
        }
        key
    }

    /// Takes in a complete list of a namespace, or of all of them; says which
    /// are new, changed or gone.
    pub fn replace(&self, scope: Option<&str>, listed: Vec<K>) -> Vec<Key> {
        let known: HashSet<Key> = listed.iter().map(key).collect();
        let mut changed: Vec<Key> = listed.into_iter().filter_map(|object| self.put(object)).collect();
        let mut rows = self.rows.write();
        rows.retain(|namespace, named| {
            if scope.is_none_or(|scope| scope == namespace) {
                named.retain(|name, _| {
                    let key = (namespace.clone(), name.clone());
                    let stays = known.contains(&key);
                    if !stays {
                        changed.push(key);
                    }
                    stays
                });
            }
            !named.is_empty()
        });
        changed
    }
}

fn key<K: Resource>(object: &K) -> Key {
    let meta = object.meta();
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

/// Versions that are no numbers cannot be compared: then the latest word counts.
fn is_newer<K: Resource>(object: &K, held: &K) -> bool {
    let version = |object: &K| object.meta().resource_version.as_ref()?.parse::<u64>().ok();
    let same = object.meta().uid == held.meta().uid;
    match (version(object), version(held)) {
        (Some(version), Some(held)) if same => version > held,
        _ => object.meta().resource_version != held.meta().resource_version || !same,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::ObjectMeta;

    use super::*;

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
        assert!(table.put(config("a", 10)).is_some());
        assert!(table.put(config("a", 9)).is_none() && table.put(config("a", 10)).is_none());
        assert_eq!(held(&table), [("a".to_owned(), "10".to_owned())]);
    }

    #[test]
    fn a_list_tells_what_is_new_and_what_is_gone() {
        let table = Table::default();
        for name in ["a", "b", "c"] {
            table.put(config(name, 1));
        }
        let mut changed = table.replace(Some("shop"), vec![config("a", 1), config("b", 2), config("d", 3)]);
        changed.sort();
        let names: Vec<_> = changed.iter().map(|(_, name)| name.as_str()).collect();
        assert_eq!(names, ["b", "c", "d"]);
        assert!(table.get("shop", "c").is_none());
    }

    #[test]
    fn the_answer_to_a_write_brings_nothing_back() {
        let table = Table::default();
        table.put(config("a", 1));
        table.remove(&config("a", 1));
        table.put_answer(config("a", 2));
        assert!(table.get("shop", "a").is_none());
    }
}
