//! An in-memory object store with versions, history and watch notification.
//!
//! Every write gets the next version of one counter shared by all collections, as
//! in etcd. A collection keeps its latest events: a watch reads them from any
//! version still in the history, and a list at an older version is the current
//! state with the later events undone. The store knows nothing of HTTP or
//! schemas. No lock is held while a write is computed: a writer reads an object,
//! computes its successor, and commits it on the condition that the version is
//! unchanged.
//!
//! With a [`Journal`] each write is handed to it under the lock, so in the order of
//! versions. A client is shown a write after [`Store::committed`].

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use parking_lot::RwLock;
use serde_json::Value;
use tokio::sync::watch;

use super::ordered_notify::{OrderedNotify, Subscription};

/// Events kept per collection, for watches from an older version.
const MAX_EVENTS: usize = 20_000;

/// The first version; smaller ones are always too old to watch from.
pub const FIRST_VERSION: u64 = 100;

/// The key of an object in its collection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Key {
    /// Empty for cluster-scoped objects.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl Key {
    pub fn new(namespace: &str, name: &str) -> Key {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

/// One version of one object; immutable.
pub struct Object {
    pub key: Key,
    pub version: u64,
    pub value: Value,
    json: OnceLock<Bytes>,
}

impl Object {
    fn new(key: Key, version: u64, mut value: Value) -> Object {
        value["metadata"]["resourceVersion"] = Value::String(version.to_string());
        Object { key, version, value, json: OnceLock::new() }
    }

    /// Its JSON, serialised once for all lists and watches.
    pub fn json(&self) -> Bytes {
        self.json.get_or_init(|| Bytes::from(self.value.to_string())).clone()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    Added,
    Modified,
    Deleted,
}

/// The change of one object at one version.
pub struct Event {
    pub change: Change,
    /// For `Deleted`: the last state, at the version of its deletion.
    pub object: Arc<Object>,
    pub previous: Option<Arc<Object>>,
    frame: OnceLock<Bytes>,
}

impl Event {
    /// The frame of a plain watch, shared by all watchers.
    pub fn frame(&self) -> Bytes {
        self.frame.get_or_init(|| frame(self.change, &self.object.json())).clone()
    }
}

/// `{"type":"ADDED","object":…}` and a newline.
pub fn frame(change: Change, object: &[u8]) -> Bytes {
    let kind = match change {
        Change::Added => "ADDED",
        Change::Modified => "MODIFIED",
        Change::Deleted => "DELETED",
    };
    let mut line = Vec::with_capacity(object.len() + 40);
    line.extend_from_slice(b"{\"type\":\"");
    line.extend_from_slice(kind.as_bytes());
    line.extend_from_slice(b"\",\"object\":");
    line.extend_from_slice(object);
    line.extend_from_slice(b"}\n");
    line.into()
}

/// The state that a write expects.
#[derive(Clone, Copy, Debug)]
pub enum Precondition {
    Absent,
    Version(u64),
}

/// The object was written or removed since it was read.
#[derive(Debug, thiserror::Error)]
#[error("the object is not at the expected version")]
pub struct VersionConflict;

/// The history no longer reaches back to the requested version.
#[derive(Debug, thiserror::Error)]
#[error("too old resource version: {requested} ({oldest})")]
pub struct Compacted {
    pub requested: u64,
    pub oldest: u64,
}

/// One committed write.
pub struct Write<'a> {
    /// Such as `deployments.apps`.
    pub collection: &'a str,
    pub version: u64,
    pub before: Option<&'a Value>,
    /// `None` if the object was removed.
    pub after: Option<&'a Value>,
}

/// Called for every write, in the order of versions, before any watcher sees it.
/// It must not call the server.
pub type WriteHook = Box<dyn Fn(&Write<'_>) + Send + Sync>;

/// Keeps writes beyond the process.
pub trait Journal: Send + Sync {
    /// Called for every write, in the order of versions. It must not block.
    fn append(&self, record: Record);

    fn progress(&self) -> watch::Receiver<Progress>;
}

/// A write as it is kept.
pub struct Record {
    pub collection: String,
    pub key: Key,
    pub version: u64,
    /// JSON; `None` if the object was removed.
    pub object: Option<Bytes>,
}

/// How far a journal is.
#[derive(Clone, Default, Debug)]
pub struct Progress {
    /// Writes up to this version are kept.
    pub version: u64,
    /// Why no more will be.
    pub failure: Option<Arc<str>>,
}

/// Writes are no longer kept.
#[derive(Debug, Clone, thiserror::Error)]
#[error("writes cannot be kept: {0}")]
pub struct JournalFailed(pub Arc<str>);

#[derive(Default)]
struct Collection {
    objects: BTreeMap<Key, Arc<Object>>,
    events: VecDeque<Arc<Event>>,
    /// The newest version whose event was dropped.
    compacted_version: u64,
    notify: OrderedNotify,
}

/// Collections of objects under one version counter.
pub struct Store(RwLock<Inner>);

struct Inner {
    version: u64,
    collections: HashMap<String, Collection>,
    /// The last events of closed collections, for watches that have not read them yet.
    closed: HashMap<String, VecDeque<Arc<Event>>>,
    write_hook: Option<WriteHook>,
    journal: Option<Box<dyn Journal>>,
}

/// The objects at one version.
pub struct Snapshot {
    pub version: u64,
    pub objects: Vec<Arc<Object>>,
}

impl Store {
    pub fn new() -> Store {
        Store(RwLock::new(Inner {
            version: FIRST_VERSION,
            collections: HashMap::new(),
            closed: HashMap::new(),
            write_hook: None,
            journal: None,
        }))
    }

    /// A store of kept objects, without their history: watches from before get 410.
    #[cfg(feature = "durable")]
    pub fn restored(
        kept: impl IntoIterator<Item = Record>,
        version: u64,
        journal: Box<dyn Journal>,
    ) -> Store {
        let version = version.max(FIRST_VERSION);
        let mut collections = HashMap::new();
        for Record { collection, key, version: of_object, object } in kept {
            let collection = collections
                .entry(collection)
                .or_insert_with(|| Collection { compacted_version: version, ..Collection::default() });
            let value = object.and_then(|json| serde_json::from_slice(&json).ok());
            if let Some(value) = value {
                collection.objects.insert(key.clone(), Arc::new(Object::new(key, of_object, value)));
            }
        }
        Store(RwLock::new(Inner {
            version,
            collections,
            closed: HashMap::new(),
            write_hook: None,
            journal: Some(journal),
        }))
    }

    /// Waits until everything up to `version` is kept; at once without a journal.
    pub async fn committed(&self, version: u64) -> Result<(), JournalFailed> {
        let progress = self.0.read().journal.as_ref().map(|journal| journal.progress());
        let Some(mut progress) = progress else { return Ok(()) };
        let reached = progress.wait_for(|at| at.version >= version || at.failure.is_some()).await;
        match reached.map(|at| (at.version >= version, at.failure.clone())) {
            Ok((true, _)) => Ok(()),
            Ok((false, failure)) => Err(JournalFailed(failure.unwrap_or_default())),
            Err(_) => Err(JournalFailed("its thread has ended".into())),
        }
    }

    pub fn set_write_hook(&self, hook: WriteHook) {
        self.0.write().write_hook = Some(hook);
    }

    pub fn version(&self) -> u64 {
        self.0.read().version
    }

    /// Starts a collection's history, unless it is open. A custom resource that
    /// is defined again starts empty.
    pub fn open(&self, collection: &str) {
        let mut inner = self.0.write();
        let compacted_version = inner.version;
        inner
            .collections
            .entry(collection.to_owned())
            .or_insert_with(|| Collection { compacted_version, ..Collection::default() });
    }

    pub fn get(&self, collection: &str, key: &Key) -> Option<Arc<Object>> {
        self.0.read().collections.get(collection)?.objects.get(key).cloned()
    }

    /// Stores `value` as the next version and notifies the watchers.
    pub fn put(
        &self,
        collection: &str,
        key: &Key,
        expect: Precondition,
        value: Value,
    ) -> Result<Arc<Object>, VersionConflict> {
        let mut inner = self.0.write();
        let version = inner.version + 1;
        let Some(held) = inner.collections.get_mut(collection) else { return Err(VersionConflict) };
        let previous = held.check_precondition(key, expect)?;
        let change = if previous.is_some() { Change::Modified } else { Change::Added };
        let object = Arc::new(Object::new(key.clone(), version, value));
        held.objects.insert(key.clone(), object.clone());
        let event = held.record(change, object.clone(), previous);
        inner.pass_on(collection, version, &event);
        Ok(object)
    }

    /// Removes an object; watchers see `value` as its last state.
    pub fn remove(
        &self,
        collection: &str,
        key: &Key,
        expect: u64,
        value: Value,
    ) -> Result<Arc<Object>, VersionConflict> {
        let mut inner = self.0.write();
        let version = inner.version + 1;
        let Some(held) = inner.collections.get_mut(collection) else { return Err(VersionConflict) };
        let previous = held.check_precondition(key, Precondition::Version(expect))?;
        held.objects.remove(key);
        let object = Arc::new(Object::new(key.clone(), version, value));
        let event = held.record(Change::Deleted, object.clone(), previous);
        inner.pass_on(collection, version, &event);
        Ok(object)
    }

    /// The current objects of one namespace, or of all, in key order.
    pub fn list(&self, collection: &str, namespace: Option<&str>) -> Snapshot {
        let inner = self.0.read();
        let objects = match inner.collections.get(collection) {
            None => Vec::new(),
            Some(held) => held.in_namespace(namespace).map(|(_, object)| object.clone()).collect(),
        };
        Snapshot { version: inner.version, objects }
    }

    /// As `list`, at an earlier version.
    pub fn list_at(
        &self,
        collection: &str,
        namespace: Option<&str>,
        version: u64,
    ) -> Result<Snapshot, Compacted> {
        let inner = self.0.read();
        let Some(held) = inner.collections.get(collection) else {
            return Ok(Snapshot { version, objects: Vec::new() });
        };
        held.check_not_compacted(version)?;
        let mut objects: BTreeMap<&Key, &Arc<Object>> = held.in_namespace(namespace).collect();
        for event in held.events.iter().rev().take_while(|event| event.object.version > version) {
            if namespace.is_some_and(|wanted| *event.object.key.namespace != *wanted) {
                continue;
            }
            match &event.previous {
                Some(previous) => objects.insert(&event.object.key, previous),
                None => objects.remove(&event.object.key),
            };
        }
        Ok(Snapshot { version, objects: objects.into_values().cloned().collect() })
    }

    /// Whether the collection has no objects, so that its definition can be removed.
    pub fn is_empty(&self, collection: &str) -> bool {
        self.0.read().collections.get(collection).is_none_or(|held| held.objects.is_empty())
    }

    /// The events after `version`.
    pub fn events_since(&self, collection: &str, version: u64) -> Result<Vec<Arc<Event>>, Compacted> {
        let inner = self.0.read();
        let Some(held) = inner.collections.get(collection) else {
            let last = inner.closed.get(collection).into_iter().flatten();
            return Ok(last.filter(|event| event.object.version > version).cloned().collect());
        };
        held.check_not_compacted(version)?;
        let from = held.events.partition_point(|event| event.object.version <= version);
        Ok(held.events.range(from..).cloned().collect())
    }

    /// The newest version up to which a reader at `position` has seen all of
    /// the collection's events.
    pub fn bookmark_version(&self, collection: &str, position: u64) -> u64 {
        let inner = self.0.read();
        let newest = inner.collections.get(collection).and_then(|held| held.events.back());
        match newest {
            Some(event) if event.object.version > position => position,
            _ => inner.version,
        }
    }

    /// A subscription to the collection's writes.
    pub fn subscribe(&self, collection: &str) -> Option<Subscription> {
        Some(self.0.read().collections.get(collection)?.notify.subscribe())
    }

    /// Drops all history, as etcd's compaction does: watches and lists from older versions get 410.
    pub fn compact(&self) {
        let mut inner = self.0.write();
        let version = inner.version;
        for held in inner.collections.values_mut() {
            held.events.clear();
            held.compacted_version = version;
        }
    }

    /// Drops a collection with its history and ends its watches.
    pub fn close(&self, collection: &str) {
        let mut inner = self.0.write();
        if let Some(held) = inner.collections.remove(collection) {
            inner.closed.insert(collection.to_owned(), held.events);
        }
    }
}

impl Inner {
    fn pass_on(&mut self, collection: &str, version: u64, event: &Event) {
        self.version = version;
        if let Some(hook) = &self.write_hook {
            let after = (event.change != Change::Deleted).then_some(&event.object.value);
            let before = event.previous.as_ref().map(|previous| &previous.value);
            hook(&Write { collection, version, before, after });
        }
        if let Some(journal) = &self.journal {
            let object = (event.change != Change::Deleted).then(|| event.object.json());
            let (collection, key) = (collection.to_owned(), event.object.key.clone());
            journal.append(Record { collection, key, version, object });
        }
    }
}

impl Collection {
    fn check_precondition(
        &self,
        key: &Key,
        expect: Precondition,
    ) -> Result<Option<Arc<Object>>, VersionConflict> {
        match (self.objects.get(key), expect) {
            (None, Precondition::Absent) => Ok(None),
            (Some(object), Precondition::Version(version)) if object.version == version => {
                Ok(Some(object.clone()))
            }
            _ => Err(VersionConflict),
        }
    }

    fn record(&mut self, change: Change, object: Arc<Object>, previous: Option<Arc<Object>>) -> Arc<Event> {
        if self.events.len() == MAX_EVENTS
            && let Some(oldest) = self.events.pop_front()
        {
            self.compacted_version = oldest.object.version;
        }
        let event = Arc::new(Event { change, object, previous, frame: OnceLock::new() });
        self.events.push_back(event.clone());
        self.notify.notify();
        event
    }

    fn check_not_compacted(&self, version: u64) -> Result<(), Compacted> {
        if version < self.compacted_version {
            return Err(Compacted { requested: version, oldest: self.compacted_version });
        }
        Ok(())
    }

    fn in_namespace(&self, namespace: Option<&str>) -> impl Iterator<Item = (&Key, &Arc<Object>)> {
        let from = Key::new(namespace.unwrap_or_default(), "");
        self.objects
            .range(from..)
            .take_while(move |(key, _)| namespace.is_none_or(|wanted| *key.namespace == *wanted))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn names(snapshot: &Snapshot) -> Vec<&str> {
        snapshot.objects.iter().map(|o| &*o.key.name).collect()
    }

    #[test]
    fn a_list_at_an_old_version_shows_the_objects_of_that_version() {
        let store = Store::new();
        store.open("c");
        let (a, b) = (Key::new("n", "a"), Key::new("n", "b"));
        let first = store.put("c", &a, Precondition::Absent, json!({"metadata": {}, "x": 1})).unwrap();
        let then = store.version();
        store.put("c", &b, Precondition::Absent, json!({"metadata": {}})).unwrap();
        let second = store
            .put("c", &a, Precondition::Version(first.version), json!({"metadata": {}, "x": 2}))
            .unwrap();
        store.remove("c", &a, second.version, second.value.clone()).unwrap();

        assert_eq!(names(&store.list("c", Some("n"))), ["b"]);
        let old = store.list_at("c", None, then).unwrap();
        assert_eq!((names(&old), old.objects[0].value["x"].as_i64()), (vec!["a"], Some(1)));
    }

    #[test]
    fn a_write_on_a_stale_version_changes_nothing() {
        let store = Store::new();
        store.open("c");
        let key = Key::new("", "a");
        let object = store.put("c", &key, Precondition::Absent, json!({"metadata": {}})).unwrap();
        assert!(store.put("c", &key, Precondition::Absent, json!({"metadata": {}})).is_err());
        assert!(
            store.put("c", &key, Precondition::Version(object.version - 1), json!({"metadata": {}})).is_err()
        );
        assert_eq!(store.version(), object.version);
    }

    #[test]
    fn reads_from_compacted_history_are_refused() {
        let store = Store::new();
        store.open("c");
        let before = store.version();
        store.put("c", &Key::new("", "a"), Precondition::Absent, json!({"metadata": {}})).unwrap();
        assert_eq!(store.events_since("c", before).unwrap().len(), 1);
        store.compact();
        assert!(store.events_since("c", before).is_err());
        assert!(store.list_at("c", None, before).is_err());
        assert_eq!(store.events_since("c", store.version()).unwrap().len(), 0);
    }
}
