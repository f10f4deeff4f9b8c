//! Rights, as roles give them and as requests need them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::support::chart::Manifests;

/// Rights that no request shows to be used, and why they are needed.
const UNAUDITED: [(&str, &str, &str); 4] = [
    // Required by the API server itself when an object is written whose owner
    // reference blocks the Canary's deletion.
    ("serin.dev", "canaries/finalizers", "update"),
    // Required by the policy on approvals when one is written.
    ("serin.dev", "canaries/approve", "update"),
    // For a Canary that cannot be read, which this Serin's own definition
    // refuses.
    ("serin.dev", "canaries", "get"),
    ("serin.dev", "canaries/status", "patch"),
];

/// One verb on one resource, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RbacRule {
    namespace: Option<String>,
    group: String,
    resource: String,
    verb: String,
}

impl RbacRule {
    /// What the rendered roles give.
    pub fn granted(manifests: &Manifests) -> BTreeSet<Self> {
        let bound: BTreeSet<String> = ["RoleBinding", "ClusterRoleBinding"]
            .iter()
            .flat_map(|kind| manifests.all(kind))
            .map(|binding| binding["roleRef"]["name"].as_str().expect("a role").to_owned())
            .collect();
        let roles = ["Role", "ClusterRole"].into_iter().flat_map(|kind| manifests.all(kind));
        let roles =
            roles.filter(|role| role["metadata"]["name"].as_str().is_some_and(|name| bound.contains(name)));
        let texts = |list: &Value| -> Vec<String> {
            let list = list.as_array().expect("a list");
            list.iter().map(|text| text.as_str().expect("a text").to_owned()).collect()
        };
        let mut granted = BTreeSet::new();
        for role in roles {
            let namespace = role["metadata"]["namespace"].as_str().map(str::to_owned);
            for rule in role["rules"].as_array().expect("rules") {
                for group in texts(&rule["apiGroups"]) {
                    for resource in texts(&rule["resources"]) {
                        for verb in texts(&rule["verbs"]) {
                            let (namespace, group, resource) =
                                (namespace.clone(), group.clone(), resource.clone());
                            granted.insert(Self { namespace, group, resource, verb });
                        }
                    }
                }
            }
        }
        granted
    }

    /// What a request needed: an apply that makes its object creates as well.
    pub fn used(event: &Value) -> Vec<Self> {
        let about = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let resource = match about["subresource"].as_str() {
            None => text(&about["resource"]),
            Some(sub) => format!("{}/{sub}", text(&about["resource"])),
        };
        let namespace = about["namespace"].as_str().map(str::to_owned);
        let verb = text(&event["verb"]);
        let created = verb == "patch" && event["responseStatus"]["code"] == 201;
        let verbs = [Some(verb), created.then(|| "create".to_owned())].into_iter().flatten();
        let right = |verb| Self {
            namespace: namespace.clone(),
            group: text(&about["apiGroup"]),
            resource: resource.clone(),
            verb,
        };
        verbs.map(right).collect()
    }

    pub fn is_in_groups(&self, groups: &[&str]) -> bool {
        groups.contains(&self.group.as_str())
    }

    /// Of this resource, or of a part of it.
    pub fn is_of(&self, resource: &str) -> bool {
        self.resource.split('/').next() == Some(resource)
    }

    pub fn is_in(&self, namespace: &str) -> bool {
        self.namespace.as_deref() == Some(namespace)
    }

    pub fn is_read_by_name(&self) -> bool {
        self.verb == "get"
    }

    pub fn is_covered_by(&self, used: &BTreeSet<Self>) -> bool {
        let Self { namespace, group, resource, verb } = self;
        UNAUDITED.contains(&(group, resource, verb))
            || used.iter().any(|used| {
                (group, resource, verb) == (&used.group, &used.resource, &used.verb)
                    && namespace.as_ref().is_none_or(|only| used.namespace.as_ref() == Some(only))
            })
    }
}
