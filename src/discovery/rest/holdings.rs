//! Which registration shows which object.
//!
//! An object is removed when a complete listing of the scope that showed it no longer
//! does, or when its registration goes, and only if no other registration shows it: two
//! accounts that see one shared mesh do not erase each other's view. No clock, no client.

use std::collections::{BTreeMap, BTreeSet};

use crate::discovery::model::{Change, Key, Object};

/// Name of a MeshApi, and the part of it that is listed at once: a region, a catalogue,
/// a kind of a cluster.
type Scope = (String, String);

#[derive(Default)]
pub struct Holdings {
    shown: BTreeMap<Scope, BTreeSet<Key>>,
    /// How many scopes show a key.
    holders: BTreeMap<Key, usize>,
}

impl Holdings {
    /// A complete listing.
    pub fn listed(&mut self, api: &str, scope: &str, objects: Vec<Object>) -> Vec<Change> {
        let keys: BTreeSet<Key> = objects.iter().map(|object| object.key.clone()).collect();
        let before = self.shown.remove(&place(api, scope)).unwrap_or_default();
        keys.difference(&before).for_each(|key| *self.holders.entry(key.clone()).or_default() += 1);
        let gone = before.difference(&keys).filter_map(|key| self.release(key)).collect::<Vec<_>>();
        self.shown.insert(place(api, scope), keys);
        objects.into_iter().map(Change::Apply).chain(gone).collect()
    }

    pub fn applied(&mut self, api: &str, scope: &str, object: Object) -> Change {
        if self.shown.entry(place(api, scope)).or_default().insert(object.key.clone()) {
            *self.holders.entry(object.key.clone()).or_default() += 1;
        }
        Change::Apply(object)
    }

    pub fn removed(&mut self, api: &str, scope: &str, key: &Key) -> Option<Change> {
        let shown = self.shown.get_mut(&place(api, scope))?.remove(key);
        shown.then(|| self.release(key)).flatten()
    }

    /// The scopes of a MeshApi that its spec no longer names.
    pub fn retain_scopes(&mut self, api: &str, keep: impl Fn(&str) -> bool) -> Vec<Change> {
        let dropped = |(of, scope): &&Scope| of == api && !keep(scope);
        let scopes: Vec<Scope> = self.shown.keys().filter(dropped).cloned().collect();
        let keys = scopes.iter().filter_map(|scope| self.shown.remove(scope)).flatten().collect::<Vec<_>>();
        keys.iter().filter_map(|key| self.release(key)).collect()
    }

    /// Everything that a MeshApi showed.
    pub fn drop_api(&mut self, api: &str) -> Vec<Change> {
        self.retain_scopes(api, |_| false)
    }

    pub fn count(&self, api: &str, is_counted: impl Fn(&Key) -> bool) -> usize {
        let of_api = self.shown.iter().filter(|((of, _), _)| of == api);
        of_api.flat_map(|(_, keys)| keys).filter(|key| is_counted(key)).count()
    }

    fn release(&mut self, key: &Key) -> Option<Change> {
        let count = self.holders.get_mut(key)?;
        *count -= 1;
        if *count > 0 {
            return None;
        }
        self.holders.remove(key);
        Some(Change::Remove(key.clone()))
    }
}

fn place(api: &str, scope: &str) -> Scope {
    (api.to_owned(), scope.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discovery::model::{External, Kind};

    fn mesh(name: &str) -> Object {
        Object::external(Key::new("aws:1:eu", "", Kind::AppMeshMesh, name), None, External::Listed)
    }

    #[test]
    fn a_listing_prunes_only_its_own_scope() {
        let mut holdings = Holdings::default();
        holdings.listed("a", "eu", vec![mesh("one"), mesh("two")]);
        holdings.listed("b", "eu", vec![mesh("three")]);
        let changes = holdings.listed("a", "eu", vec![mesh("two")]);
        assert_eq!(changes, [Change::Apply(mesh("two")), Change::Remove(mesh("one").key)]);
        assert_eq!(holdings.count("b", |_| true), 1);
    }

    #[test]
    fn an_object_that_another_registration_shows_stays() {
        let mut holdings = Holdings::default();
        holdings.listed("a", "eu", vec![mesh("shared")]);
        holdings.listed("b", "eu", vec![mesh("shared")]);
        assert_eq!(holdings.drop_api("a"), []);
        assert_eq!(holdings.drop_api("b"), [Change::Remove(mesh("shared").key)]);
    }

    #[test]
    fn events_and_listings_count_a_key_once() {
        let mut holdings = Holdings::default();
        holdings.applied("a", "pods", mesh("one"));
        holdings.applied("a", "pods", mesh("one"));
        holdings.listed("a", "pods", vec![mesh("one")]);
        let removed = Change::Remove(mesh("one").key);
        assert_eq!(holdings.removed("a", "pods", &mesh("one").key), Some(removed));
        assert_eq!(holdings.removed("a", "pods", &mesh("one").key), None);
    }
}
