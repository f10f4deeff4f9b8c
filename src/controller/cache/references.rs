//! Which Canaries a changed object concerns: one lookup, however many there
//! are.

use std::collections::{BTreeSet, HashMap};

use kube::core::ApiResource;
use parking_lot::Mutex;

use super::NamespacedName;

/// Objects whose changes concern a Canary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectPattern {
    pub kind: ApiResource,
    pub namespace: String,
    /// None for all of them in the namespace.
    pub name: Option<String>,
}

#[derive(Default)]
pub struct ReferenceIndex(Mutex<Maps>);

#[derive(Default)]
struct Maps {
    by_object: HashMap<ObjectPattern, BTreeSet<NamespacedName>>,
    by_canary: HashMap<NamespacedName, Vec<ObjectPattern>>,
}

impl ReferenceIndex {
    /// From now on the Canary is concerned by these; and, if they are `all`
    /// there is, by nothing else.
    pub fn add(&self, canary: &NamespacedName, mut patterns: Vec<ObjectPattern>, all: bool) {
        let mut both = self.0.lock();
        let known = both.by_canary.get(canary).map(Vec::as_slice).unwrap_or_default();
        if !all {
            patterns
                .extend(known.iter().filter(|known| !patterns.contains(known)).cloned().collect::<Vec<_>>());
        }
        if known.len() == patterns.len() && known.iter().all(|known| patterns.contains(known)) {
            return;
        }
        both.remove(canary);
        for concern in &patterns {
            both.by_object.entry(concern.clone()).or_default().insert(canary.clone());
        }
        both.by_canary.insert(canary.clone(), patterns);
    }

    pub fn remove(&self, canary: &NamespacedName) {
        self.0.lock().remove(canary);
    }

    pub fn referrers(&self, kind: &ApiResource, namespace: &str, name: &str) -> Vec<NamespacedName> {
        let both = self.0.lock();
        let mut concern = ObjectPattern {
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            name: Some(name.to_owned()),
        };
        let by_name = both.by_object.get(&concern).into_iter().flatten().cloned().collect::<Vec<_>>();
        concern.name = None;
        by_name.into_iter().chain(both.by_object.get(&concern).into_iter().flatten().cloned()).collect()
    }
}

impl Maps {
    fn remove(&mut self, canary: &NamespacedName) {
        for concern in self.by_canary.remove(canary).unwrap_or_default() {
            if let Some(concerned) = self.by_object.get_mut(&concern) {
                concerned.remove(canary);
                if concerned.is_empty() {
                    self.by_object.remove(&concern);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Kind;

    #[test]
    fn a_change_triggers_only_the_canaries_that_reference_the_object() {
        let index = ReferenceIndex::default();
        let [web, api] =
            ["web", "api"].map(|name| NamespacedName { namespace: "shop".into(), name: name.into() });
        let concern = |kind: Kind, name: Option<&str>| ObjectPattern {
            kind: kind.resource().clone(),
            namespace: "shop".into(),
            name: name.map(str::to_owned),
        };
        index.add(&web, vec![concern(Kind::Deployment, Some("web"))], false);
        index.add(&web, vec![concern(Kind::PodDisruptionBudget, None)], false);
        index.add(&api, vec![concern(Kind::Deployment, Some("api"))], true);
        let concerned = |kind: Kind, name| index.referrers(kind.resource(), "shop", name);
        assert_eq!(concerned(Kind::Deployment, "web"), std::slice::from_ref(&web));
        assert_eq!(concerned(Kind::PodDisruptionBudget, "any"), std::slice::from_ref(&web));
        index.add(&web, vec![concern(Kind::DaemonSet, Some("web"))], true);
        assert!(concerned(Kind::Deployment, "web").is_empty());
        index.remove(&api);
        assert!(concerned(Kind::Deployment, "api").is_empty());
    }
}
