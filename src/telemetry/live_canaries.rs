//! Canaries as they change, and the course of their releases, for those who look.
//!
//! Fed with every version of every Canary: by the controller from its cache, which holds
//! those of all shards, or by a watch of a command. Objects are shared with the cache, not
//! copied. Readers have a cursor, the number of a change, and ask for what changed since;
//! nothing is queued for a reader, so one that is slow or gone costs nothing.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::timeline::Timeline;
use crate::{
    controller::{CachedCanary, HasMeta as _, NamespacedName},
    engine::observed::CheckMeasurements,
};

/// Deleted Canaries that are remembered, for readers that did not see the deletion yet.
const MAX_TOMBSTONES: usize = 1_000;

pub struct LiveCanaries {
    /// Differs between processes: a cursor of another one is of no use.
    pub epoch: u64,
    state: Mutex<State>,
    /// Number of the last change; 0 until the first list is complete.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    canaries: BTreeMap<NamespacedName, Entry>,
    by_change: BTreeMap<u64, NamespacedName>,
    last_change: u64,
    tombstones: usize,
    /// Deletions up to this change are forgotten.
    forgotten: u64,
    is_complete: bool,
}

#[derive(Default)]
struct Entry {
    change: u64,
    /// None: deleted.
    canary: Option<Arc<CachedCanary>>,
    timeline: Timeline,
}

/// Of one Canary.
#[derive(Clone)]
pub struct Change {
    pub number: u64,
    pub name: NamespacedName,
    /// None: deleted.
    pub canary: Option<Arc<CachedCanary>>,
}

impl Default for LiveCanaries {
    fn default() -> Self {
        let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self { epoch: started.as_micros() as u64, state: Mutex::default(), changed: watch::Sender::new(0) }
    }
}

/// For those who feed it.
impl LiveCanaries {
    /// A version of a Canary; an older one or the same again changes nothing.
    pub fn apply(&self, canary: &Arc<CachedCanary>, now: Timestamp) {
        let name = NamespacedName::of(&**canary);
        let mut state = self.state.lock();
        let known = state.canaries.get(&name).map(|entry| entry.canary.as_ref());
        if known.flatten().is_some_and(|known| !is_newer(canary, known)) {
            return;
        }
        let was_gone = matches!(known, Some(None));
        let entry = state.change(&name);
        if let Some(canary) = canary.canary() {
            entry.timeline.record_status(canary.status.as_ref(), now);
        }
        entry.canary = Some(Arc::clone(canary));
        state.tombstones -= usize::from(was_gone);
        self.announce(&state);
    }

    pub fn remove(&self, name: &NamespacedName) {
        let mut state = self.state.lock();
        if state.canaries.get(name).is_none_or(|entry| entry.canary.is_none()) {
            return;
        }
        let entry = state.change(name);
        entry.canary = None;
        entry.timeline = Timeline::default();
        state.tombstones += 1;
        state.forget_tombstones();
        self.announce(&state);
    }

    /// Removes those that a complete list does not have.
    pub fn retain(&self, is_listed: impl Fn(&NamespacedName) -> bool) {
        let gone: Vec<NamespacedName> = {
            let state = self.state.lock();
            state.canaries.keys().filter(|name| !is_listed(name)).cloned().collect()
        };
        gone.iter().for_each(|name| self.remove(name));
    }

    /// The first list is complete.
    pub fn set_complete(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.is_complete, true) {
            state.last_change += 1;
            self.announce(&state);
        }
    }

    /// The measurements of a check, which this process took.
    pub fn record_measurements(&self, name: &NamespacedName, measured: &CheckMeasurements) {
        if let Some(entry) = self.state.lock().canaries.get_mut(name) {
            entry.timeline.record_measurements(measured);
        }
    }

    fn announce(&self, state: &State) {
        if state.is_complete {
            self.changed.send_replace(state.last_change);
        }
    }
}

/// For those who look.
impl LiveCanaries {
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Completes after the first list.
    pub async fn complete(&self) {
        // The sender lives as long as this.
        let _ = self.subscribe().wait_for(|change| *change > 0).await;
    }

    pub fn get(&self, name: &NamespacedName) -> Option<Arc<CachedCanary>> {
        self.state.lock().canaries.get(name)?.canary.clone()
    }

    pub fn timeline(&self, name: &NamespacedName) -> Option<Timeline> {
        Some(self.state.lock().canaries.get(name)?.timeline.clone())
    }

    /// All that there are, and the cursor after them.
    pub fn all(&self) -> (Vec<Change>, u64) {
        let state = self.state.lock();
        let there = state.canaries.iter().filter(|(_, entry)| entry.canary.is_some());
        (there.map(|(name, entry)| change(name, entry)).collect(), state.last_change)
    }

    /// What changed after this cursor, and the cursor after that. None if the cursor is of
    /// another process, or older than the deletions that are remembered.
    pub fn since(&self, epoch: u64, cursor: u64) -> Option<(Vec<Change>, u64)> {
        let state = self.state.lock();
        if epoch != self.epoch || cursor < state.forgotten || cursor > state.last_change {
            return None;
        }
        let later = state.by_change.range(cursor + 1..);
        let changes = later.filter_map(|(_, name)| Some(change(name, state.canaries.get(name)?)));
        Some((changes.collect(), state.last_change))
    }
}

fn change(name: &NamespacedName, entry: &Entry) -> Change {
    Change { number: entry.change, name: name.clone(), canary: entry.canary.clone() }
}

impl State {
    /// The entry of a Canary, as changed now.
    fn change(&mut self, name: &NamespacedName) -> &mut Entry {
        self.last_change += 1;
        let entry = self.canaries.entry(name.clone()).or_default();
        self.by_change.remove(&entry.change);
        entry.change = self.last_change;
        self.by_change.insert(self.last_change, name.clone());
        entry
    }

    fn forget_tombstones(&mut self) {
        if self.tombstones <= MAX_TOMBSTONES {
            return;
        }
        let is_tombstone = |name: &NamespacedName| self.canaries[name].canary.is_none();
        let all: Vec<u64> =
            self.by_change.iter().filter(|(_, name)| is_tombstone(name)).map(|(change, _)| *change).collect();
        let (oldest, kept) = all.split_at(all.len() / 2);
        self.tombstones = kept.len();
        for change in oldest {
            if let Some(name) = self.by_change.remove(change) {
                self.canaries.remove(&name);
            }
            self.forgotten = *change;
        }
    }
}

/// resourceVersions that are no numbers cannot be compared: then the latest counts.
fn is_newer(incoming: &CachedCanary, held: &CachedCanary) -> bool {
    let (incoming, held) = (incoming.metadata(), held.metadata());
    let version = |text: &Option<String>| text.as_ref()?.parse::<u64>().ok();
    match (version(&incoming.resource_version), version(&held.resource_version)) {
        (Some(new), Some(old)) if incoming.uid == held.uid => new > old,
        _ => incoming.resource_version != held.resource_version || incoming.uid != held.uid,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn canary(name: &str, version: u64) -> Arc<CachedCanary> {
        let canary = json!({
            "apiVersion": "serin.dev/v1alpha1", "kind": "Canary",
            "metadata": {"name": name, "namespace": "shop", "uid": "1", "resourceVersion": version.to_string()},
            "spec": {
                "targetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "service": {"port": 80}, "analysis": {"stepWeight": 10},
            },
        });
        Arc::new(CachedCanary::Valid(Arc::new(serde_json::from_value(canary).unwrap())))
    }

    fn names(changes: &[Change]) -> Vec<(String, bool)> {
        changes.iter().map(|change| (change.name.name.clone(), change.canary.is_some())).collect()
    }

    #[test]
    fn a_reader_gets_the_latest_of_what_changed_and_what_is_gone() {
        let live = LiveCanaries::default();
        let now = Timestamp::UNIX_EPOCH;
        for name in ["a", "b", "c"] {
            live.apply(&canary(name, 1), now);
        }
        let (all, cursor) = live.all();
        assert_eq!(all.len(), 3);
        live.apply(&canary("a", 5), now);
        live.apply(&canary("a", 7), now);
        live.apply(&canary("a", 6), now);
        live.remove(&NamespacedName { namespace: "shop".into(), name: "b".into() });
        let (changes, next) = live.since(live.epoch, cursor).unwrap();
        assert_eq!(names(&changes), [("a".to_owned(), true), ("b".to_owned(), false)]);
        assert_eq!(changes[0].canary.as_ref().unwrap().metadata().resource_version.as_deref(), Some("7"));
        assert!(live.since(live.epoch, next).unwrap().0.is_empty());
        let state = live.state.lock();
        assert_eq!(state.by_change.len(), state.canaries.len(), "one number for each Canary");
        drop(state);
        assert!(live.since(live.epoch + 1, cursor).is_none(), "of another process");
        assert!(live.since(live.epoch, next + 1).is_none(), "from the future");
    }

    #[test]
    fn deletions_are_forgotten_after_a_while_and_old_cursors_with_them() {
        let live = LiveCanaries::default();
        let (_, cursor) = live.all();
        for number in 0..=MAX_TOMBSTONES {
            let name = format!("c{number}");
            live.apply(&canary(&name, 1), Timestamp::UNIX_EPOCH);
            live.remove(&NamespacedName { namespace: "shop".into(), name });
        }
        assert!(live.since(live.epoch, cursor).is_none());
        assert!(live.state.lock().canaries.len() <= MAX_TOMBSTONES);
    }
}
