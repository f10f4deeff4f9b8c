//! The ownership graph: filled by watches, it decides the action for one object. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

pub type Uid = String;

/// The relevant metadata of one object.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    pub uid: Uid,
    /// The key of its kind.
    pub kind: String,
    pub namespace: Option<String>,
    pub name: String,
    pub version: Option<String>,
    pub owners: Vec<OwnerReference>,
    pub finalizers: Vec<String>,
    pub deleting: bool,
}

impl Item {
    pub fn new(kind: &str, meta: ObjectMeta) -> Option<Item> {
        Some(Item {
            uid: meta.uid?,
            kind: kind.to_owned(),
            namespace: meta.namespace,
            name: meta.name?,
            version: meta.resource_version,
            owners: meta.owner_references.unwrap_or_default(),
            finalizers: meta.finalizers.unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
        })
    }

    fn has_finalizer(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| held == finalizer)
    }

    fn waits_for_dependents(&self) -> bool {
        self.deleting && self.has_finalizer(FOREGROUND)
    }

    fn blocks_deletion_of(&self, owner: &str) -> bool {
        self.owners.iter().any(|named| named.uid == owner && named.block_owner_deletion == Some(true))
    }
}

/// The action for one object.
#[derive(Debug, PartialEq)]
pub enum GcAction {
    Keep,
    /// Whether these owners exist must be verified on the server.
    VerifyOwners(Vec<OwnerReference>),
    Delete(Propagation),
    /// Some owners are gone: keep the object, with these owners only.
    KeepOwners(Vec<OwnerReference>),
    /// Remove the references of these dependents to it, then the `orphan` finalizer.
    OrphanDependents(Vec<Item>),
    /// No dependent blocks its deletion any more.
    RemoveFinalizer,
    /// It is deleted after these.
    WaitForDependents(Vec<Uid>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Background,
    Foreground,
    Orphan,
}

#[derive(Default)]
pub struct Graph {
    items: BTreeMap<Uid, Item>,
    dependents: HashMap<Uid, BTreeSet<Uid>>,
    /// Kinds being relisted, with the uids listed so far.
    listing: HashMap<String, HashSet<Uid>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    pub fn begin_listing(&mut self, kind: &str) {
        self.listing.insert(kind.to_owned(), HashSet::new());
    }

    /// Removes the objects that were not listed. Returns the objects to check.
    pub fn end_listing(&mut self, kind: &str) -> Vec<Uid> {
        let Some(listed) = self.listing.remove(kind) else {
            return Vec::new();
        };
        let lost: Vec<Uid> = self
            .items
            .values()
            .filter(|item| item.kind == kind && !listed.contains(&item.uid))
            .map(|item| item.uid.clone())
            .collect();
        let mut concerned: Vec<Uid> = lost.iter().flat_map(|uid| self.remove(uid)).collect();
        let unresolved = |item: &&Item| item.owners.iter().any(|owner| !self.items.contains_key(&owner.uid));
        concerned.extend(self.items.values().filter(unresolved).map(|item| item.uid.clone()));
        concerned
    }

    /// Adds or updates an object. Returns the objects to check.
    pub fn apply(&mut self, item: Item) -> Vec<Uid> {
        if let Some(listed) = self.listing.get_mut(&item.kind) {
            listed.insert(item.uid.clone());
        }
        let uid = item.uid.clone();
        let before = self.items.insert(uid.clone(), item).map(|before| before.owners).unwrap_or_default();
        let mut concerned = vec![uid.clone()];
        for owner in &before {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(&uid);
            }
            concerned.extend(self.waiting_owner(&owner.uid));
        }
        for owner in &self.items[&uid].owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        concerned
    }

    /// Removes an object. Returns its dependents, and the owners that waited for it.
    pub fn remove(&mut self, uid: &str) -> Vec<Uid> {
        let Some(item) = self.items.remove(uid) else {
            return Vec::new();
        };
        let mut concerned: Vec<Uid> = self.dependents_of(uid).map(|item| item.uid.clone()).collect();
        for owner in &item.owners {
            if let Some(dependents) = self.dependents.get_mut(&owner.uid) {
                dependents.remove(uid);
                if dependents.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
            concerned.extend(self.waiting_owner(&owner.uid));
        }
        concerned
    }

    pub fn remove_kind(&mut self, kind: &str) -> Vec<Uid> {
        self.begin_listing(kind);
        self.end_listing(kind)
    }

    fn waiting_owner(&self, owner: &str) -> Option<Uid> {
        self.items.get(owner).filter(|owner| owner.waits_for_dependents()).map(|owner| owner.uid.clone())
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Item> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|uid| self.items.get(uid))
    }

    /// `present` and `absent` are owners verified on the server.
    pub fn next_action(&self, uid: &str, present: &HashSet<Uid>, absent: &HashSet<Uid>) -> GcAction {
        let Some(item) = self.items.get(uid) else {
            return GcAction::Keep;
        };
        if item.deleting {
            return self.deletion_action(item);
        }
        let (mut kept, mut gone, mut unverified) = (Vec::new(), Vec::new(), Vec::new());
        let mut owner_waits = false;
        for owner in &item.owners {
            match self
                .items
                .get(&owner.uid)
                .filter(|owner| owner.namespace.is_none() || owner.namespace == item.namespace)
            {
                Some(found) if found.waits_for_dependents() => {
                    owner_waits = true;
                    gone.push(owner);
                }
                Some(_) => kept.push(owner),
                None if present.contains(&owner.uid) => kept.push(owner),
                None if absent.contains(&owner.uid) => gone.push(owner),
                None => unverified.push(owner.clone()),
            }
        }
        if !unverified.is_empty() {
            GcAction::VerifyOwners(unverified)
        } else if gone.is_empty() {
            GcAction::Keep
        } else if !kept.is_empty() {
            GcAction::KeepOwners(kept.into_iter().cloned().collect())
        } else if item.has_finalizer(ORPHAN) {
            GcAction::Delete(Propagation::Orphan)
        } else if item.has_finalizer(FOREGROUND) || (owner_waits && self.dependents_of(uid).next().is_some())
        {
            GcAction::Delete(Propagation::Foreground)
        } else {
            GcAction::Delete(Propagation::Background)
        }
    }

    fn deletion_action(&self, item: &Item) -> GcAction {
        if item.has_finalizer(ORPHAN) {
            return GcAction::OrphanDependents(self.dependents_of(&item.uid).cloned().collect());
        }
        if !item.has_finalizer(FOREGROUND) {
            return GcAction::Keep;
        }
        let blocking =
            self.dependents_of(&item.uid).filter(|dependent| dependent.blocks_deletion_of(&item.uid));
        let blocking: Vec<Uid> = blocking.map(|dependent| dependent.uid.clone()).collect();
        if blocking.is_empty() { GcAction::RemoveFinalizer } else { GcAction::WaitForDependents(blocking) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(uid: &str, owners: &[&str]) -> Item {
        let owner = |uid: &&str| OwnerReference {
            uid: (*uid).to_owned(),
            block_owner_deletion: Some(true),
            ..OwnerReference::default()
        };
        Item {
            uid: uid.to_owned(),
            kind: "things".to_owned(),
            namespace: Some("shop".to_owned()),
            name: uid.to_owned(),
            version: None,
            owners: owners.iter().map(owner).collect(),
            finalizers: Vec::new(),
            deleting: false,
        }
    }

    fn going(uid: &str, owners: &[&str], finalizer: &str) -> Item {
        Item { deleting: true, finalizers: vec![finalizer.to_owned()], ..item(uid, owners) }
    }

    fn graph(items: impl IntoIterator<Item = Item>) -> Graph {
        let mut graph = Graph::default();
        for item in items {
            graph.apply(item);
        }
        graph
    }

    fn verdict(graph: &Graph, uid: &str, absent: &[&str]) -> GcAction {
        graph.next_action(uid, &HashSet::new(), &absent.iter().map(|uid| (*uid).to_owned()).collect())
    }

    #[test]
    fn an_object_with_a_living_owner_stays() {
        let graph = graph([item("set", &[]), item("pod", &["set"])]);
        assert_eq!(verdict(&graph, "pod", &[]), GcAction::Keep);
    }

    #[test]
    fn an_unseen_owner_is_verified_before_anything_is_deleted() {
        let graph = graph([item("pod", &["set"])]);
        assert!(matches!(verdict(&graph, "pod", &[]), GcAction::VerifyOwners(owners) if owners.len() == 1));
        assert_eq!(verdict(&graph, "pod", &["set"]), GcAction::Delete(Propagation::Background));
    }

    #[test]
    fn dependents_of_a_deleted_owner_are_checked() {
        let mut graph = graph([item("set", &[]), item("a", &["set"]), item("b", &["set"])]);
        assert_eq!(graph.remove("set"), ["a", "b"]);
    }

    #[test]
    fn an_object_with_one_remaining_owner_keeps_only_that_reference() {
        let graph = graph([item("one", &[]), item("pod", &["one", "two"])]);
        assert!(
            matches!(verdict(&graph, "pod", &["two"]), GcAction::KeepOwners(owners) if owners[0].uid == "one")
        );
    }

    #[test]
    fn foreground_deletion_removes_the_owner_last() {
        let mut graph = graph([
            going("deployment", &[], FOREGROUND),
            item("set", &["deployment"]),
            item("pod", &["set"]),
        ]);
        assert_eq!(verdict(&graph, "deployment", &[]), GcAction::WaitForDependents(vec!["set".to_owned()]));
        assert_eq!(verdict(&graph, "set", &[]), GcAction::Delete(Propagation::Foreground));
        graph.apply(going("set", &["deployment"], FOREGROUND));
        assert_eq!(verdict(&graph, "pod", &[]), GcAction::Delete(Propagation::Background));
        assert_eq!(graph.remove("pod"), ["set"]);
        assert_eq!(verdict(&graph, "set", &[]), GcAction::RemoveFinalizer);
        assert_eq!(graph.remove("set"), ["deployment"]);
        assert_eq!(verdict(&graph, "deployment", &[]), GcAction::RemoveFinalizer);
    }

    #[test]
    fn dependents_are_orphaned_before_their_owner_is_removed() {
        let graph = graph([going("set", &[], ORPHAN), item("pod", &["set"])]);
        assert!(
            matches!(verdict(&graph, "set", &[]), GcAction::OrphanDependents(orphans) if orphans[0].uid == "pod")
        );
    }

    #[test]
    fn an_owner_in_another_namespace_is_no_owner() {
        let mut elsewhere = item("set", &[]);
        elsewhere.namespace = Some("other".to_owned());
        let graph = graph([elsewhere, item("pod", &["set"])]);
        assert!(matches!(verdict(&graph, "pod", &[]), GcAction::VerifyOwners(_)));
    }

    #[test]
    fn objects_missing_from_a_new_listing_are_removed() {
        let mut graph = graph([item("set", &[]), item("pod", &["set"])]);
        graph.begin_listing("things");
        graph.apply(item("pod", &["set"]));
        assert_eq!(graph.end_listing("things"), ["pod", "pod"]);
        assert!(graph.get("set").is_none());
    }
}
