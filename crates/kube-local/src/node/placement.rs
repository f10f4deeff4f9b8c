//! Which pods a node may run.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm, PodSpec};

/// The labels every node carries.
pub fn labels_of(node: &str) -> BTreeMap<String, String> {
    let labels = [
        ("kubernetes.io/hostname", node),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }),
    ];
    labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

/// Whether `nodeSelector` and required node affinity allow the node.
pub fn node_matches(spec: &PodSpec, node: &str) -> bool {
    let labels = labels_of(node);
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let affinity = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required =
        affinity.and_then(|affinity| affinity.required_during_scheduling_ignored_during_execution.as_ref());
    selected
        && required.is_none_or(|required| {
            required.node_selector_terms.iter().any(|term| term_matches(term, node, &labels))
        })
}

fn term_matches(term: &NodeSelectorTerm, node: &str, labels: &BTreeMap<String, String>) -> bool {
    let fields = [("metadata.name".to_owned(), node.to_owned())].into();
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let by_field = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !by_field.is_empty())
        && expressions.iter().all(|requirement| requirement_matches(requirement, labels))
        && by_field.iter().all(|requirement| requirement_matches(requirement, &fields))
}

fn requirement_matches(requirement: &NodeSelectorRequirement, of: &BTreeMap<String, String>) -> bool {
    let value = of.get(&requirement.key);
    let wanted = requirement.values.as_deref().unwrap_or_default();
    let compare = |with: fn(i64, i64) -> bool| {
        let number = value.and_then(|value| value.parse().ok());
        let bound = wanted.first().and_then(|bound| bound.parse().ok());
        number.zip(bound).is_some_and(|(number, bound)| with(number, bound))
    };
    match requirement.operator.as_str() {
        "In" => value.is_some_and(|value| wanted.contains(value)),
        "NotIn" => value.is_none_or(|value| !wanted.contains(value)),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(|number, bound| number > bound),
        "Lt" => compare(|number, bound| number < bound),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn fits_node_one(spec: Value) -> bool {
        let mut object = json!({"containers": []});
        json_patch::merge(&mut object, &spec);
        node_matches(&serde_json::from_value(object).unwrap(), "one")
    }

    #[test]
    fn a_pod_without_constraints_fits_every_node() {
        assert!(fits_node_one(json!({})));
    }

    #[test]
    fn a_node_selector_keeps_pods_away_from_other_nodes() {
        assert!(fits_node_one(json!({"nodeSelector": {"kubernetes.io/hostname": "one"}})));
        assert!(!fits_node_one(json!({"nodeSelector": {"scale-to-zero": "true"}})));
    }

    #[test]
    fn affinity_to_a_nodes_name_binds_a_daemons_pod_to_it() {
        let to = |node: &str| {
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]
            }}}})
        };
        assert!(fits_node_one(to("one")));
        assert!(!fits_node_one(to("two")));
    }
}
