//! Finds the selectors that match labels, and the labels that match a selector,
//! within a namespace.

use std::collections::{BTreeMap, BTreeSet};

use super::key::Key;
use super::object::Labels;

/// Keys by each of their labels. For selectors any one of their labels suffices,
/// since all must match.
#[derive(Default)]
pub(super) struct LabelIndex(BTreeMap<(String, String, String, String), BTreeSet<Key>>);

impl LabelIndex {
    pub fn insert<'l>(&mut self, key: &Key, labels: impl IntoIterator<Item = (&'l String, &'l String)>) {
        for (label, value) in labels {
            self.0.entry(Self::entry(key, label, value)).or_default().insert(key.clone());
        }
    }

    pub fn remove<'l>(&mut self, key: &Key, labels: impl IntoIterator<Item = (&'l String, &'l String)>) {
        for (label, value) in labels {
            let entry = Self::entry(key, label, value);
            if let Some(keys) = self.0.get_mut(&entry) {
                keys.remove(key);
                if keys.is_empty() {
                    self.0.remove(&entry);
                }
            }
        }
    }

    /// Keys in the namespace of `at` with any of these labels.
    pub fn any<'l>(
        &self,
        at: &Key,
        labels: impl IntoIterator<Item = (&'l String, &'l String)>,
    ) -> BTreeSet<Key> {
        let sets = labels.into_iter().filter_map(|(label, value)| self.0.get(&Self::entry(at, label, value)));
        sets.flatten().cloned().collect()
    }

    fn entry(key: &Key, label: &str, value: &str) -> (String, String, String, String) {
        (key.cluster.clone(), key.namespace.clone(), label.to_owned(), value.to_owned())
    }
}

/// An empty selector selects nothing.
pub(super) fn selects(selector: &Labels, labels: &Labels) -> bool {
    !selector.is_empty() && selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}
