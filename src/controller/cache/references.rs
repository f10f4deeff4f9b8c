//! Which Canaries refer to an object: one lookup per watch event, however many
//! Canaries there are.

use std::collections::{BTreeSet, HashMap};

use kube::core::ApiResource;
use parking_lot::Mutex;

use crate::controller::queue::trigger::NamespacedName;

/// Objects that a Canary depends on.
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
    /// The Canary refers to these and to nothing else.
    pub fn replace(&self, canary: &NamespacedName, patterns: Vec<ObjectPattern>) {
        self.0.lock().replace(canary, patterns);
    }

    /// The Canary refers to these too.
    pub fn extend(&self, canary: &NamespacedName, mut patterns: Vec<ObjectPattern>) {
        let mut maps = self.0.lock();
        let known = maps.by_canary.get(canary).cloned().unwrap_or_default();
        patterns.extend(known.into_iter().filter(|known| !patterns.contains(known)).collect::<Vec<_>>());
        maps.replace(canary, patterns);
    }

    pub fn remove(&self, canary: &NamespacedName) {
        self.0.lock().remove(canary);
    }

    /// Does a Canary refer to objects of this kind?
    pub fn names_kind(&self, kind: &ApiResource) -> bool {
        self.0.lock().by_object.keys().any(|pattern| pattern.kind == *kind)
    }

    pub fn referrers(&self, kind: &ApiResource, namespace: &str, name: &str) -> Vec<NamespacedName> {
        let maps = self.0.lock();
        let mut pattern = ObjectPattern {
            kind: kind.clone(),
            namespace: namespace.to_owned(),
            name: Some(name.to_owned()),
        };
        let by_name = maps.by_object.get(&pattern).into_iter().flatten().cloned().collect::<Vec<_>>();
        pattern.name = None;
        by_name.into_iter().chain(maps.by_object.get(&pattern).into_iter().flatten().cloned()).collect()
    }
}

impl Maps {
    fn replace(&mut self, canary: &NamespacedName, patterns: Vec<ObjectPattern>) {
        let known = self.by_canary.get(canary).map(Vec::as_slice).unwrap_or_default();
        if known.len() == patterns.len() && known.iter().all(|known| patterns.contains(known)) {
            return;
        }
        self.remove(canary);
        for pattern in &patterns {
            self.by_object.entry(pattern.clone()).or_default().insert(canary.clone());
        }
        self.by_canary.insert(canary.clone(), patterns);
    }

    fn remove(&mut self, canary: &NamespacedName) {
        for pattern in self.by_canary.remove(canary).unwrap_or_default() {
            if let Some(concerned) = self.by_object.get_mut(&pattern) {
                concerned.remove(canary);
                if concerned.is_empty() {
                    self.by_object.remove(&pattern);
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
        index.extend(&web, vec![concern(Kind::Deployment, Some("web"))]);
        index.extend(&web, vec![concern(Kind::PodDisruptionBudget, None)]);
        index.replace(&api, vec![concern(Kind::Deployment, Some("api"))]);
        let concerned = |kind: Kind, name| index.referrers(kind.resource(), "shop", name);
        assert_eq!(concerned(Kind::Deployment, "web"), std::slice::from_ref(&web));
        assert_eq!(concerned(Kind::PodDisruptionBudget, "any"), std::slice::from_ref(&web));
        index.replace(&web, vec![concern(Kind::DaemonSet, Some("web"))]);
        assert!(concerned(Kind::Deployment, "web").is_empty());
        index.remove(&api);
        assert!(concerned(Kind::Deployment, "api").is_empty());
    }
}
