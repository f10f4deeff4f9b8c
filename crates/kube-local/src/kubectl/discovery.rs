//! API discovery: resources and their verbs.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::kinds::Resource;

/// `/api`
pub(super) fn core_versions() -> Value {
    json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
}

/// `/apis`
pub(super) fn groups(all: &[Arc<Resource>]) -> Value {
    let groups: Vec<_> = by_group(all).into_iter().filter(|(group, _)| !group.is_empty()).collect();
    let groups: Vec<_> = groups.iter().map(|(name, versions)| group_document(name, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/<group>`
pub(super) fn group(all: &[Arc<Resource>], name: &str) -> Option<Value> {
    let groups = by_group(all);
    let mut document = group_document(name, groups.get(name).filter(|_| !name.is_empty())?);
    document["kind"] = "APIGroup".into();
    document["apiVersion"] = "v1".into();
    Some(document)
}

/// `/api/v1`, `/apis/<group>/<version>`
pub(super) fn resources(all: &[Arc<Resource>], group: &str, version: &str) -> Option<Value> {
    let mut listed = Vec::new();
    for resource in sorted(all.iter().filter(|r| r.group == group && r.version == version)) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verbs(resource),
        });
        add_names(&mut entry, resource);
        listed.push(entry);
        for subresource in subresources(resource) {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, subresource.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": subresource.kind,
                "verbs": subresource.verbs,
            });
            if (subresource.group, subresource.version) != (group, version) {
                entry["group"] = subresource.group.into();
                entry["version"] = subresource.version.into();
            }
            listed.push(entry);
        }
    }
    if listed.is_empty() {
        return None;
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    Some(json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": listed,
    }))
}

/// Aggregated discovery, of the core group or of all others; kubectl's first request.
pub(super) fn aggregated(all: &[Arc<Resource>], core: bool) -> Value {
    let mut items = Vec::new();
    for (group, versions) in by_group(all).into_iter().filter(|(group, _)| group.is_empty() == core) {
        let versions: Vec<_> = versions
            .into_iter()
            .map(|(version, resources)| {
                let resources: Vec<_> = resources.into_iter().map(aggregated_resource).collect();
                json!({"version": version, "resources": resources, "freshness": "Current"})
            })
            .collect();
        let metadata = if core { json!({}) } else { json!({"name": group}) };
        items.push(json!({"metadata": metadata, "versions": versions}));
    }
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn aggregated_resource(resource: &Resource) -> Value {
    let kind =
        |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": kind(&resource.group, &resource.version, &resource.kind),
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verbs(resource),
    });
    add_names(&mut entry, resource);
    let subresources: Vec<_> = subresources(resource)
        .into_iter()
        .map(|sub| {
            json!({
                "subresource": sub.name,
                "responseKind": kind(sub.group, sub.version, sub.kind),
                "verbs": sub.verbs,
            })
        })
        .collect();
    if !subresources.is_empty() {
        entry["subresources"] = subresources.into();
    }
    entry
}

fn add_names(entry: &mut Value, resource: &Resource) {
    if !resource.short_names.is_empty() {
        entry["shortNames"] = json!(resource.short_names);
    }
    if !resource.categories.is_empty() {
        entry["categories"] = json!(resource.categories);
    }
}

pub(super) fn verbs(resource: &Resource) -> &'static [&'static str] {
    match () {
        () if resource.is_review() => &["create"],
        () if resource.group.is_empty() && resource.kind == "Namespace" => {
            &["create", "delete", "get", "list", "patch", "update", "watch"]
        }
        () => &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
    }
}

pub(super) struct Subresource<'a> {
    pub(super) name: &'static str,
    pub(super) group: &'a str,
    pub(super) version: &'a str,
    pub(super) kind: &'a str,
    pub(super) verbs: &'static [&'static str],
}

pub(super) fn subresources(resource: &Resource) -> Vec<Subresource<'_>> {
    const READ_AND_WRITE: &[&str] = &["get", "patch", "update"];
    let own = |name, verbs| Subresource {
        name,
        group: &resource.group,
        version: &resource.version,
        kind: &resource.kind,
        verbs,
    };
    let foreign = |name, group, version, kind, verbs| Subresource { name, group, version, kind, verbs };
    let mut all = Vec::new();
    if resource.group.is_empty() {
        match resource.kind.as_str() {
            "Pod" => {
                all.push(foreign("binding", "", "v1", "Binding", &["create"]));
                all.push(foreign("eviction", "policy", "v1", "Eviction", &["create"]));
            }
            "Namespace" => all.push(own("finalize", &["update"])),
            _ => {}
        }
    }
    if resource.scale.is_some() {
        all.push(foreign("scale", "autoscaling", "v1", "Scale", READ_AND_WRITE));
    }
    if resource.has_status {
        all.push(own("status", READ_AND_WRITE));
    }
    all
}

type Versions<'a> = Vec<(&'a str, Vec<&'a Resource>)>;

/// Groups with their versions, preferred first, and resources by name.
fn by_group(all: &[Arc<Resource>]) -> BTreeMap<&str, Versions<'_>> {
    let mut groups: BTreeMap<&str, Versions<'_>> = BTreeMap::new();
    for resource in sorted(all.iter()) {
        let versions = groups.entry(&resource.group).or_default();
        match versions.iter_mut().find(|(version, _)| *version == resource.version) {
            Some((_, resources)) => resources.push(resource),
            None => versions.push((&resource.version, vec![resource])),
        }
    }
    for versions in groups.values_mut() {
        versions.sort_by(|(a, _), (b, _)| priority(b).cmp(&priority(a)).then_with(|| a.cmp(b)));
    }
    groups
}

fn sorted<'a>(resources: impl Iterator<Item = &'a Arc<Resource>>) -> Vec<&'a Resource> {
    let mut resources: Vec<_> = resources.map(|resource| &**resource).collect();
    resources.sort_by(|a, b| a.plural.cmp(&b.plural));
    resources
}

fn group_document(name: &str, versions: &Versions<'_>) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|(version, _)| json!({"groupVersion": format!("{name}/{version}"), "version": version}))
        .collect();
    json!({"name": name, "versions": versions, "preferredVersion": versions[0]})
}

/// Stable versions before beta before alpha, newer before older, others last.
fn priority(version: &str) -> (u8, u32, u32) {
    let parse = || {
        let rest = version.strip_prefix('v')?;
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (major, stage) = rest.split_at(end);
        let major = major.parse().ok()?;
        let minor = |text: &str| text.parse().ok();
        Some(match (stage.strip_prefix("beta"), stage.strip_prefix("alpha")) {
            (Some(beta), _) => (2, major, minor(beta)?),
            (None, Some(alpha)) => (1, major, minor(alpha)?),
            (None, None) if stage.is_empty() => (3, major, 0),
            (None, None) => return None,
        })
    };
    parse().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn builtins() -> Vec<Arc<Resource>> {
        builtin::all().into_iter().map(Arc::new).collect()
    }

    #[test]
    fn versions_are_ordered_by_maturity() {
        let mut versions = ["v1alpha1", "foo", "v1", "v2beta1", "v1beta2", "v2", "v11"];
        versions.sort_by_key(|version| std::cmp::Reverse(priority(version)));
        assert_eq!(versions, ["v11", "v2", "v1", "v2beta1", "v1beta2", "v1alpha1", "foo"]);
    }

    #[test]
    fn both_forms_of_discovery_list_the_same_resources() {
        let all = builtins();
        let mut from_aggregated = Vec::new();
        for core in [true, false] {
            for group in aggregated(&all, core)["items"].as_array().into_iter().flatten() {
                for version in group["versions"].as_array().into_iter().flatten() {
                    for resource in version["resources"].as_array().into_iter().flatten() {
                        let plural = resource["resource"].as_str().unwrap_or_default();
                        from_aggregated.push(plural.to_owned());
                        for sub in resource["subresources"].as_array().into_iter().flatten() {
                            from_aggregated.push(format!(
                                "{plural}/{}",
                                sub["subresource"].as_str().unwrap_or_default()
                            ));
                        }
                    }
                }
            }
        }
        let mut from_lists = Vec::new();
        for (group, versions) in by_group(&all) {
            for (version, _) in versions {
                let list = resources(&all, group, version).expect("a version that has resources");
                for resource in list["resources"].as_array().into_iter().flatten() {
                    from_lists.push(resource["name"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        from_aggregated.sort();
        from_lists.sort();
        assert_eq!(from_aggregated, from_lists);
        assert!(from_lists.contains(&"deployments/scale".to_owned()));
    }

    #[test]
    fn a_review_can_only_be_created() {
        let all = builtins();
        let list = resources(&all, "authorization.k8s.io", "v1").expect("the group is served");
        for resource in list["resources"].as_array().into_iter().flatten() {
            assert_eq!(resource["verbs"], json!(["create"]));
        }
    }
}
