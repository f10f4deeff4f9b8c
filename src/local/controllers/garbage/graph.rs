//! Who owns whom, and what follows from it. Pure: watches fill it, and it says
//! what to do about one object.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

pub const ORPHAN: &str = "orphan";
pub const FOREGROUND: &str = "foregroundDeletion";

pub type Uid = String;

/// What matters here of one object.
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
    pub going: bool,
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
            going: meta.deletion_timestamp.is_some(),
        })
    }

    fn holds(&self, finalizer: &str) -> bool {
        self.finalizers.iter().any(|held| held == finalizer)
    }

    fn waits_for_dependents(&self) -> bool {
        self.going && self.holds(FOREGROUND)
    }

    fn blocks(&self, owner: &str) -> bool {
        self.owners.iter().any(|named| named.uid == owner && named.block_owner_deletion == Some(true))
    }
}

/// What to do about one object.
#[derive(Debug, PartialEq)]
pub enum Verdict {
    Leave,
    /// Somebody has to ask the server whether these owners exist.
    Ask(Vec<OwnerReference>),
    Delete(Propagation),
    /// Some owners are gone, others are not: it stays, with these only.
    KeepOwners(Vec<OwnerReference>),
    /// Its dependents stay; their references to it go, then this finalizer.
    Orphan(Vec<Item>),
    /// Nothing holds it back any more.
    Finish,
    /// It goes after these.
    WaitFor(Vec<Uid>),
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
    /// Kinds whose watch lists anew, and what it has listed.
    listing: HashMap<String, HashSet<Uid>>,
}

impl Graph {
    pub fn get(&self, uid: &str) -> Option<&Item> {
        self.items.get(uid)
    }

    pub fn begin_listing(&mut self, kind: &str) {
        self.listing.insert(kind.to_owned(), HashSet::new());
    }

    /// Forgets what the listing did not show. Returns what to look at.
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

    /// Notes an object as it is now. Returns what to look at.
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
            concerned.extend(self.waiting(&owner.uid));
        }
        for owner in &self.items[&uid].owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(uid.clone());
        }
        concerned
    }

    /// Forgets an object. Returns its dependents and the owners that waited for it.
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
            concerned.extend(self.waiting(&owner.uid));
        }
        concerned
    }

    pub fn remove_kind(&mut self, kind: &str) -> Vec<Uid> {
        self.begin_listing(kind);
        self.end_listing(kind)
    }

    fn waiting(&self, owner: &str) -> Option<Uid> {
        self.items.get(owner).filter(|owner| owner.waits_for_dependents()).map(|owner| owner.uid.clone())
    }

    fn dependents_of(&self, uid: &str) -> impl Iterator<Item = &Item> {
        self.dependents.get(uid).into_iter().flatten().filter_map(|uid| self.items.get(uid))
    }

    /// `absent` and `present` are owners that the server was asked about.
    pub fn verdict(&self, uid: &str, present: &HashSet<Uid>, absent: &HashSet<Uid>) -> Verdict {
        let Some(item) = self.items.get(uid) else {
            return Verdict::Leave;
        };
        if item.going {
            return self.farewell(item);
        }
        let (mut stay, mut leave, mut ask) = (Vec::new(), Vec::new(), Vec::new());
        let mut owner_waits = false;
        for owner in &item.owners {
            match self
                .items
                .get(&owner.uid)
                .filter(|owner| owner.namespace.is_none() || owner.namespace == item.namespace)
            {
                Some(known) if known.waits_for_dependents() => {
                    owner_waits = true;
                    leave.push(owner);
                }
                Some(_) => stay.push(owner),
                None if present.contains(&owner.uid) => stay.push(owner),
                None if absent.contains(&owner.uid) => leave.push(owner),
                None => ask.push(owner.clone()),
            }
        }
        if !ask.is_empty() {
            Verdict::Ask(ask)
        } else if leave.is_empty() {
            Verdict::Leave
        } else if !stay.is_empty() {
            Verdict::KeepOwners(stay.into_iter().cloned().collect())
        } else if item.holds(ORPHAN) {
            Verdict::Delete(Propagation::Orphan)
        } else if item.holds(FOREGROUND) || (owner_waits && self.dependents_of(uid).next().is_some()) {
            Verdict::Delete(Propagation::Foreground)
        } else {
            Verdict::Delete(Propagation::Background)
        }
    }

    fn farewell(&self, item: &Item) -> Verdict {
        if item.holds(ORPHAN) {
            return Verdict::Orphan(self.dependents_of(&item.uid).cloned().collect());
        }
        if !item.holds(FOREGROUND) {
            return Verdict::Leave;
        }
        let blocking = self.dependents_of(&item.uid).filter(|dependent| dependent.blocks(&item.uid));
        let blocking: Vec<Uid> = blocking.map(|dependent| dependent.uid.clone()).collect();
        if blocking.is_empty() { Verdict::Finish } else { Verdict::WaitFor(blocking) }
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
            going: false,
        }
    }

    fn going(uid: &str, owners: &[&str], finalizer: &str) -> Item {
        Item { going: true, finalizers: vec![finalizer.to_owned()], ..item(uid, owners) }
    }

    fn graph(items: impl IntoIterator<Item = Item>) -> Graph {
        let mut graph = Graph::default();
        for item in items {
            graph.apply(item);
        }
        graph
    }

    fn verdict(graph: &Graph, uid: &str, absent: &[&str]) -> Verdict {
        graph.verdict(uid, &HashSet::new(), &absent.iter().map(|uid| (*uid).to_owned()).collect())
    }

    #[test]
    fn an_object_with_a_living_owner_stays() {
        let graph = graph([item("set", &[]), item("pod", &["set"])]);
        assert_eq!(verdict(&graph, "pod", &[]), Verdict::Leave);
    }

    #[test]
    fn an_owner_never_seen_is_asked_for_before_anything_is_deleted() {
        let graph = graph([item("pod", &["set"])]);
        assert!(matches!(verdict(&graph, "pod", &[]), Verdict::Ask(owners) if owners.len() == 1));
        assert_eq!(verdict(&graph, "pod", &["set"]), Verdict::Delete(Propagation::Background));
    }

    #[test]
    fn when_an_owner_goes_its_dependents_are_looked_at() {
        let mut graph = graph([item("set", &[]), item("a", &["set"]), item("b", &["set"])]);
        assert_eq!(graph.remove("set"), ["a", "b"]);
    }

    #[test]
    fn an_object_with_one_owner_left_keeps_only_that() {
        let graph = graph([item("one", &[]), item("pod", &["one", "two"])]);
        assert!(
            matches!(verdict(&graph, "pod", &["two"]), Verdict::KeepOwners(owners) if owners[0].uid == "one")
        );
    }

    #[test]
    fn in_the_foreground_the_owner_goes_last() {
        let mut graph = graph([
            going("deployment", &[], FOREGROUND),
            item("set", &["deployment"]),
            item("pod", &["set"]),
        ]);
        assert_eq!(verdict(&graph, "deployment", &[]), Verdict::WaitFor(vec!["set".to_owned()]));
        assert_eq!(verdict(&graph, "set", &[]), Verdict::Delete(Propagation::Foreground));
        graph.apply(going("set", &["deployment"], FOREGROUND));
        assert_eq!(verdict(&graph, "pod", &[]), Verdict::Delete(Propagation::Background));
        assert_eq!(graph.remove("pod"), ["set"]);
        assert_eq!(verdict(&graph, "set", &[]), Verdict::Finish);
        assert_eq!(graph.remove("set"), ["deployment"]);
        assert_eq!(verdict(&graph, "deployment", &[]), Verdict::Finish);
    }

    #[test]
    fn orphans_are_let_go_before_their_owner_is() {
        let graph = graph([going("set", &[], ORPHAN), item("pod", &["set"])]);
        assert!(matches!(verdict(&graph, "set", &[]), Verdict::Orphan(orphans) if orphans[0].uid == "pod"));
    }

    #[test]
    fn an_owner_in_another_namespace_is_no_owner() {
        let mut elsewhere = item("set", &[]);
        elsewhere.namespace = Some("other".to_owned());
        let graph = graph([elsewhere, item("pod", &["set"])]);
        assert!(matches!(verdict(&graph, "pod", &[]), Verdict::Ask(_)));
    }

    #[test]
    fn what_a_new_listing_does_not_show_is_gone() {
        let mut graph = graph([item("set", &[]), item("pod", &["set"])]);
        graph.begin_listing("things");
        graph.apply(item("pod", &["set"]));
        assert_eq!(graph.end_listing("things"), ["pod", "pod"]);
        assert!(graph.get("set").is_none());
    }
}
